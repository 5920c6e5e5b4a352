"""The annotations of a source: captions of its frames, and a transcript of its audio.

Every time is a presentation time in seconds: the time at which a player shows a frame or plays a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

from reelscribe.contract.speech import Word


@dataclass(frozen=True)
class Caption:
    """The caption of one frame."""

    frame_index: int
    """Number of the frame in the video, from 0."""
    pts_seconds: float
    """Presentation time of the frame, in seconds."""
    text: str
    """What the model says about the frame."""
    reused_from: int | None = None
    """Index of the nearly equal frame whose caption this is; None if this frame itself was captioned."""


@dataclass(frozen=True)
class Failure:
    """The reason why a frame has no caption."""

    frame_index: int
    """Number of the frame in the video, from 0."""
    pts_seconds: float
    """Presentation time of the frame, in seconds."""
    error: str
    """Message of the error."""


@dataclass(frozen=True)
class Segment:
    """A stretch of time in which the caption stays the same."""

    start: float
    """Start in seconds of presentation time."""
    end: float
    """End in seconds of presentation time."""
    text: str
    """The caption."""


@dataclass(frozen=True)
class Utterance:
    """A stretch of time with the text that is spoken in it."""

    start: float
    """Start in seconds of presentation time."""
    end: float
    """End in seconds of presentation time."""
    text: str
    """What is spoken."""
    language: str | None
    """Code of the language, such as "en"; None if the model knows a single language."""
    no_speech_prob: float | None
    """Probability (0 to 1) that the chunk holds no speech, as Whisper defines it; None if the model gives none."""
    words: tuple[Word, ...] | None = None
    """The words with their times; None if the request did not ask for them."""


@dataclass(frozen=True)
class Silence:
    """A stretch of silent audio, which is not sent to a model."""

    start: float
    """Start in seconds of presentation time."""
    end: float
    """End in seconds of presentation time."""


@dataclass(frozen=True)
class SpeechFailure:
    """The reason why a stretch of audio has no transcript."""

    start: float
    """Start in seconds of presentation time."""
    end: float
    """End in seconds of presentation time."""
    error: str
    """Message of the error."""
