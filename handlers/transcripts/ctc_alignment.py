"""Forced alignment: finds when the tokens of a known text are spoken, in the emissions of a CTC model.

Of all ways in which a CTC model may spell a text over the frames of a chunk, with blanks before, between and after its
tokens (Graves et al. 2006), the Viterbi algorithm finds the most probable one. All chunks of a batch are aligned at
once, where the emissions are: each step takes a frame of all of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from transcripts.speech_model import round_seconds

ANY = -1
"""A token for what the vocabulary lacks: in each frame as probable as the most probable token besides the blank."""


class SpelledWords(NamedTuple):
    """Words, and the tokens that spell them."""

    words: tuple[str, ...]
    tokens: list[int]
    """The IDs of the tokens of all words, and of the delimiters between them."""
    places: list[tuple[int, int]]
    """For each word, the index of its first token, and that after its last one."""


class Speller:
    """Spells words with the vocabulary of a model.

    Letters have the case of the vocabulary. Digits and letters that it lacks become `ANY`, as do special tokens, and a
    word without any letter; other characters that it lacks, such as punctuation, are left out.
    """

    def __init__(self, tokenizer: Any, delimiter: str | None) -> None:
        """Take the model's tokenizer, and its token between words; None if tokens themselves say where words begin."""
        self._tokenizer = tokenizer
        # Not the added tokens: for such tokenizers, these are all pieces of more than one letter.
        self._special = frozenset(tokenizer.all_special_ids)
        vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
        letters = "".join(vocabulary)
        self._characters = {piece for piece in vocabulary if len(piece) == 1} - {delimiter}
        self._is_upper, self._is_lower = (letters == case for case in (letters.upper(), letters.lower()))
        self._between = [] if delimiter is None else [tokenizer.convert_tokens_to_ids(delimiter)]

    def spell(self, words: Sequence[str]) -> SpelledWords:
        """Return the tokens of words."""
        tokens: list[int] = []
        places = []
        for word in words:
            tokens += self._between if tokens else []
            spelled = self._spell(word)
            places.append((len(tokens), len(tokens) + len(spelled)))
            tokens += spelled
        return SpelledWords(tuple(words), tokens, places)

    def _spell(self, word: str) -> list[int]:
        cased = word.upper() if self._is_upper else word.lower() if self._is_lower else word
        # Letters, marks such as the vowels of Hindi, and numbers.
        heard = "".join(c for c in cased if unicodedata.category(c)[0] in "LMN" or c in self._characters)
        ids = self._tokenizer.convert_tokens_to_ids(self._tokenizer.tokenize(heard))
        return [ANY if token in self._special else token for token in ids] or [ANY]


class TokenSpan(NamedTuple):
    """The frames in which a token is emitted, from `first` to before `stop`, at least one."""

    first: int
    stop: int
    probability: float
    """Mean probability of the token in these frames."""


def align(
    log_probs: Tensor, frame_counts: Sequence[int], texts: Sequence[Sequence[int]], blank: int
) -> list[list[TokenSpan]]:
    """Align texts with emissions.

    Args:
        log_probs: Log-probabilities of the tokens of the vocabulary, (B, T, V) float32, on any device.
        frame_counts: B numbers of frames, at most T; those after them are padding.
        texts: B sequences of token IDs, without blanks; `ANY` stands for a token that the vocabulary lacks.
        blank: ID of the blank.

    Returns:
        For each text, the frames of each token, in order. None of the tokens has any if the text is empty, or has more
        tokens than there are frames for them; two equal tokens in a row need a blank between them.
    """
    spans: list[list[TokenSpan]] = [[] for _ in texts]
    fitting = [k for k, text in enumerate(texts) if text and _frames_needed(text) <= frame_counts[k]]
    if not fitting:
        return spans
    chosen = log_probs[fitting]
    counts = [frame_counts[k] for k in fitting]
    states = _states([texts[k] for k in fitting], blank, chosen.device)
    # One more column, for what the vocabulary lacks; its index is also that of -1.
    others = chosen.clone()
    others[..., blank] = -torch.inf
    chosen = torch.cat([chosen, others.amax(-1, keepdim=True)], -1)
    states = torch.where(states == ANY, chosen.shape[-1] - 1, states)
    path = _best_path(chosen, torch.tensor(counts, device=chosen.device), states, [2 * len(texts[k]) for k in fitting])
    emitted = chosen.gather(2, states.gather(1, torch.from_numpy(path).to(states.device))[..., None])[..., 0]
    probabilities = emitted.exp().cpu().double().numpy()
    for k, row, probability, count in zip(fitting, path, probabilities, counts, strict=True):
        # The states of a path never decrease, so that those of a token are found by bisection.
        numbers = 2 * np.arange(len(texts[k])) + 1
        ends = zip(*(np.searchsorted(row[:count], numbers, side).tolist() for side in ("left", "right")), strict=True)
        spans[k] = [TokenSpan(first, stop, float(probability[first:stop].mean())) for first, stop in ends]
    return spans


def aligned_transcript(
    spelled: SpelledWords, spans: Sequence[TokenSpan], frame_seconds: float, duration: float
) -> ChunkTranscript:
    """Make the transcript of a chunk from the frames of the tokens of its words.

    Words are divided in the middle between the last token of one and the first token of the next one, as a token is
    emitted in a part of its sound only.

    Args:
        spelled: The words.
        spans: The frames of their tokens; none if they could not be aligned.
        frame_seconds: Time from one frame to the next.
        duration: Length of the chunk, in seconds.

    Returns:
        The transcript: one segment with all words, or no segment if there are no frames.
    """
    text = " ".join(spelled.words)
    if not spans:
        return ChunkTranscript(text, None, ())
    of_words = [spans[first:stop] for first, stop in spelled.places]
    between = [(before[-1].stop + after[0].first) / 2 for before, after in pairwise(of_words)]
    starts, ends = [of_words[0][0].first, *between], [*between, of_words[-1][-1].stop]
    words = tuple(
        Word(
            round_seconds(min(start * frame_seconds, duration)),
            round_seconds(min(end * frame_seconds, duration)),
            word,
            round_confidence(fmean(span.probability for span in of_word)),
        )
        for start, end, word, of_word in zip(starts, ends, spelled.words, of_words, strict=True)
    )
    return ChunkTranscript(text, None, (SpeechSegment(words[0].start, words[-1].end, text, words),))


def _frames_needed(text: Sequence[int]) -> int:
    return len(text) + sum(a == b for a, b in pairwise(text))


def _states(texts: Sequence[Sequence[int]], blank: int, device: torch.device) -> Tensor:
    """Return the tokens of each text with blanks around them, (B, S); shorter ones are filled with blanks."""
    states = torch.full((len(texts), 2 * max(map(len, texts)) + 1), blank)
    for row, text in zip(states, texts, strict=True):
        row[1 : 2 * len(text) : 2] = torch.tensor(text)
    return states.to(device)


def _best_path(log_probs: Tensor, frame_counts: Tensor, states: Tensor, last: Sequence[int]) -> NDArray[np.int64]:
    """Return the state of each frame on the most probable path, (B, T).

    Args:
        log_probs: Log-probabilities of the tokens, (B, T, V).
        frame_counts: Number of frames of each row, (B,).
        states: Token of each state, (B, S): blanks at even numbers.
        last: Number of the last state of each row, a blank. A path ends there, or at the token before it.
    """
    (rows, frames), count = log_probs.shape[:2], states.shape[1]
    # From a token, the next one is reached without the blank between them, unless it is the same.
    skips = torch.full((rows, count), -torch.inf, device=states.device)
    skips[:, 1] = 0
    skips[:, 3::2] = torch.where(states[:, 3::2] == states[:, 1:-2:2], -torch.inf, 0.0)
    # Two columns before the states: a path begins in the second one, and is in neither after its first frame.
    scores = torch.full((rows, count + 2), -torch.inf, device=states.device)
    scores[:, 1] = 0
    steps = torch.zeros((frames, rows, count), dtype=torch.int8, device=states.device)
    for frame in range(frames):
        best, step = torch.stack([scores[:, 2:], scores[:, 1:-1], scores[:, :-2] + skips]).max(0)
        reached = functional.pad(best + log_probs[:, frame].gather(1, states), (2, 0), value=-torch.inf)
        is_audio = (frame < frame_counts)[:, None]
        scores = torch.where(is_audio, reached, scores)
        steps[frame] = torch.where(is_audio, step, 0)
    ends = torch.tensor(last, device=states.device)[:, None] + torch.tensor([[1, 2]], device=states.device)
    at = (ends - 2).gather(1, scores.gather(1, ends).argmax(1, keepdim=True))[:, 0].cpu().numpy()
    back, path = steps.cpu().numpy(), np.empty((rows, frames), np.int64)
    for frame in reversed(range(frames)):
        path[:, frame] = at
        at = at - back[frame, np.arange(rows), at]
    return path
