"""Greedy search with an OPT, the language model of the usual BLIP-2 checkpoints.

No prompt is padded, since all images of a batch have the same one. A token is a few operations of torch for each layer,
over a cache of keys and values that is allocated once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F

from runtime.greedy_search import GreedySearch, join_parameters


@dataclass(frozen=True)
class _Layer:
    """The parts of a layer of OPT, with queries, keys and values in one product."""

    norm: nn.LayerNorm
    weights: Tensor
    """(3 * D, D) of queries, keys and values, in this order."""
    biases: Tensor
    """(3 * D,)."""
    projection: nn.Linear
    second_norm: nn.LayerNorm
    widen: nn.Linear
    activate: nn.Module
    narrow: nn.Linear

    @classmethod
    def of(cls, layer: Any) -> Self:
        """Take the parts of an `OPTDecoderLayer`, whose projections become views of the joined weights."""
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        return cls(
            layer.self_attn_layer_norm,
            join_parameters([part.weight for part in parts]),
            join_parameters([part.bias for part in parts]),
            layer.self_attn.out_proj,
            layer.final_layer_norm,
            layer.fc1,
            layer.activation_fn,
            layer.fc2,
        )


class GreedyOpt:
    """Generates the most probable next token until all texts have ended."""

    def __init__(self, model: Any, search: GreedySearch) -> None:
        """Join the projections of each layer; their modules stay usable, and no memory is added.

        Args:
            model: An `OPTForCausalLM` on its device.
            search: What to generate.
        """
        decoder = model.model.decoder
        self._tokens, self._positions = decoder.embed_tokens, decoder.embed_positions
        self._layers = [_Layer.of(layer) for layer in decoder.layers]
        self._norm, self._head, self._heads = decoder.final_layer_norm, model.lm_head, model.config.num_attention_heads
        self._search = search

    @classmethod
    def of(cls, model: Any, options: dict[str, Any]) -> GreedyOpt | None:
        """Return the greedy search of a language model, or None if only transformers' `generate` does what is asked.

        Args:
            model: A language model of transformers.
            options: Options of transformers' `generate`.
        """
        config, search = model.config, GreedySearch.of(model, options)
        if search is None or config.model_type != "opt":
            return None
        usual = config.do_layer_norm_before and config.enable_bias and config.layer_norm_elementwise_affine
        if not usual or config._remove_final_layer_norm or config.word_embed_proj_dim != config.hidden_size:
            return None
        return cls(model, search)

    def has_room(self, length: int) -> bool:
        """Return whether the model has positions for a prompt of `length` tokens and all tokens after it."""
        return bool(length + self._search.most <= self._positions.num_embeddings - self._positions.offset)

    def generate(self, prompts: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Generate until each text has ended, or has the most tokens.

        Args:
            prompts: The token IDs of the prompts, (B, T), for penalties.
            embeddings: The prompts, (B, T, D).

        Returns:
            The tokens, (B, at most max_new_tokens), with padding after the end; and the average log-probability of
            those up to and including the end, (B,).
        """
        count, length, width = embeddings.shape
        shape = (2, count, self._heads, length + self._search.most, width // self._heads)
        caches = [embeddings.new_empty(shape) for _ in self._layers]
        positions = itertools.count(length)

        def next_logits(tokens: Tensor) -> Tensor:
            return self._logits(self._tokens(tokens)[:, None], caches, next(positions))

        return self._search(prompts, self._logits(embeddings, caches, 0), next_logits)

    def _logits(self, hidden: Tensor, caches: list[Tensor], at: int) -> Tensor:
        """The scores of the next token, (B, V) float32, after the tokens (B, T, D) at positions from `at`.

        Keys and values of these tokens are written into `caches`, (2, B, heads, all positions, D / heads) each.
        """
        count, length, width = hidden.shape
        first = at + self._positions.offset
        flat = (hidden + self._positions.weight[first : first + length]).view(-1, width)
        for layer, cache in zip(self._layers, caches, strict=True):
            joined = F.linear(layer.norm(flat), layer.weights, layer.biases)
            query, *new = joined.view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            for stored, values in zip(cache, new, strict=True):
                stored[:, :, at : at + length] = values
            keys, values = cache[..., : at + length, :]
            attended = F.scaled_dot_product_attention(query, keys, values, is_causal=length > 1)
            flat = flat + layer.projection(attended.transpose(1, 2).reshape(-1, width))
            flat = flat + layer.narrow(layer.activate(layer.widen(layer.second_norm(flat))))
        last = flat.view(count, length, width)[:, -1]
        logits: Tensor = self._head(self._norm(last)).float()
        return logits
