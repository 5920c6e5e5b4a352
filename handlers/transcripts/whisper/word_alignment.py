"""Aligns the text tokens of Whisper with the audio, by dynamic time warping over cross-attention.

As in openai/whisper (timing.py): the cross-attention of heads that are known to follow the speech is normalised,
smoothed and averaged to a matrix of tokens over time. The path of highest attention through it times each token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

STATES_PER_SECOND = 50
"""Encoder states for each second of audio."""


class AlignedTokens(NamedTuple):
    """When the N text tokens of a window are spoken, and how probable they are."""

    times: list[float]
    """When each token starts, and when the last one ends, N + 1 times in seconds from the start of the window."""
    probabilities: list[float]
    """The probability of each token after those before it, among all text tokens, as in openai/whisper."""


def align_tokens(model: Any, states: Tensor, prompt: list[int], tokens: list[int], duration: float) -> AlignedTokens:
    """Align the text tokens of a window with its audio.

    Args:
        model: A Whisper; its encoder is not needed.
        states: The encoder's states of the window, (1, T, D).
        prompt: IDs of the tokens before the text, with <|notimestamps|>.
        tokens: IDs of the text tokens.
        duration: Length of the window's audio, in seconds.

    Returns:
        The times and the probabilities of `tokens`.
    """
    end = model.config.eos_token_id
    ids = torch.tensor([[*prompt, *tokens, end]], device=states.device)
    attention, logits = _run(model, states, ids)
    length = max(1, min(attention.shape[-1], round(duration * STATES_PER_SECOND)))
    weights = attention[:, len(prompt) - 1 : -1, :length].float()
    # Normalised over the tokens: which token attends to a position more than the other tokens do.
    weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False).clamp(min=1e-6)
    matrix = _median_filter(weights, model.config.median_filter_width).mean(0)
    rows, columns = dynamic_time_warping(-matrix.cpu().double().numpy())
    first_cells = np.flatnonzero(np.diff(rows, prepend=-1))  # where the path enters the row of each token
    times: list[float] = (columns[first_cells] / STATES_PER_SECOND).tolist()
    probabilities = logits[len(prompt) - 1 :][: len(tokens), :end].float().softmax(-1)  # text tokens precede `end`
    chosen = probabilities[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.long)]
    return AlignedTokens(times, chosen.tolist())


def _run(model: Any, states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-attention of the alignment heads for each token, (heads, tokens, T), and the logits, (tokens, V)."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the only implementation that returns attention
    try:
        outputs = model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=ids, output_attentions=True)
    finally:
        model.set_attn_implementation(implementation)
    heads = model.generation_config.alignment_heads
    return torch.stack([outputs.cross_attentions[layer][0, head] for layer, head in heads]), outputs.logits[0]


def _median_filter(weights: Tensor, width: int) -> Tensor:
    """The median of `width` neighbours along the last axis."""
    side = width // 2
    if weights.shape[-1] <= side:
        return weights
    return F.pad(weights, (side, side), mode="reflect").unfold(-1, width, 1).median(-1).values


def dynamic_time_warping(costs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the path of least cost from the first to the last cell, by steps to the right, down, or both.

    Args:
        costs: The cost of each cell, (N, M).

    Returns:
        The rows and the columns of the path's cells.
    """
    height, width = costs.shape
    totals = np.full((height + 1, width + 1), np.inf)
    totals[0, 0] = 0
    steps = np.zeros((height + 1, width + 1), np.int8)  # how the path gets to a cell: 0 by both steps, 1 down, 2 right
    for diagonal in range(2, height + width + 1):  # the cells of a diagonal do not depend on each other
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
