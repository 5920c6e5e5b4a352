"""Audio samples as arrays, what is asked of a speech model, and its answer for one chunk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SampleArray = NDArray[np.int16]
"""Mono sound, (N,) samples from -32768 to 32767."""


@dataclass(frozen=True)
class Word:
    """One word, in seconds from the start of its chunk, or of presentation time in a record."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class SpeechSegment:
    """Some words in a row, in seconds from the start of their chunk."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] | None = None
    """Only where they were asked for."""


@dataclass(frozen=True)
class ChunkTranscript:
    """What was heard in one chunk."""

    text: str
    """All of it; empty where it was taken for no speech."""
    language: str | None
    """Given or detected, by its code; None where a model knows but one."""
    segments: tuple[SpeechSegment, ...]
    no_speech_prob: float | None = None
    """As Whisper defines it, and the next three; None where a model has no such thing."""
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    temperature: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As the handler sends it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> ChunkTranscript:
        """As a client reads it. Raises TypeError, KeyError or ValueError for anything else."""
        segments = tuple(_segment(**segment) for segment in value["segments"])
        if not isinstance(value["text"], str):
            raise TypeError(f"text: {type(value['text']).__name__}")
        return cls(**{**value, "segments": segments})


def _segment(start: float, end: float, text: str, words: list[Any] | None) -> SpeechSegment:
    times = None if words is None else tuple(Word(float(w["start"]), float(w["end"]), str(w["text"])) for w in words)
    return SpeechSegment(float(start), float(end), str(text), times)


@dataclass(frozen=True)
class TranscriptionOptions:
    """What is asked of a speech model; None leaves it to the model's own settings."""

    language: str | None = None
    """Its code, like "en"; None: the model's own setting, or it is detected."""
    task: str = "transcribe"
    """Or "translate": into English."""
    word_times: bool = False
    """Whether the time of each word is wanted."""

    def to_json(self) -> dict[str, Any]:
        """As a request has it."""
        return {name: value for name, value in asdict(self).items() if value is not None}
