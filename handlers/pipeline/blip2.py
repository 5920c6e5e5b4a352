"""BLIP-2 in two halves, each of which loads no weights but its own: what sees images, and what writes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Blip2ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput


class Blip2Encoder(Blip2ForConditionalGeneration):
    """Vision tower, Q-Former and projection."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_module("language_model", None)
        self._keys_to_ignore_on_load_unexpected = {r"^language_model\."}
        self.all_tied_weights_keys = {}  # they are the language model's

    def features(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, queries, D): what the language model is told of each image."""
        seen: Tensor = self.get_image_features(pixels, return_dict=True).pooler_output
        return seen


class Blip2Writer(Blip2ForConditionalGeneration):
    """The language model: `generate` takes an encoder's `features` as its `pixel_values`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.query_tokens
        self.query_tokens = torch.zeros(1, 1, 1)  # type: ignore[assignment]  # a parameter would have to be loaded
        self.register_module("vision_model", _Seen())
        self.register_module("qformer", _Queried())
        self.register_module("language_projection", nn.Identity())
        self._keys_to_ignore_on_load_unexpected = {r"^(?!language_model\.)"}


class _Seen(nn.Module):
    """In place of the vision tower."""

    def forward(self, features: Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(features)


class _Queried(nn.Module):
    """In place of the Q-Former."""

    def forward(self, *, encoder_hidden_states: Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(encoder_hidden_states)
