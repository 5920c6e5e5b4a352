"""Greedy search with an OPT, the language model of the usual BLIP-2 checkpoints.

transformers' `generate` serves hundreds of models, so each token takes more time in Python than a small model takes to
compute it. Here, no prompt is padded, since all images of a batch have the same one, and nothing is sampled. A token is
a few operations of torch for each layer, over a cache of keys and values that is allocated once.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.generation import average_logprobs, end_tokens

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "repetition_penalty": (1.0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "use_cache": (True,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
}
"""Options of `generate`, and the values with which they change nothing in greedy search."""

_KNOWN = {"max_new_tokens", "min_new_tokens", "eos_token_id", "pad_token_id", "bos_token_id", "transformers_version"}
"""Options that may have any value."""


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
        weights, biases = (torch.cat([getattr(part, name).data for part in parts]) for name in ("weight", "bias"))
        for part, weight, bias in zip(parts, weights.chunk(3), biases.chunk(3), strict=True):
            part.weight.data, part.bias.data = weight, bias
        return cls(
            layer.self_attn_layer_norm,
            weights,
            biases,
            layer.self_attn.out_proj,
            layer.final_layer_norm,
            layer.fc1,
            layer.activation_fn,
            layer.fc2,
        )


class GreedyOpt:
    """Generates the most probable next token until all texts have ended."""

    def __init__(self, model: Any, settings: Any) -> None:
        """Join the projections of each layer; their modules stay usable, and no memory is added.

        Args:
            model: An `OPTForCausalLM` on its device.
            settings: Its generation configuration, with the options of the caller in it.
        """
        decoder = model.model.decoder
        self._tokens, self._positions = decoder.embed_tokens, decoder.embed_positions
        self._layers = [_Layer.of(layer) for layer in decoder.layers]
        self._norm, self._head, self._heads = decoder.final_layer_norm, model.lm_head, model.config.num_attention_heads
        self._most, self._least = settings.max_new_tokens, settings.min_new_tokens or 0
        ends = end_tokens(model, {"eos_token_id": settings.eos_token_id})
        self._ends = torch.tensor(ends, device=model.device, dtype=torch.long)
        self._padding = settings.pad_token_id if settings.pad_token_id is not None else ends[0] if ends else 0

    @classmethod
    def of(cls, model: Any, options: dict[str, Any]) -> GreedyOpt | None:
        """Return the greedy search of a language model, or None if only transformers' `generate` does what is asked.

        Args:
            model: A language model of transformers.
            options: Options of transformers' `generate`.
        """
        config = model.config
        settings = copy.deepcopy(model.generation_config)
        unknown = settings.update(**options)
        if unknown or settings.max_new_tokens is None or config.model_type != "opt":
            return None
        for name, value in settings.to_diff_dict().items():
            if not name.startswith("_") and name not in _KNOWN and value not in (None, *_NEUTRAL.get(name, ())):
                return None
        usual = config.do_layer_norm_before and config.enable_bias and config.layer_norm_elementwise_affine
        if not usual or config._remove_final_layer_norm or config.word_embed_proj_dim != config.hidden_size:
            return None
        return cls(model, settings)

    def has_room(self, length: int) -> bool:
        """Return whether the model has positions for a prompt of `length` tokens and all tokens after it."""
        return bool(length + self._most <= self._positions.num_embeddings - self._positions.offset)

    def generate(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Generate until each text has ended, or has the most tokens.

        Args:
            embeddings: The prompts, (B, T, D).

        Returns:
            The tokens, (B, at most max_new_tokens), with padding after the end; and the average log-probability of
            those up to and including the end, (B,).
        """
        count, length, width = embeddings.shape
        shape = (2, count, self._heads, length + self._most, width // self._heads)
        caches = [embeddings.new_empty(shape) for _ in self._layers]
        ended = torch.zeros(count, dtype=torch.bool, device=embeddings.device)
        hidden, at = embeddings, 0
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        while len(tokens) < self._most and not ended.all():
            logits = self._logits(hidden, caches, at)
            at += hidden.shape[1]
            if len(tokens) < self._least:
                logits[:, self._ends] = -torch.inf
            best, chosen = logits.max(-1)
            logprobs.append(best - logits.logsumexp(-1))
            tokens.append(chosen.masked_fill(ended, self._padding))
            ended |= torch.isin(chosen, self._ends)
            hidden = self._tokens(tokens[-1])[:, None]
        generated = torch.stack(tokens, 1)
        return generated, average_logprobs(torch.stack(logprobs, 1), torch.isin(generated, self._ends))

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
