"""Chunks of audio that run through a speech model, and the joining of their transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions

Samples = NDArray[np.float32]
"""Mono audio at the model's sample rate, (N,) values from -1 to 1."""

LANGUAGES_WITHOUT_SPACES = frozenset(["zh", "ja", "th", "lo", "my", "yue"])
"""Languages, by Whisper's codes, that are written without spaces between words."""


class Chunk(NamedTuple):
    """A stretch of audio that a model takes whole."""

    samples: Samples
    options: TranscriptionOptions
    """Language, task, and whether words get times."""


def join_transcripts(parts: Sequence[tuple[float, ChunkTranscript]]) -> ChunkTranscript:
    """Join the transcripts of consecutive chunks to one.

    Args:
        parts: For each chunk, in order, its start in seconds from the start of the whole, and its transcript.

    Returns:
        A transcript whose times count from the start of the whole. Of the chunks with text, it has the lowest average
        log-probability, the highest compression ratio and temperature, and the language of the first. Of all chunks, it
        has the lowest probability of no speech.
    """
    if len(parts) == 1 and parts[0][0] == 0:
        return parts[0][1]
    transcripts = [transcript for _, transcript in parts]
    with_text = [transcript for transcript in transcripts if transcript.text] or transcripts
    language = with_text[0].language
    return ChunkTranscript(
        text=("" if language in LANGUAGES_WITHOUT_SPACES else " ").join(t.text for t in with_text),
        language=language,
        segments=tuple(_shifted(segment, start) for start, t in parts for segment in t.segments),
        no_speech_prob=_of_known(min, (t.no_speech_prob for t in transcripts)),
        avg_logprob=_of_known(min, (t.avg_logprob for t in with_text)),
        compression_ratio=_of_known(max, (t.compression_ratio for t in with_text)),
        temperature=_of_known(max, (t.temperature for t in with_text)),
    )


def round_seconds(value: float) -> float:
    """Round a time in seconds to whole milliseconds, the precision of all times in transcripts."""
    return round(value, 3)


def _shifted(segment: SpeechSegment, by: float) -> SpeechSegment:
    """Return the segment `by` seconds later."""
    words = segment.words and tuple(
        replace(word, start=round_seconds(word.start + by), end=round_seconds(word.end + by)) for word in segment.words
    )
    start, end = round_seconds(segment.start + by), round_seconds(segment.end + by)
    return replace(segment, start=start, end=end, words=words)


def _of_known(choose: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    """`choose` among the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return choose(known) if known else None
