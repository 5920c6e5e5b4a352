"""The values of speech: what a speech model wants, and what it heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import ServerError
from reelscribe.identity import identity_of

SampleArray = NDArray[np.int16]
"""Mono sound, (N,) samples from -32768 to 32767."""


@dataclass(frozen=True)
class SpeechDescription:
    """What a speech model says of itself: `describe` of the handler."""

    name: str
    """Hub name or directory of the weights."""
    revision: str
    """Commit of the hub, or a digest of the weights' own bytes."""
    sample_rate: int
    """Samples a second that the model is made for."""
    chunk_seconds: float
    """The longest chunk that it hears as a whole."""
    languages: tuple[str, ...]
    """Codes, like "en", of those that can be asked for; none where a model knows but one."""
    tasks: tuple[str, ...]
    """Of "transcribe" and "translate"."""
    language: str | None
    """Taken where a request names none; None: it is detected."""
    word_times: bool
    """Whether it can tell when each word was spoken."""
    generation: Mapping[str, Any]
    """Everything else that decides what is heard: options of `generate`, thresholds, temperatures."""
    dtype: str
    """What the model computes in, by torch's name."""
    device_batch: int
    max_chunks: int
    """Per request."""
    workers: int = 1
    """That the model was given when it was loaded."""
    response_seconds: float = 120
    """That one request may compute before its worker is replaced."""
    stages: int = 1
    """Processes that the model is split over."""
    devices: tuple[str, ...] = ()
    """Where the worker that was asked computes, stage by stage: "cpu", or "cuda:2"."""

    @property
    def identity(self) -> str:
        """The same for models that would hear the same."""
        return identity_of(self.to_json())

    @classmethod
    def of_all(cls, servers: Sequence[SpeechDescription]) -> SpeechDescription:
        """The same model on several servers: all of their workers, and what each of them takes."""
        return replace(
            servers[0],
            workers=sum(server.workers for server in servers),
            max_chunks=min(server.max_chunks for server in servers),
        )

    def to_json(self) -> dict[str, Any]:
        """As the handler sends it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> SpeechDescription:
        """As a client reads it. Raises ServerError for anything else."""
        try:
            tuples = {name: tuple(value[name]) for name in ("languages", "tasks", "devices") if name in value}
            return cls(**{**value, **tuples})
        except (TypeError, KeyError) as error:
            raise ServerError(
                f"describe: expected the description of a speech handler, got {str(value)[:200]} ({error});"
                " is the model a reelscribe archive of this version, and one for speech?"
            ) from None


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
class Asked:
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


@dataclass(frozen=True)
class Utterance:
    """What was said from `start` to `end`, in seconds of presentation time."""

    start: float
    end: float
    text: str
    language: str | None
    no_speech_prob: float | None
    words: tuple[Word, ...] | None = None


@dataclass(frozen=True)
class Silence:
    """Sound in which nothing can be heard, and which no model was asked about; in seconds of presentation time."""

    start: float
    end: float


@dataclass(frozen=True)
class SpeechFailure:
    """Why nothing is known of some sound; in seconds of presentation time."""

    start: float
    end: float
    error: str


@dataclass(frozen=True)
class AudioInfo:
    """What the sound of a file is, as it is stored."""

    codec: str
    """FFmpeg's name of the decoder."""
    sample_rate: int
    channels: int
    start_seconds: float
    """Presentation time of the first sample."""
    media_start_seconds: float
    """Presentation time at which players begin with the file, pictures included."""
    duration_seconds: float
    """Of the file, that its container states, or FFmpeg's estimate."""
