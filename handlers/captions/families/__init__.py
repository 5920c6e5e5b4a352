"""The families of captioning models, one small module each.

To add one: write its module with a subclass of `Family`, and name it in `FAMILIES`. A model that needs nothing special
needs no family.
"""

from captions.families.blip import Blip
from captions.families.blip2 import Blip2
from captions.families.family import Family
from captions.families.git import Git

FAMILIES: dict[str, type[Family]] = {"blip-2": Blip2, "blip": Blip, "git": Git}
"""The family of a model, by the `model_type` of its configuration; `Family` itself serves all others."""

__all__ = ["FAMILIES", "Blip", "Blip2", "Family", "Git"]
