"""BLIP-2 as two models, each of which loads only the weights of one stage: image encoder and language model."""

from __future__ import annotations

from typing import Any

from transformers import Blip2ForConditionalGeneration


class Blip2FirstStage(Blip2ForConditionalGeneration):
    """The image encoder: vision model, Q-Former and projection."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_module("language_model", None)
        self._keys_to_ignore_on_load_unexpected = {r"^language_model\."}
        self.all_tied_weights_keys = {}  # only the language model has tied weights


class Blip2SecondStage(Blip2ForConditionalGeneration):
    """The language model."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_parameter("query_tokens", None)
        for name in ("vision_model", "qformer", "language_projection"):
            self.register_module(name, None)
        self._keys_to_ignore_on_load_unexpected = {r"^(?!language_model\.)"}
