"""Takes pauses out of the times of words: a word lasts from where it is first audible to where it is last audible.

Alignments divide the time of a segment among its words, so that a word begins where the one before it ends, with the
pause between them. They are also inexact: the end of a word may belong to the next one, before the pause. And the
segments of models end seconds after their last word, often in the first sound of the next segment, so that this word
has a pause and sound behind it. Here, a word stays on one side of a long pause, each boundary near a pause moves into
it, and then each word gives up what is not audible at its ends. A segment lasts from its first word to its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import ChunkTranscript, Word
from transcripts.speech_model import Samples, round_seconds

HOPS_PER_SECOND = 100
"""Windows whose level is computed, for each second."""

AUDIBLE_DB = 35
"""A window is a pause if it is quieter than the loudest one of its word, or near, by this much."""

NEAR_SECONDS = 0.5
"""How far that window may be."""

NOISE_DB = 6
"""In noise, a window is also a pause if it exceeds the level of the noise by less than this."""

CLEAR_DB = 6
"""Windows in a row are a pause, too, if none of them exceeds what is audible by this much, as in the noise of rooms."""

DYNAMICS_DB = 20
"""But no window is a pause that is quieter than the loudest one of all by less than this, as consonants are."""

DIGITAL_SILENCE_DB = -90
"""What is quieter than this, in dB of full scale, is no noise: the rounding of 16 bits is as loud."""

MIN_PAUSE_SECONDS = 0.08
"""The closure of a consonant is shorter than this, and a pause between words is longer."""

LONG_PAUSE_SECONDS = 0.3
"""No word has so long a pause in it."""

EDGE_WEIGHT = 4.0
"""How much more the sound before a pause counts in the last word of a segment, and that behind it in the first: what is
beyond the pause is often of the next segment, or of the one before."""

BEFORE_SECONDS, AFTER_SECONDS = 0.1, 0.2
"""How far before and after the boundary of two words the pause between them may be."""


class _Span(NamedTuple):
    """Windows, from `first` to before `stop`."""

    first: int
    stop: int


def fit_words(transcript: ChunkTranscript, samples: Samples, sample_rate: int) -> ChunkTranscript:
    """Take pauses out of the words of a transcript, and let segments last from their first word to their last.

    Args:
        transcript: The transcript of a chunk.
        samples: The audio of the chunk, (N,).
        sample_rate: Its sample rate, in Hz.

    Returns:
        The transcript with its words in the same order, none of them empty. Segments without words stay as they are.
    """
    words = [word for segment in transcript.segments for word in segment.words or ()]
    if not words:
        return transcript
    levels = _levels(samples, sample_rate)
    noise = _noise(levels)
    given = [_Span(*(round(time * HOPS_PER_SECOND) for time in (word.start, word.end))) for word in words]
    audible = _audible(levels, noise, given)
    counts = [len(segment.words) for segment in transcript.segments if segment.words]
    weights = [EDGE_WEIGHT ** ((k + 1 == count) - (k == 0)) for count in counts for k in range(count)]
    spans = [_on_one_side(span, audible, weight) for span, weight in zip(given, weights, strict=True)]
    for k in range(1, len(spans)):
        if given[k - 1].first < given[k].first <= given[k - 1].stop:  # nothing lies between the two
            boundary = _boundary(spans[k - 1], spans[k], given[k].first, audible)
            spans[k - 1], spans[k] = spans[k - 1]._replace(stop=boundary), spans[k]._replace(first=boundary)
    fitted = iter([_trimmed(word, span, levels, audible, noise) for word, span in zip(words, spans, strict=True)])
    segments = []
    for segment in transcript.segments:
        if segment.words:
            own = tuple(next(fitted) for _ in segment.words)
            segment = replace(segment, start=own[0].start, end=own[-1].end, words=own)
        segments.append(segment)
    return replace(transcript, segments=tuple(segments))


def audible_seconds(samples: Samples, sample_rate: int) -> float:
    """Return when the last sound of a chunk ends that is as audible as a word, in seconds.

    It is the end of the chunk where all of it is equally loud, as digital silence is.

    Args:
        samples: The audio of the chunk, (N,).
        sample_rate: Its sample rate, in Hz.
    """
    levels = _levels(samples, sample_rate)
    audible = np.flatnonzero(levels > max(levels.max(initial=-np.inf) - AUDIBLE_DB, _noise(levels)))
    return (int(audible[-1]) + 1) / HOPS_PER_SECOND if len(audible) else 0.0


def _levels(samples: Samples, sample_rate: int) -> NDArray[np.float64]:
    """The level of each window without its mean, in dB of full scale. The mean of a rumble changes as speech does."""
    hop = sample_rate // HOPS_PER_SECOND
    whole = np.pad(samples, (0, -len(samples) % hop), mode="edge").astype(np.float64)  # zeros would be a step
    levels: NDArray[np.float64] = 10 * np.log10(whole.reshape(-1, hop).var(1) + 1e-12)
    return levels


def _noise(levels: NDArray[np.float64]) -> float:
    """The level up to which windows are a pause, in dB of full scale."""
    heard = levels[levels > DIGITAL_SILENCE_DB]
    noise = float(np.percentile(heard if len(heard) else levels, 2)) + NOISE_DB
    return min(noise, float(levels.max()) - DYNAMICS_DB)


def _audible(levels: NDArray[np.float64], noise: float, words: Sequence[_Span]) -> NDArray[np.bool_]:
    """Return for each window whether it belongs to speech, and not to a pause."""
    near = round(NEAR_SECONDS * HOPS_PER_SECOND)
    loudest = np.lib.stride_tricks.sliding_window_view(np.pad(levels, near, mode="edge"), 2 * near + 1).max(1)
    for word in words:
        loudest[slice(*word)] = loudest[slice(*word)].max(initial=-np.inf)
    threshold = np.maximum(loudest - AUDIBLE_DB, noise)
    audible: NDArray[np.bool_] = levels > threshold
    for first, stop in np.flatnonzero(np.diff(audible, prepend=False, append=False)).reshape(-1, 2):
        audible[first:stop] = (levels[first:stop] > noise + CLEAR_DB).any()
    return audible


def _on_one_side(span: _Span, audible: NDArray[np.bool_], weight: float) -> _Span:
    """A word's span before or after the longest pause in it, if that is too long for a word with sound on both sides.

    It is the side with more sound, where that before the pause counts `weight` times.
    """
    pause = _longest_pause(*span, audible)
    before, after = int(audible[span.first : pause.first].sum()), int(audible[pause.stop : span.stop].sum())
    if pause.stop - pause.first < LONG_PAUSE_SECONDS * HOPS_PER_SECOND or not before or not after:
        return span
    side = span._replace(stop=pause.first) if before * weight >= after else span._replace(first=pause.stop)
    return _on_one_side(side, audible, weight)


def _boundary(before: _Span, after: _Span, at: int, audible: NDArray[np.bool_]) -> int:
    """The window at which a word ends and the next one begins: the middle of a pause, or `at`, where it was."""
    # Each word keeps a window at least.
    first = max(before.first + 1, before.stop - round(BEFORE_SECONDS * HOPS_PER_SECOND))
    stop = min(after.stop - 1, after.first + round(AFTER_SECONDS * HOPS_PER_SECOND))
    pause = _longest_pause(first, stop, audible)
    return at if pause.stop - pause.first < MIN_PAUSE_SECONDS * HOPS_PER_SECOND else (pause.first + pause.stop) // 2


def _longest_pause(first: int, stop: int, audible: NDArray[np.bool_]) -> _Span:
    """The first of the longest pauses in a range of windows; an empty one if there are none."""
    longest, at = _Span(first, first), first
    for heard, run in groupby(audible[first : max(first, stop)].tolist()):
        end = at + len(list(run))
        if not heard and end - at > longest.stop - longest.first:
            longest = _Span(at, end)
        at = end
    return longest


def _trimmed(word: Word, span: _Span, levels: NDArray[np.float64], audible: NDArray[np.bool_], noise: float) -> Word:
    """The word without what is not audible at the ends of its span."""
    own = audible[slice(*span)]
    if len(own) and not own.any():  # far quieter than what is near it
        own = levels[slice(*span)] >= min(noise, levels[slice(*span)].max())
    heard = np.flatnonzero(own)
    if not len(heard):
        return word
    first, stop = span.first + int(heard[0]), span.first + int(heard[-1]) + 1
    # What lies between two windows, at the end of a chunk, stays as it was.
    start = word.start if first == round(word.start * HOPS_PER_SECOND) else first / HOPS_PER_SECOND
    end = word.end if stop == round(word.end * HOPS_PER_SECOND) else stop / HOPS_PER_SECOND
    return replace(word, start=round_seconds(start), end=round_seconds(end))
