"""Labels for training the demo speech model: tokens, the words at each position, and where heads should attend."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import WhisperProcessor

from synthetic.phrases import WORDS
from training.speech.model import ENCODER_RATE, MEL_RATE
from training.speech.windows import Window, Word

IGNORED_LABEL = -100
"""Cross entropy ignores positions with this label; it is torch's default for `ignore_index`."""

MAX_WORD_COUNT = 31
"""Largest label for the number of words so far; larger numbers get this label."""

_FRAMES_PER_POSITION = MEL_RATE // ENCODER_RATE
_AFTER_SPEECH = 20  # encoder positions after the last word that show that speech has ended


@dataclass
class Batch:
    """B windows with up to L tokens and T encoder positions."""

    features: Tensor
    """(B, MEL_BINS, 2 * T) float32."""
    offset: int
    """Encoder position at which the windows begin."""
    inputs: Tensor
    """(B, L) token ids."""
    labels: Tensor
    """(B, L): the token that follows each input token, or IGNORED_LABEL."""
    positions: Tensor
    """(5, B, T) labels of each position: the word that is audible, the last word that has ended, and the word before
    that one (each 0 for none, otherwise 1 + its index in WORDS); how many words have begun; and 1 within a segment,
    otherwise 0.
    """
    guides: Tensor
    """(2, B, L, T) bool: the positions of the input token, and those of the label. Guided heads should attend there."""


class Token(NamedTuple):
    """A token and the encoder positions, from `first` to before `stop`, at which it is audible.

    A token that belongs to no position has `first` equal to `stop`.
    """

    id: int
    first: int = 0
    stop: int = 0


class Labeller:
    """Makes batches with the token ids of one processor."""

    def __init__(self, processor: WhisperProcessor) -> None:
        tokenizer = processor.tokenizer
        self.end = tokenizer.eos_token_id
        self.words = {word: tokenizer(" " + word, add_special_tokens=False)["input_ids"][0] for word in WORDS}
        self.prompt = tokenizer.prefix_tokens[:3]
        self.no_speech, self.no_timestamps, self.midnight = tokenizer.convert_tokens_to_ids(
            ["<|nospeech|>", "<|notimestamps|>", "<|0.00|>"]
        )

    def batch(self, windows: list[Window], timed: list[bool], offset: int) -> Batch:
        """Return the batch of some windows.

        Args:
            windows: Windows of equal length.
            timed: For each window, whether its tokens include timestamps.
            offset: Encoder position at which the windows begin.
        """
        positions = windows[0].features.shape[1] // _FRAMES_PER_POSITION
        rows = [self.tokens(w.segments, t, offset, positions) for w, t in zip(windows, timed, strict=True)]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.end)
        labels = torch.full((len(rows), length - 1), IGNORED_LABEL)
        guides = torch.zeros((2, len(rows), length - 1, positions), dtype=torch.bool)
        for b, (row, window) in enumerate(zip(rows, windows, strict=True)):
            ids[b, : len(row)] = torch.tensor([token.id for token in row])
            labels[b, : len(row) - 1] = ids[b, 1 : len(row)]
            labels[b, 0] = self.prompt[1] if window.segments else self.no_speech
            # The model never has to predict the task and <|notimestamps|>: they are always in the prompt.
            labels[b, 1 : 2 if timed[b] else 3] = IGNORED_LABEL
            for i, (token, following) in enumerate(pairwise(row)):
                guides[0, b, i, token.first : token.stop] = True
                guides[1, b, i, following.first : following.stop] = True
        features = torch.from_numpy(np.stack([window.features for window in windows]))
        position_labels = np.stack([_position_labels(window.segments, positions) for window in windows], axis=1)
        return Batch(features, offset, ids[:, :-1], labels, torch.from_numpy(position_labels), guides)

    def tokens(self, segments: list[list[Word]], timed: bool, offset: int, positions: int) -> list[Token]:
        """Return all tokens of a window, from <|startoftranscript|> to <|endoftext|>.

        Args:
            segments: The words of each segment.
            timed: Whether each segment is between timestamps.
            offset: Encoder position at which the window begins.
            positions: Number of encoder positions of the window.
        """

        def stamp(position: int) -> Token:
            return Token(self.midnight + offset + position, max(0, position - 2), min(positions, position + 2))

        row = [Token(token_id) for token_id in self.prompt]
        if not timed:
            row.append(Token(self.no_timestamps))
        elif not segments:
            row.append(Token(self.midnight))
        ended = 0
        for segment in segments:
            words = [Token(self.words[word.text], *_positions(word)) for word in segment]
            ended = words[-1].stop
            if timed:
                words = [stamp(words[0].first), *words, stamp(ended)]
            # Adjacent positions belong to a word as well, because neighbouring words change how it sounds.
            row += [t._replace(first=max(0, t.first - 1), stop=min(positions, t.stop + 1)) for t in words]
        if segments:
            return [*row, Token(self.end, min(positions - 1, ended + 1), min(positions, ended + 1 + _AFTER_SPEECH))]
        return [*row, Token(self.end)]


def _positions(word: Word) -> tuple[int, int]:
    return word.first // _FRAMES_PER_POSITION, -(-word.stop // _FRAMES_PER_POSITION)


def _position_labels(segments: list[list[Word]], positions: int) -> np.ndarray:
    """The labels of the encoder positions of one window, (5, positions), as in `Batch.positions`."""
    labels = np.zeros((5, positions), np.int64)
    previous, count = 0, 0
    for segment in segments:
        for word in segment:
            first, stop = _positions(word)
            index, count = 1 + WORDS.index(word.text), count + 1
            labels[0, first:stop] = index
            labels[1, stop:] = index
            labels[2, stop:] = previous
            labels[3, first:] = min(count, MAX_WORD_COUNT)
            previous = index
        labels[4, _positions(segment[0])[0] : stop] = 1
    return labels
