"""What the exports take from a record: a source, and the annotations of each kind that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reelscribe.contract.outcomes import Caption, ClipFailure, Segment, Utterance
from reelscribe.contract.source import Section
from reelscribe.results.records import Kind, Model


@dataclass(frozen=True)
class FlaggedCaption(Caption):
    """The caption of one frame, and why it deserves a second look."""

    flags: tuple[str, ...] = ()
    """Reasons such as "repetition"."""


@dataclass(frozen=True)
class Captions:
    """The captions of a source."""

    model: Model
    frames: list[FlaggedCaption]
    """The caption of each frame that has one, in the order of the frames."""
    spans: list[Segment]
    """Equal captions in a row as one span, in the order of time."""


@dataclass(frozen=True)
class Transcript:
    """The transcript of a source."""

    model: Model
    utterances: list[Utterance]
    """In the order of time."""


@dataclass(frozen=True)
class ClipText:
    """The description of one clip."""

    start: float
    """Presentation time at which the clip starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    frames: int
    """Number of frames that the model was shown."""
    text: str
    """What the model says."""
    json: str | None
    """The answer as the text of JSON; None if no JSON schema was given."""
    status: str
    """Whether the model ended the text by itself: "complete", or "truncated"."""
    tokens: int
    """Number of tokens of the text."""
    avg_logprob: float | None
    """Average natural-log probability of its tokens, at most 0; None if it is not known."""
    flags: tuple[str, ...]
    """Why it deserves a second look, such as "repetition"."""


@dataclass(frozen=True)
class Clips:
    """The descriptions of the clips of a source."""

    model: Model
    described: list[ClipText]
    """The clips that have a description, in the order of time; they may overlap."""
    failures: list[ClipFailure]
    """The clips that have none, in the order of time."""


@dataclass(frozen=True)
class Shots:
    """The shots of a source."""

    detector: Model | None
    """What found them; None if they were only looked for to choose clips or frames."""
    shots: list[Section]
    """In the order of time."""


@dataclass(frozen=True)
class VideoStream:
    """The part of `media` that is exported."""

    duration_seconds: float
    width: int
    height: int
    frames: int
    codec: str


@dataclass(frozen=True)
class AudioStream:
    """The part of `audio` that is exported."""

    seconds: float
    codec: str


@dataclass(frozen=True)
class AnnotatedSource:
    """The part of a record that is exported."""

    path: str
    """Path of the source as it was given to the run."""
    absolute_path: str
    """Absolute path of the source."""
    bytes: int | None
    """Size in bytes; None if it could not be read."""
    sha256: str | None
    """Digest of the source in hexadecimal digits; None if it could not be read."""
    missing: bool
    """Whether the source was gone from the disk when the last run into the folder ended."""
    error: tuple[str, str] | None
    """Type and message of the error; None if the source has none."""
    start_seconds: float
    """Presentation time at which players start the file, in seconds: that of its first frame or audio."""
    video: VideoStream | None
    """None if the record has none."""
    audio: AudioStream | None
    """None if the record has none."""
    captions: Captions | None
    """None if no captions were made."""
    transcript: Transcript | None
    """None if no transcript was made."""
    clips: Clips | None
    """None if no clips were described."""
    shots: Shots | None
    """None if no shots were looked for, or some were looked for to choose clips or frames, and there are none."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of annotations that the record has, even if they are empty."""
        kinds: dict[Kind, Any] = {
            "captions": self.captions,
            "transcript": self.transcript,
            "clips": self.clips,
            "shots": self.shots,
        }
        return tuple(kind for kind, value in kinds.items() if value is not None)
