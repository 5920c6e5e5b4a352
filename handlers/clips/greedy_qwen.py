"""Greedy search with the language models of the Qwen-VL families.

transformers encodes frames and prompts. After that, a token is a few operations of torch for each layer, over a cache
of keys and values that is allocated once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.greedy_search import GreedySearch, join_parameters
from runtime.second_stage import TensorTree


@dataclass(frozen=True)
class _Layer:
    """The parts of a layer, with queries, keys and values in one product, and gates and what they gate in another."""

    norm: nn.Module
    weights: Tensor
    """((heads + 2 * shared heads) * head size, D) of queries, keys and values, in this order."""
    biases: Tensor | None
    head_scales: Tensor | None
    """Weights of the norms of queries and keys, (heads + shared heads, head size), of a Qwen3-VL."""
    projection: nn.Linear
    second_norm: nn.Module
    widen: Tensor
    """(2 * intermediate size, D) of the gates and of what they gate."""
    activate: nn.Module
    narrow: nn.Linear

    @classmethod
    def of(cls, layer: Any) -> Self:
        """Take the parts of a layer of transformers, whose projections become views of the joined weights."""
        attention, mlp = layer.self_attn, layer.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        scales = None
        if hasattr(attention, "q_norm"):
            norms = (attention.q_norm, attention.k_norm)
            heads = (part.out_features // attention.head_dim for part in parts)
            scales = torch.cat([norm.weight.expand(count, -1) for norm, count in zip(norms, heads, strict=False)])
        return cls(
            layer.input_layernorm,
            join_parameters([part.weight for part in parts]),
            None if parts[0].bias is None else join_parameters([part.bias for part in parts]),
            scales,
            attention.o_proj,
            layer.post_attention_layernorm,
            join_parameters([mlp.gate_proj.weight, mlp.up_proj.weight]),
            mlp.act_fn,
            mlp.down_proj,
        )


@dataclass
class _Context:
    """What is known of the tokens before the next one."""

    caches: list[Tensor]
    """Keys and values of each layer, (2, B, shared heads, all positions, head size)."""
    length: int
    """How many positions of the caches are filled."""
    turns: Iterator[tuple[Tensor, Tensor]]
    """Cosines and sines of the rotary embeddings of the next tokens, (B, 1, head size) each."""
    padding: Tensor | None
    """What is added to the scores of keys, (B, 1, 1, all positions): 0, or -inf for padding; None if there is none."""


class GreedyQwen:
    """Generates the most probable next token until all answers have ended."""

    def __init__(self, model: Any) -> None:
        """Join projections of each layer; their modules stay usable, and no memory is added.

        Args:
            model: A Qwen3-VL or Qwen2.5-VL on its device.
        """
        decoder = model.model.language_model
        self._model, self._tokens, self._rotary, self._norm = (
            model,
            decoder.embed_tokens,
            decoder.rotary_emb,
            decoder.norm,
        )
        self._layers = [_Layer.of(layer) for layer in decoder.layers]
        self._heads, self._shared = decoder.config.num_attention_heads, decoder.config.num_key_value_heads
        self._head_size, self._epsilon = decoder.layers[0].self_attn.head_dim, decoder.config.rms_norm_eps

    @classmethod
    def of(cls, model: Any) -> GreedyQwen | None:
        """Return the greedy search with a model, or None for an architecture that only transformers' `generate` knows.

        Args:
            model: A Qwen3-VL or Qwen2.5-VL on its device.
        """
        config = model.model.language_model.config
        sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
        if sliding or config.rope_parameters["rope_type"] != "default":
            return None
        return cls(model)

    def generate(self, inputs: TensorTree, search: GreedySearch) -> TensorTree:
        """Generate the answers of a device batch.

        Args:
            inputs: What `Describer.encode` returned.
            search: What to generate.

        Returns:
            {"tokens": a list of token IDs for each answer, without the prompt, "avg_logprobs": the average
            log-probability of each answer}.
        """
        with torch.inference_mode():
            encoded = self._model(**inputs, use_cache=True, logits_to_keep=1)
            context = self._context(inputs["attention_mask"], encoded, search.most)
            first = encoded.logits[:, -1].float()
            tokens, averages = search(inputs["input_ids"], first, lambda chosen: self._logits(chosen, context))
        return {"tokens": tokens.tolist(), "avg_logprobs": averages.tolist()}

    def _context(self, mask: Tensor, encoded: Any, most: int) -> _Context:
        """The context of the first of `most` tokens behind prompts, whose padding has zeros in the mask, (B, T)."""
        # Behind a prompt, a token has the same position in time, height and width.
        first = mask.sum(1, keepdim=True) + self._model.model.rope_deltas
        positions = first + torch.arange(most, device=mask.device)
        cosines, sines = self._rotary(encoded.logits, positions.expand(3, -1, -1))
        sines[..., : self._head_size // 2].neg_()  # so that halves are swapped and need no sign
        padding = None
        if not mask.all():
            absent = F.pad(mask == 0, (0, most))[:, None, None]
            padding = torch.zeros_like(absent, dtype=encoded.logits.dtype).masked_fill(absent, -torch.inf)
        turns = zip(cosines.split(1, 1), sines.split(1, 1), strict=True)
        return _Context(_room_for(most, encoded.past_key_values), mask.shape[1], turns, padding)

    def _logits(self, tokens: Tensor, context: _Context) -> Tensor:
        """The scores of the token after `tokens` (B,), (B, V) float32. The context then has these tokens, too."""
        at, half = context.length, self._head_size // 2
        context.length += 1
        cosines, sines = next(context.turns)
        padding = None if context.padding is None else context.padding[..., : at + 1]
        hidden = self._tokens(tokens)
        for layer, cache in zip(self._layers, context.caches, strict=True):
            joined = F.linear(self._scale(hidden, layer.norm), layer.weights, layer.biases)
            joined = joined.view(len(tokens), -1, self._head_size)
            pairs, values = joined[:, : -self._shared], joined[:, -self._shared :]
            if layer.head_scales is not None:
                pairs = F.rms_norm(pairs, (self._head_size,), None, self._epsilon) * layer.head_scales
            swapped = torch.cat([pairs[..., half:], pairs[..., :half]], -1)
            pairs = torch.addcmul(pairs * cosines, swapped, sines)
            cache[0, :, :, at], cache[1, :, :, at] = pairs[:, self._heads :], values
            # The queries that share a key are taken for the tokens of one head.
            queries = pairs[:, : self._heads].unflatten(1, (self._shared, -1))
            keys, known = cache[..., : at + 1, :]
            attended = F.scaled_dot_product_attention(queries, keys, known, padding)
            hidden = hidden + layer.projection(attended.flatten(1))
            gates, gated = F.linear(self._scale(hidden, layer.second_norm), layer.widen).chunk(2, -1)
            hidden = hidden + layer.narrow(layer.activate(gates) * gated)
        logits: Tensor = self._model.lm_head(self._scale(hidden, self._norm)).float()
        return logits

    def _scale(self, hidden: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(hidden, norm.weight.shape, norm.weight, self._epsilon)


def _room_for(most: int, encoded: Any) -> list[Tensor]:
    """The keys and values of a prompt, with room for those of `most` more tokens."""
    caches = []
    for layer in encoded.layers:
        cache = F.pad(torch.stack([layer.keys, layer.values]), (0, 0, 0, most))
        layer.keys = layer.values = None  # so that not all layers are there twice
        caches.append(cache)
    return caches
