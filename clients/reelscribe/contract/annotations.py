"""What came of a source: captions of its frames, and a transcript of its audio."""

from __future__ import annotations

from dataclasses import dataclass

from reelscribe.contract.speech import Word


@dataclass(frozen=True)
class Caption:
    """The caption of one frame."""

    frame_index: int
    """Its number in the video, from 0."""
    pts_seconds: float
    """Its presentation time."""
    text: str
    reused_from: int | None = None
    """Index of the frame that was captioned in place of this one, which is nearly equal."""


@dataclass(frozen=True)
class Failure:
    """Why a frame has no caption."""

    frame_index: int
    pts_seconds: float
    error: str


@dataclass(frozen=True)
class Segment:
    """One caption for as long as it stays the same, in seconds of presentation time."""

    start: float
    end: float
    text: str


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
