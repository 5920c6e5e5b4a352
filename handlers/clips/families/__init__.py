"""The families of clip models, one small module each.

To add one: write its module with a subclass of `Family`, and name it in `FAMILIES`.
"""

from collections.abc import Callable

from clips.families.family import Family, ProcessorSettings
from clips.families.qwen2_5_vl import Qwen25VL
from clips.families.qwen3_vl import Qwen3VL

FAMILIES: dict[str, Callable[[ProcessorSettings], Family]] = {"qwen3_vl": Qwen3VL, "qwen2_5_vl": Qwen25VL}
"""Makes the family of a checkpoint, by the `model_type` of its configuration."""

__all__ = ["FAMILIES", "Family", "ProcessorSettings", "Qwen3VL", "Qwen25VL"]
