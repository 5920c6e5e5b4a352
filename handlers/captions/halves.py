"""BLIP-2 as two models, each of which loads only the weights of one stage: image encoder and language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Blip2ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput


class Blip2FirstStage(Blip2ForConditionalGeneration):
    """The image encoder: vision model, Q-Former and projection."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_module("language_model", None)
        self._keys_to_ignore_on_load_unexpected = {r"^language_model\."}
        self.all_tied_weights_keys = {}  # only the language model has tied weights

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images for the language model: (B, 3, H, W) -> (B, queries, D)."""
        features: Tensor = self.get_image_features(pixels, return_dict=True).pooler_output
        return features


class Blip2SecondStage(Blip2ForConditionalGeneration):
    """The language model. Its `generate` takes the features of `Blip2FirstStage.encode` as `pixel_values`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.query_tokens
        self.query_tokens = torch.zeros(1, 1, 1)  # type: ignore[assignment]  # a parameter would have to be loaded
        self.register_module("vision_model", _VisionPassThrough())
        self.register_module("qformer", _QFormerPassThrough())
        self.register_module("language_projection", nn.Identity())
        self._keys_to_ignore_on_load_unexpected = {r"^(?!language_model\.)"}


class _VisionPassThrough(nn.Module):
    """Takes the place of the vision model, and returns its input."""

    def forward(self, features: Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(features)


class _QFormerPassThrough(nn.Module):
    """Takes the place of the Q-Former, and returns its input."""

    def forward(self, *, encoder_hidden_states: Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(encoder_hidden_states)
