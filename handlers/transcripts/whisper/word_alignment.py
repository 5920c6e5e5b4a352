"""Aligns the text tokens of Whisper with the audio of their segments, by way of its cross-attention.

As in openai/whisper (timing.py), the cross-attention of heads that are known to follow the speech is normalised,
smoothed and averaged to a matrix of tokens over time. There, one path through the matrix times all tokens of a window;
it may pass several of them at an instant, and far from the segment whose times the model has generated. Here, each
segment has a path of its own, on which each token lasts for at least one state of the encoder.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import Word
from transcripts.speech_model import LANGUAGES_WITHOUT_SPACES, round_seconds
from transcripts.whisper.engine_interface import AlignedTokens
from transcripts.whisper.tokens import TokenSegment

STATES_PER_SECOND = 50
"""Encoder states for each second of audio."""


MARGIN_SECONDS = 0.1
"""How far tokens may lie outside of their segment, as Whisper's timestamps are not exact; never in another segment."""


_OPENING = "\"'“¿([{-"
"""Punctuation that belongs to the next word, as in openai/whisper."""

_CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 - Chinese and Japanese have their own punctuation
"""Punctuation that belongs to the word before, as in openai/whisper."""

_INCOMPLETE = "\ufffd"
"""The replacement character, which a tokenizer makes of bytes that are not a whole character."""


def align_tokens(
    model: Any, states: Tensor, prompt: list[int], segments: Sequence[TokenSegment], duration: float
) -> list[AlignedTokens]:
    """Align the text tokens of a window with its audio, as `WindowBatch.align` says, which has the other arguments.

    Args:
        model: A Whisper; its encoder is not needed.
        states: The encoder's states of the window, (1, T, D).
        prompt: See `WindowBatch.align`.
        segments: See `WindowBatch.align`.
        duration: See `WindowBatch.align`.

    Returns:
        The times and the probabilities of the tokens of each segment.
    """
    tokens = [token for segment in segments for token in segment.tokens]
    end = model.config.eos_token_id
    attention, logits = _run(model, states, torch.tensor([[*prompt, *tokens, end]], device=states.device))
    length = state_count(attention.shape[-1], duration)
    weights = attention[:, len(prompt) - 1 : -1, :length].float()
    # Normalised over the tokens: which token attends to a position more than the other tokens do.
    weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False).clamp(min=1e-6)
    matrix = _median_filter(weights, model.config.median_filter_width).mean(0).cpu().double().numpy()
    by_token = logits[len(prompt) - 1 :][: len(tokens), :end].float().softmax(-1)  # text tokens precede `end`
    probabilities = by_token[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.long)].tolist()
    return align_segments(
        segments,
        length,
        duration,
        probabilities,
        lambda rows, first, stop: monotonic_alignment(matrix[rows, first:stop]),
    )


def align_segments(
    segments: Sequence[TokenSegment],
    length: int,
    duration: float,
    probabilities: list[float],
    starts_within: Callable[[slice, int, int], NDArray[np.intp]],
) -> list[AlignedTokens]:
    """Give each token its time within its segment.

    Args:
        segments: The segments of a window, in order.
        length: Number of the states of the window's audio.
        duration: Length of the window's audio, in seconds.
        probabilities: The probabilities of all text tokens of the window.
        starts_within: Returns the states in which the tokens of a segment start, counted from the first one of its
            range: increasing, the first one 0. It takes the slice of the segment's tokens among all text tokens of the
            window, the first state of the range, and the one after its last.

    Returns:
        The times and the probabilities of the tokens of each segment.
    """
    ranges = state_ranges(segments, length)
    token_count = sum(len(segment.tokens) for segment in segments)
    aligned, at = [], 0
    for k, segment in enumerate(segments):
        rows = slice(at, at + len(segment.tokens))
        if ranges is None:
            times = [duration * row / token_count for row in range(rows.start, rows.stop + 1)]
        else:
            first, stop = ranges[k]
            starts = first + starts_within(rows, first, stop)
            times = [min(state / STATES_PER_SECOND, duration) for state in (*starts.tolist(), stop)]
        aligned.append(AlignedTokens(times, probabilities[rows]))
        at = rows.stop
    return aligned


def state_count(states: int, duration: float) -> int:
    """Return how many of a window's `states` belong to its audio, which lasts `duration` seconds: at least one."""
    return max(1, min(states, int(duration * STATES_PER_SECOND)))


def state_ranges(segments: Sequence[TokenSegment], length: int) -> list[tuple[int, int]] | None:
    """Choose the states of the encoder in which each segment's tokens are searched.

    Args:
        segments: The segments of a window, in order.
        length: Number of the states of the window's audio.

    Returns:
        For each segment, its first state, and the one after its last: disjoint ranges in order, each with a state for
        each token. None if there are more tokens than states.
    """
    if sum(len(segment.tokens) for segment in segments) > length:
        return None
    margin = round(MARGIN_SECONDS * STATES_PER_SECOND)
    bounds = [(round(s.start * STATES_PER_SECOND), round(s.end * STATES_PER_SECOND)) for s in segments]
    ranges, after = [], 0
    for k, (segment, (first, stop)) in enumerate(zip(segments, bounds, strict=True)):
        # Half of a pause between two segments at most, so that both have their share.
        before = 0 if k == 0 else (bounds[k - 1][1] + first) // 2
        behind = length if k + 1 == len(bounds) else (stop + bounds[k + 1][0]) // 2
        first = max(after, min(first, max(first - margin, before)))
        after = max(min(max(stop, min(stop + margin, behind)), length), first + len(segment.tokens))
        ranges.append((first, after))
    limit = length  # now from the end: a segment that needed more states has moved those after it
    for k in range(len(ranges) - 1, -1, -1):
        stop = min(ranges[k][1], limit)
        limit = min(ranges[k][0], stop - len(segments[k].tokens))
        ranges[k] = (limit, stop)
    return ranges


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


def monotonic_alignment(weights: NDArray[np.float64]) -> NDArray[np.intp]:
    """Divide columns among rows: consecutive columns for each row, so that the sum of the weights is the largest.

    Args:
        weights: The weight of each column for each row, (N, M), with N <= M.

    Returns:
        The first column of each row, (N,): increasing, the first one 0.
    """
    height, width = weights.shape
    totals = np.full(height + 1, -np.inf)  # the best sum that ends in each row, after a row that stands for none
    totals[0] = 0
    entered = np.zeros((height, width), np.bool_)  # whether the best way to a cell comes from the row before
    for column in range(width):
        entered[:, column] = totals[:-1] > totals[1:]
        totals[1:] = np.maximum(totals[:-1], totals[1:]) + weights[:, column]
        totals[0] = -np.inf  # only the first column can be entered from there
    starts = np.zeros(height, np.intp)
    row = height - 1
    for column in range(width - 1, 0, -1):
        if entered[row, column]:
            starts[row] = column
            row -= 1
    return starts


class TokenWord(NamedTuple):
    """A word, or a part of one, and how many tokens it consists of."""

    text: str
    """With the spaces before the word."""
    token_count: int


def time_words(
    tokenizer: Any, segments: Sequence[TokenSegment], aligned: Sequence[AlignedTokens], language: str
) -> list[tuple[Word, ...]]:
    """Make the words of each segment, with their times.

    Args:
        tokenizer: The tokenizer of the Whisper.
        segments: The segments of a window, in order.
        aligned: The times and the probabilities of the tokens of each segment.
        language: Code of the language, which decides where words start.

    Returns:
        For each segment its words, with times in whole milliseconds.
    """
    words = []
    for segment, (times, probabilities) in zip(segments, aligned, strict=True):
        parts = split_words(tokenizer, segment.tokens, language)
        spans = list(pairwise(accumulate((part.token_count for part in parts), initial=0)))
        words.append(
            tuple(
                Word(
                    round_seconds(times[first]),
                    round_seconds(times[stop]),
                    text,
                    round_confidence(fmean(probabilities[first:stop])),
                )
                for part, (first, stop) in zip(parts, spans, strict=True)
                if (text := part.text.strip())
            )
        )
    return words


def split_words(tokenizer: Any, tokens: list[int], language: str) -> list[TokenWord]:
    """Split tokens into words, each with the punctuation around it.

    Words start with a space, except in languages that are written without spaces: there, each character is a word.

    Args:
        tokenizer: The tokenizer of the Whisper.
        tokens: IDs of text tokens.
        language: Code of the language.

    Returns:
        The words in order; their token counts add up to the number of `tokens`.
    """
    words: list[TokenWord] = []
    for part in _characters(tokenizer, tokens):
        punctuation = part.text.strip() in string.punctuation
        starts_word = part.text.startswith(" ") or punctuation or language in LANGUAGES_WITHOUT_SPACES
        if starts_word or not words:
            words.append(part)
        else:
            words[-1] = _joined(words[-1], part)
    return _with_punctuation(words)


def _characters(tokenizer: Any, tokens: list[int]) -> list[TokenWord]:
    """The text of each token; tokens that are bytes of the same character are joined."""
    parts = []
    whole = tokenizer.decode(tokens)
    first, at = 0, 0
    for stop in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[first:stop])
        # Where the whole text has a replacement character as well, no further token will complete it.
        if _INCOMPLETE not in text or whole[at : at + len(text)] == text or stop == len(tokens):
            parts.append(TokenWord(text, stop - first))
            first, at = stop, at + len(text)
    return parts


def _with_punctuation(words: list[TokenWord]) -> list[TokenWord]:
    """The words, each joined with the punctuation that belongs to it."""
    whole: list[TokenWord] = []
    opening = TokenWord("", 0)
    for word in words:
        if word.text.startswith(" ") and word.text.strip() in _OPENING:
            opening = _joined(opening, word)
        elif whole and not opening.token_count and word.text in _CLOSING:
            whole[-1] = _joined(whole[-1], word)
        else:
            whole.append(_joined(opening, word))
            opening = TokenWord("", 0)
    return [*whole, opening] if opening.token_count else whole


def _joined(first: TokenWord, second: TokenWord) -> TokenWord:
    return TokenWord(first.text + second.text, first.token_count + second.token_count)
