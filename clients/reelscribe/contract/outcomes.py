"""Annotations of one source: captions of frames, descriptions of clips, a transcript, and the reasons for gaps in them.

The result of a frame is a `Caption` or a `Failure`, that of a clip a `DescribedClip` or a `ClipFailure`. The results of
audio are `Utterance`s, `Translation`s, `Silence`s and `SpeechFailure`s. All times are presentation times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from reelscribe.contract.clips import ClipStatus
from reelscribe.contract.source import Transition
from reelscribe.contract.speech import Word
from reelscribe.errors import NoAudio, NoPictures, printable, reason_of


class TimedText:
    """Base of all outcomes. As text, and in a notebook, each is shown as its time and its text.

    An outcome alone knows no file, so there is no picture.
    """

    @property
    def moment(self) -> tuple[float, str]:
        """The presentation time at which it begins, in seconds, and its text, or why it has none."""
        raise NotImplementedError

    def __str__(self) -> str:
        seconds, text = self.moment
        return f"{clock(seconds)} {printable(text)}"

    def _repr_html_(self) -> str:
        return timed_html(*self.moment)


def _of_speaker(speaker: str | None, text: str) -> str:
    """Return a text after the name of its speaker; the text alone if nobody knows who speaks."""
    return text if speaker is None else f"{speaker}: {text}"


def clock(seconds: float) -> str:
    """Return a presentation time as a clock shows it, such as "0:01:02.500"; times before 0 as 0."""
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{rest:06.3f}"


def timed_html(seconds: float, text: str) -> str:
    """Return a time and a text as HTML."""
    return f"<small>{clock(seconds)}</small> <bdi>{escape(printable(text))}</bdi>"


@dataclass(frozen=True)
class Caption(TimedText):
    """The caption of one frame."""

    frame_index: int
    """Number of the frame in the video, from 0."""
    pts_seconds: float
    """Presentation time of the frame, in seconds."""
    text: str
    """Text of the caption."""
    reused_from: int | None = None
    """Index of the nearly equal frame whose caption this is; None if the model captioned this frame itself."""
    avg_logprob: float | None = None
    """Average natural-log probability of the caption's tokens, at most 0; None if it is not known."""

    @property
    def moment(self) -> tuple[float, str]:
        """The time of the frame, in seconds, and the caption."""
        return self.pts_seconds, self.text


@dataclass(frozen=True)
class Failure(TimedText):
    """The reason why one frame has no caption."""

    frame_index: int
    """Number of the frame in the video, from 0."""
    pts_seconds: float
    """Presentation time of the frame, in seconds."""
    error: str
    """Message of the error."""

    @property
    def moment(self) -> tuple[float, str]:
        """The time of the frame, in seconds, and why it has no caption."""
        return self.pts_seconds, f"no caption: {self.error}"


FrameResult = Caption | Failure
"""The result of one frame."""


@dataclass(frozen=True)
class Segment(TimedText):
    """A stretch of time with one text, either a caption or speech."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    text: str

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and its text."""
        return self.start, self.text


@dataclass(frozen=True)
class _Spoken(TimedText):
    """What a segment of speech and that of a translation are."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    text: str
    """Text of the speech."""
    language: str | None
    """Code of the language that is spoken, such as "en"; None if the model does not say which one it knows."""
    no_speech_prob: float | None
    """Probability (0 to 1) that its chunk has no speech, as Whisper defines it; None if the model computes none."""
    words: tuple[Word, ...] | None = None
    """The words with their presentation times; None unless word times were requested."""
    avg_logprob: float | None = None
    """Average natural-log probability of its tokens, at most 0; None if it is not known."""
    speaker: str | None = None
    """Name of who speaks, such as "channel 1"; None if that is not known."""
    compression_ratio: float | None = None
    """Size of the text of its chunk divided by its compressed size, as Whisper defines it; high if the text repeats
    itself; None if the model computes none."""
    language_probability: float | None = None
    """Probability (0 to 1) of the language; None if it was given or that of the chunks around, or is not known."""

    @property
    def line(self) -> str:
        """The text, after the name of its speaker if that is known, such as "channel 1: Good morning."."""
        return _of_speaker(self.speaker, self.text)

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and what is spoken, after the name of its speaker if that is known."""
        return self.start, self.line


@dataclass(frozen=True)
class Utterance(_Spoken):
    """A segment of speech."""


@dataclass(frozen=True)
class Translation(_Spoken):
    """A segment of the English translation of speech, beside its utterances, whose times are others."""


@dataclass(frozen=True)
class Silence(TimedText):
    """A stretch of audio that is silent, so it was not sent to a model."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    speaker: str | None = None
    """Name of the speaker whose channel is silent; None if it is the audio of all."""

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and until when nobody speaks."""
        return self.start, _of_speaker(self.speaker, f"silence until {clock(self.end)}")


@dataclass(frozen=True)
class SpeechFailure(TimedText):
    """The reason why a stretch of audio has no transcript, or lacks what was asked about it in a second request."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    error: str
    """Message of the error."""
    speaker: str | None = None
    """Name of the speaker whose channel it is of; None if it is the audio of all."""

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and why it has no transcript."""
        return self.start, _of_speaker(self.speaker, f"no transcript: {self.error}")


@dataclass(frozen=True)
class Turn(TimedText):
    """A stretch in which one speaker speaks. Those of two speakers overlap where both speak."""

    start: float
    """Presentation time at which it starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    speaker: str
    """Name of the speaker, such as "speaker 1"."""

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and who speaks until when."""
        return self.start, f"{self.speaker} until {clock(self.end)}"


AudioResult = Utterance | Translation | Silence | SpeechFailure
"""The result of a stretch of audio."""


@dataclass(frozen=True)
class Shot:
    """A shot of a video."""

    start: float
    """Presentation time of its first frame, in seconds."""
    end: float
    """Presentation time at which its last frame disappears, in seconds."""
    start_frame: int
    """Index in the video of its first frame."""
    end_frame: int
    """Index of the first frame after it."""
    transition: Transition | None = None
    """How it follows the one before it; None if its detector does not say."""


@dataclass(frozen=True)
class DescribedClip(TimedText):
    """The description of one clip."""

    start: float
    """Presentation time at which the clip starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    frames: int
    """Number of frames that the model was shown."""
    text: str
    """Text that the model has generated."""
    status: ClipStatus
    """How the text ended."""
    tokens: int | None
    """Number of tokens of the text, with the one that ends it; None if the server does not say."""
    avg_logprob: float | None = None
    """Average natural-log probability of its tokens, at most 0; None if it is not known."""
    json: Any = None
    """The text as parsed JSON; None unless a JSON schema was given."""

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and the description."""
        return self.start, self.text


@dataclass(frozen=True)
class ClipFailure(TimedText):
    """The reason why one clip has no description."""

    start: float
    """Presentation time at which the clip starts, in seconds."""
    end: float
    """Presentation time at which it ends, in seconds."""
    error: str
    """Message of the error."""
    text: str | None = None
    """Text that the model has generated, if it does not fit the JSON schema; None for other errors."""

    @property
    def moment(self) -> tuple[float, str]:
        """When it starts, in seconds, and why it has no description."""
        return self.start, f"no description: {self.error}"


ClipResult = DescribedClip | ClipFailure
"""The result of one clip."""


@dataclass(frozen=True)
class SourceSummary:
    """The summary of a source, which a chat model has made of what was seen and said in it."""

    title: str
    text: str
    """The summary itself, a few sentences."""
    keywords: tuple[str, ...]

    @property
    def line(self) -> str:
        """All of it as one text."""
        return " · ".join(filter(None, (self.title, self.text, ", ".join(self.keywords))))


class SourceError(NamedTuple):
    """The error because of which a source failed, as in the ledger and in records."""

    type: str
    """Class name of the error, such as "MediaError"."""
    message: str

    @property
    def is_missing_stream(self) -> bool:
        """True if the source has no video or no audio stream at all, so that a retry cannot succeed."""
        return self.type in (NoPictures.__name__, NoAudio.__name__)


def source_error(error: Exception, path: str) -> SourceError:
    """Return the entry in the ledger and in records for what went wrong with a source; see `reason_of`."""
    return SourceError(type(error).__name__, reason_of(error, path))
