"""The language model of a BLIP-2 writes captions about encoded images: the second stage of a captioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captions.greedy_opt import GreedyOpt
from runtime.generation import generate
from runtime.second_stage import TensorTree


class CaptionWriter:
    """Generates the tokens of captions, by greedy search of our own where that gives the same, else by `generate`."""

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        """Choose the way to generate.

        Args:
            model: A BLIP-2, whole or its second stage, on its device.
            options: Options of transformers' `generate`.
        """
        self._model, self._options = model, options
        self._greedy = GreedyOpt.of(model.language_model, options)

    def __call__(self, inputs: TensorTree) -> TensorTree:
        """Generate the tokens of captions.

        Args:
            inputs: What `Captioner.encode` returned for a BLIP-2: "features" (B, queries, D), and with a prompt
                "input_ids" and "attention_mask" (B, T), the same for all images.

        Returns:
            {"tokens": a list of token IDs for each image, "avg_logprobs": the average log-probability of each caption}.
        """
        with torch.inference_mode():
            ids = inputs["input_ids"] if "input_ids" in inputs else self._default_prompt(inputs["features"])
            embeddings = self._embed(ids, inputs["features"])
            if self._greedy is not None and self._greedy.has_room(ids.shape[1]):
                tokens, averages = self._greedy.generate(ids, embeddings)
                return {"tokens": torch.cat([ids, tokens], 1).tolist(), "avg_logprobs": averages.tolist()}
            prompt = {"inputs_embeds": embeddings, "attention_mask": inputs.get("attention_mask", torch.ones_like(ids))}
            if not self._model.language_model.config.is_encoder_decoder:
                prompt["input_ids"] = ids
            return generate(self._model.language_model, self._options, prompt)

    def _default_prompt(self, features: Tensor) -> Tensor:
        """The prompt of a plain caption, (B, T), as in transformers: the image and the token that begins a text."""
        config = self._model.config
        ids = [config.image_token_index] * config.num_query_tokens + [config.text_config.bos_token_id]
        return torch.tensor([ids], device=features.device).repeat(len(features), 1)

    def _embed(self, ids: Tensor, features: Tensor) -> Tensor:
        """The prompts with features in the place of the image tokens, (B, T, D)."""
        embeddings: Tensor = self._model.language_model.get_input_embeddings()(ids)
        of_image = (ids == self._model.config.image_token_index)[..., None]
        return embeddings.masked_scatter(of_image, features.to(embeddings))
