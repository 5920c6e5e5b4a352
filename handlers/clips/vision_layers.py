"""Layers of the vision encoders of the Qwen-VL families that we compute faster than transformers does."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SequenceAttention(nn.Module):
    """Attention within each of many sequences: the patches of one time of a clip, or of a window of it.

    transformers takes one sequence after the other, which are hundreds in a device batch. Here, neighbours of equal
    length are computed together.
    """

    def __init__(self, attention: Any) -> None:
        """Take the weights of a `Qwen3VLVisionAttention` or a `Qwen2_5_VLVisionAttention`."""
        super().__init__()
        self.qkv, self.proj, self.num_heads = attention.qkv, attention.proj, attention.num_heads

    def forward(
        self, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
    ) -> Tensor:
        """Compute the attention; transformers says the names of the arguments.

        Args:
            hidden_states: All patches, (P, D).
            cu_seqlens: Where sequences begin, and the last one ends, (sequences + 1,).
            position_embeddings: Cosines and sines of the patches, (P, D / heads) each.
            _: What only other ways to compute it need.

        Returns:
            (P, D).
        """
        joined = self.qkv(hidden_states).view(len(hidden_states), 3, self.num_heads, -1)
        cosines, sines = (values[:, None, None] for values in position_embeddings)
        pairs = joined[:, :2].float()
        first, second = pairs.chunk(2, -1)
        queries, keys = (pairs * cosines + torch.cat([-second, first], -1) * sines).to(joined.dtype).unbind(1)
        attended, at = torch.empty_like(queries), 0
        for length, sequences in groupby(cu_seqlens.diff().tolist()):
            end = at + length * len(list(sequences))
            parts = (each[at:end].unflatten(0, (-1, length)).transpose(1, 2) for each in (queries, keys, joined[:, 2]))
            attended[at:end] = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(0, 1)
            at = end
        projected: Tensor = self.proj(attended.flatten(1))
        return projected


def join_sequences(vision: Any) -> None:
    """Replace the attention of each block of a vision encoder."""
    for block in vision.blocks:
        block.attn = SequenceAttention(block.attn)
