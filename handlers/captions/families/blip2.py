"""BLIP-2: an image encoder, and a language model that generates from what it returns, perhaps in another process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Blip2ForConditionalGeneration

from captions.families.family import Family
from runtime.generation import generate
from runtime.second_stage import TensorTree


class Blip2FirstStage(Blip2ForConditionalGeneration):
    """The image encoder alone: vision model, Q-Former and projection."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_module("language_model", None)
        self._keys_to_ignore_on_load_unexpected = {r"^language_model\."}
        self.all_tied_weights_keys = {}  # only the language model has tied weights


class Blip2SecondStage(Blip2ForConditionalGeneration):
    """The language model alone."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_parameter("query_tokens", None)
        for name in ("vision_model", "qformer", "language_projection"):
            self.register_module(name, None)
        self._keys_to_ignore_on_load_unexpected = {r"^(?!language_model\.)"}


class Blip2(Family):
    """The family of `Blip2ForConditionalGeneration`."""

    stages = (Blip2FirstStage, Blip2SecondStage)

    def encode(self, model: Any, pixel_values: Tensor) -> dict[str, Tensor]:
        """Encode frames to "features", (B, queries, D)."""
        return {"features": model.get_image_features(pixel_values, return_dict=True).pooler_output}

    def generator(self, model: Any) -> Any:
        """Return the language model."""
        return model.language_model

    def generate(self, model: Any, options: dict[str, Any], inputs: TensorTree) -> TensorTree:
        """Generate the tokens of captions.

        Args:
            model: A BLIP-2, whole or its second stage.
            options: Options of transformers' `generate`.
            inputs: "features" (B, queries, D), and with a prompt "input_ids" and "attention_mask" (B, T).

        Returns:
            What `runtime.generation.generate` returns.
        """
        language_model = model.language_model
        with torch.inference_mode():
            ids = inputs["input_ids"] if "input_ids" in inputs else _default_prompt(model.config, inputs["features"])
            embeddings = language_model.get_input_embeddings()(ids)
            is_image = (ids == model.config.image_token_index)[..., None]
            embeddings = embeddings.masked_scatter(is_image, inputs["features"].to(embeddings))
            prompt = {"inputs_embeds": embeddings, "attention_mask": inputs.get("attention_mask", torch.ones_like(ids))}
            if not language_model.config.is_encoder_decoder:
                prompt["input_ids"] = ids
            return generate(language_model, options, prompt)


def _default_prompt(config: Any, features: Tensor) -> Tensor:
    """The prompt of a plain caption, (B, T), as in transformers: the image and the token that begins a text."""
    ids = [config.image_token_index] * config.num_query_tokens + [config.text_config.bos_token_id]
    return torch.tensor([ids], device=features.device).repeat(len(features), 1)
