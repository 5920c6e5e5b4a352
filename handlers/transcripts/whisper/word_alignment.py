"""When each word was spoken: dynamic time warping of a Whisper's text with the sound that its decoder looks at.

As in openai/whisper (timing.py): the cross-attention of the heads that are known to follow the speech, normalised,
smoothed and averaged, is a picture of tokens over time; the path of most attention through it times each token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

STATES_PER_SECOND = 50
"""Of the encoder."""


def token_times(model: Any, states: Tensor, prompt: list[int], tokens: list[int], duration: float) -> list[float]:
    """When each of `tokens` begins, and when the last one ends, in seconds from the window's start.

    `states` are the encoder's, (1, T, D); `prompt` is one without timestamps.
    """
    ids = torch.tensor([[*prompt, *tokens, model.config.eos_token_id]], device=states.device)
    attention = _alignment_heads(model, states, ids)
    heard = max(1, min(attention.shape[-1], round(duration * STATES_PER_SECOND)))
    weights = attention[:, len(prompt) - 1 : -1, :heard].float()
    # Each position of the sound: which token looks at it more than the others do.
    weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False).clamp(min=1e-6)
    picture = _median(weights, model.config.median_filter_width).mean(0)
    rows, columns = warp(-picture.cpu().double().numpy())
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    times: list[float] = (columns[first] / STATES_PER_SECOND).tolist()
    return times


def _alignment_heads(model: Any, states: Tensor, ids: Tensor) -> Tensor:
    """What the heads look at while each token is followed by the next: (heads, tokens, T)."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the only one that tells
    try:
        outputs = model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=ids, output_attentions=True)
    finally:
        model.set_attn_implementation(usual)
    heads = model.generation_config.alignment_heads
    return torch.stack([outputs.cross_attentions[layer][0, head] for layer, head in heads])


def _median(weights: Tensor, width: int) -> Tensor:
    """Of `width` neighbours along the last axis."""
    side = width // 2
    if weights.shape[-1] <= side:
        return weights
    return F.pad(weights, (side, side), mode="reflect").unfold(-1, width, 1).median(-1).values


def warp(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The cheapest path from the first to the last cell of `costs`, (N, M), by steps to the right, down, or both.

    Returns its rows and its columns.
    """
    height, width = costs.shape
    totals = np.full((height + 1, width + 1), np.inf)
    totals[0, 0] = 0
    steps = np.zeros((height + 1, width + 1), np.int8)
    for diagonal in range(2, height + width + 1):  # cells of one diagonal do not depend on each other
        i = np.arange(max(1, diagonal - width), min(height, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack([totals[i - 1, j - 1], totals[i - 1, j], totals[i, j - 1]])
        best = before.argmin(0)
        steps[i, j] = best
        totals[i, j] = costs[i - 1, j - 1] + before[best, np.arange(len(i))]
    path = []
    i, j = height, width
    while i and j:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != 2), j - (step != 1)
    rows, columns = np.array(path[::-1]).T
    return rows, columns
