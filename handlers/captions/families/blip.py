"""BLIP: its text decoder generates, and has the settings for that."""

from __future__ import annotations

from typing import Any

from captions.families.family import Family
from runtime.generation import generate
from runtime.second_stage import TensorTree


class Blip(Family):
    """The family of `BlipForConditionalGeneration`."""

    def generate(self, model: Any, options: dict[str, Any], inputs: TensorTree) -> TensorTree:
        """Generate the tokens of captions; `generate` of BLIP sets the token that ends them itself."""
        config = model.text_decoder.generation_config
        return generate(model, options, inputs, config=config, ends=[model.config.text_config.sep_token_id])
