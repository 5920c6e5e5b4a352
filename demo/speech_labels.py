"""What a training window should make the demo transcriber say, and where it should look for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import WhisperProcessor

from phrases import WORDS
from speech_model import ENCODER_RATE, MEL_RATE
from speech_windows import Window, Word

NOTHING = -100
"""The label that cross entropy leaves out."""

MOST_COUNTED = 31
_FRAMES_PER_POSITION = MEL_RATE // ENCODER_RATE
_AFTER_SPEECH = 20  # positions after the last word in which its end can be heard


@dataclass
class Batch:
    """B windows, up to L tokens, T positions of the encoder."""

    features: Tensor
    """(B, MEL_BINS, 2 * T) float32."""
    offset: int
    """The position at which the windows begin."""
    inputs: Tensor
    """(B, L) token ids."""
    labels: Tensor
    """(B, L) the token after each, or NOTHING."""
    heard: Tensor
    """(5, B, T): the word that is heard, the last one that ended, the one before that (each 0 for none, else 1 + its
    index), how many have begun, and whether a segment is going on.
    """
    guides: Tensor
    """(2, B, L, T) bool: where to look for the token of the input, and for that of the label."""


class Token(NamedTuple):
    """A token and the positions, from first to before stop, at which it can be heard; none if they are equal."""

    number: int
    first: int = 0
    stop: int = 0


class Labeller:
    """Makes batches, with the token numbers of one processor."""

    def __init__(self, processor: WhisperProcessor) -> None:
        tokenizer = processor.tokenizer
        self.end = tokenizer.eos_token_id
        self.words = {word: tokenizer(" " + word, add_special_tokens=False)["input_ids"][0] for word in WORDS}
        self.prompt = tokenizer.prefix_tokens[:3]
        self.no_speech, self.no_timestamps, self.midnight = tokenizer.convert_tokens_to_ids(
            ["<|nospeech|>", "<|notimestamps|>", "<|0.00|>"]
        )

    def batch(self, windows: list[Window], timed: list[bool], offset: int) -> Batch:
        """Of windows of one length; with timestamps where `timed` says so."""
        positions = windows[0].features.shape[1] // _FRAMES_PER_POSITION
        rows = [self.tokens(w.segments, t, offset, positions) for w, t in zip(windows, timed, strict=True)]
        length = max(map(len, rows))
        numbers = torch.full((len(rows), length), self.end)
        labels = torch.full((len(rows), length - 1), NOTHING)
        guides = torch.zeros((2, len(rows), length - 1, positions), dtype=torch.bool)
        for b, (row, window) in enumerate(zip(rows, windows, strict=True)):
            numbers[b, : len(row)] = torch.tensor([token.number for token in row])
            labels[b, : len(row) - 1] = numbers[b, 1 : len(row)]
            labels[b, 0] = self.prompt[1] if window.segments else self.no_speech
            # The task and <|notimestamps|> are always given.
            labels[b, 1 : 2 if timed[b] else 3] = NOTHING
            for i, (token, following) in enumerate(pairwise(row)):
                guides[0, b, i, token.first : token.stop] = True
                guides[1, b, i, following.first : following.stop] = True
        features = torch.from_numpy(np.stack([window.features for window in windows]))
        heard = torch.from_numpy(np.stack([_heard(window.segments, positions) for window in windows], axis=1))
        return Batch(features, offset, numbers[:, :-1], labels, heard, guides)

    def tokens(self, segments: list[list[Word]], timed: bool, offset: int, positions: int) -> list[Token]:
        """All that is written for a window, from <|startoftranscript|> to <|endoftext|>."""

        def stamp(position: int) -> Token:
            return Token(self.midnight + offset + position, max(0, position - 2), min(positions, position + 2))

        row = [Token(number) for number in self.prompt]
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
            # A margin, as a word's neighbourhood is a part of how it sounds.
            row += [t._replace(first=max(0, t.first - 1), stop=min(positions, t.stop + 1)) for t in words]
        if segments:
            return [*row, Token(self.end, min(positions - 1, ended + 1), min(positions, ended + 1 + _AFTER_SPEECH))]
        return [*row, Token(self.end)]


def _positions(word: Word) -> tuple[int, int]:
    return word.first // _FRAMES_PER_POSITION, -(-word.stop // _FRAMES_PER_POSITION)


def _heard(segments: list[list[Word]], positions: int) -> np.ndarray:
    """Labels of the encoder's positions, (5, positions), as `Batch` has them."""
    labels = np.zeros((5, positions), np.int64)
    previous, count = 0, 0
    for segment in segments:
        for word in segment:
            first, stop = _positions(word)
            index, count = 1 + WORDS.index(word.text), count + 1
            labels[0, first:stop] = index
            labels[1, stop:] = index
            labels[2, stop:] = previous
            labels[3, first:] = min(count, MOST_COUNTED)
            previous = index
        labels[4, _positions(segment[0])[0] : stop] = 1
    return labels
