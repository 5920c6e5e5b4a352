"""Takes pauses out of the times of words: a word lasts from where it is first audible to where it is last audible.

Alignments divide the time of a segment among its words, so that a word begins where the one before it ends, with the
pause between them. They are also inexact, so the end of a word may belong to the next one, before the pause. Here, each
boundary near a pause moves into it, and then each word gives up what is not audible at its ends. A segment lasts from
its first word to its last, as models often begin it where the one before ends, seconds before anything is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from transcripts.speech_model import Samples, round_seconds

HOPS_PER_SECOND = 100
"""Windows whose level is computed, for each second."""

AUDIBLE_DB = 35
"""A window is a pause if it is quieter than the loudest one of its word by this much."""

NOISE_DB = 6
"""In noise, a window is also a pause if it exceeds the level of the noise by less than this."""

DYNAMICS_DB = 20
"""But no window is a pause that is quieter than the loudest one by less than this, as consonants are."""

MIN_PAUSE_SECONDS = 0.08
"""The closure of a consonant is shorter than this, and a pause between words is longer."""

BEFORE_SECONDS, AFTER_SECONDS = 0.1, 0.2
"""How far before and after the boundary of two words the pause between them may be."""


class _Span(NamedTuple):
    """The windows of a word, from `first` to before `stop`."""

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
    if not any(segment.words for segment in transcript.segments):
        return transcript
    levels = _levels(samples, sample_rate)
    return replace(transcript, segments=tuple(_fit_segment(segment, levels) for segment in transcript.segments))


def audible_seconds(samples: Samples, sample_rate: int) -> float:
    """Return when the last sound of a chunk ends that is as audible as a word, in seconds.

    It is the end of the chunk where all of it is equally loud, as digital silence is.

    Args:
        samples: The audio of the chunk, (N,).
        sample_rate: Its sample rate, in Hz.
    """
    levels = _levels(samples, sample_rate)
    audible = np.flatnonzero(_is_audible(levels, _noise(levels)))
    return (int(audible[-1]) + 1) / HOPS_PER_SECOND if len(audible) else 0.0


def _levels(samples: Samples, sample_rate: int) -> NDArray[np.float64]:
    """The level of each window without its mean, in dB of full scale. The mean of a rumble changes as speech does."""
    hop = sample_rate // HOPS_PER_SECOND
    whole = np.pad(samples, (0, -len(samples) % hop), mode="edge").astype(np.float64)  # zeros would be a step
    levels: NDArray[np.float64] = 10 * np.log10(whole.reshape(-1, hop).var(1) + 1e-12)
    return levels


def _noise(levels: NDArray[np.float64]) -> float:
    """The level up to which windows are a pause, in dB of full scale."""
    return float(np.percentile(levels, 10)) + NOISE_DB


def _fit_segment(segment: SpeechSegment, levels: NDArray[np.float64]) -> SpeechSegment:
    if not segment.words:
        return segment
    noise = _noise(levels)
    spans = [_Span(*(round(time * HOPS_PER_SECOND) for time in (word.start, word.end))) for word in segment.words]
    for k in range(1, len(spans)):
        boundary = _boundary(spans[k - 1], spans[k], levels, noise)
        spans[k - 1], spans[k] = spans[k - 1]._replace(stop=boundary), spans[k]._replace(first=boundary)
    words = []
    for word, span in zip(segment.words, spans, strict=True):
        audible = np.flatnonzero(_is_audible(levels[slice(*span)], noise))
        if len(audible):
            first, stop = span.first + int(audible[0]), span.first + int(audible[-1]) + 1
            # What lies between two windows, at the end of a chunk, stays as it was.
            start = word.start if first == round(word.start * HOPS_PER_SECOND) else first / HOPS_PER_SECOND
            end = word.end if stop == round(word.end * HOPS_PER_SECOND) else stop / HOPS_PER_SECOND
            word = replace(word, start=round_seconds(start), end=round_seconds(end))
        words.append(word)
    return replace(segment, start=words[0].start, end=words[-1].end, words=tuple(words))


def _boundary(before: _Span, after: _Span, levels: NDArray[np.float64], noise: float) -> int:
    """The window at which a word ends and the next one begins: the middle of a pause, or where they were divided."""
    at = after.first
    # Each word keeps a window at least.
    first = max(before.first + 1, at - round(BEFORE_SECONDS * HOPS_PER_SECOND))
    stop = min(after.stop - 1, at + round(AFTER_SECONDS * HOPS_PER_SECOND))
    quiet = ~_is_audible(levels[before.first : after.stop], noise)[first - before.first : stop - before.first]
    pause = _longest_run(quiet.tolist())
    if pause.stop - pause.first < MIN_PAUSE_SECONDS * HOPS_PER_SECOND:
        return at
    return first + (pause.first + pause.stop) // 2


def _is_audible(levels: NDArray[np.float64], noise: float) -> NDArray[np.bool_]:
    """Return for each window whether it belongs to speech, and not to a pause."""
    loudest = levels.max(initial=-np.inf)
    audible: NDArray[np.bool_] = levels > min(loudest - DYNAMICS_DB, max(loudest - AUDIBLE_DB, noise))
    return audible


def _longest_run(flags: Sequence[bool]) -> _Span:
    """The first of the longest runs of true flags; an empty one if there are none."""
    longest, at = _Span(0, 0), 0
    for flag, run in groupby(flags):
        stop = at + len(list(run))
        if flag and stop - at > longest.stop - longest.first:
            longest = _Span(at, stop)
        at = stop
    return longest
