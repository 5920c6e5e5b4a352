"""What goes through a speech model, and how what was heard of several pieces becomes one transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelscribe.speech import Asked, ChunkTranscript, SpeechSegment

Samples = NDArray[np.float32]
"""Mono sound at the model's rate, (N,) from -1 to 1."""

WITHOUT_SPACES = frozenset(["zh", "ja", "th", "lo", "my", "yue"])
"""Languages, by Whisper's codes, that are written without spaces between words."""


class SpeechChunk(NamedTuple):
    """Sound that a model hears as a whole, and what is asked of it."""

    samples: Samples
    asked: Asked


def joined(parts: Sequence[tuple[float, ChunkTranscript]]) -> ChunkTranscript:
    """One transcript of several in a row, each with the second at which it begins.

    It is as doubtful as the most doubtful of those in which something was said, and of the language of the first of
    them. There is speech if there is in one.
    """
    if len(parts) == 1 and parts[0][0] == 0:
        return parts[0][1]
    transcripts = [transcript for _, transcript in parts]
    said = [transcript for transcript in transcripts if transcript.text] or transcripts
    language = said[0].language
    return ChunkTranscript(
        text=("" if language in WITHOUT_SPACES else " ").join(t.text for t in said),
        language=language,
        segments=tuple(_later(segment, start) for start, t in parts for segment in t.segments),
        no_speech_prob=_of_known(min, (t.no_speech_prob for t in transcripts)),
        avg_logprob=_of_known(min, (t.avg_logprob for t in said)),
        compression_ratio=_of_known(max, (t.compression_ratio for t in said)),
        temperature=_of_known(max, (t.temperature for t in said)),
    )


def seconds(value: float) -> float:
    """A time as it is told: whole milliseconds."""
    return round(value, 3)


def _later(segment: SpeechSegment, by: float) -> SpeechSegment:
    words = segment.words and tuple(
        replace(w, start=seconds(w.start + by), end=seconds(w.end + by)) for w in segment.words
    )
    return replace(segment, start=seconds(segment.start + by), end=seconds(segment.end + by), words=words)


def _of_known(choose: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
