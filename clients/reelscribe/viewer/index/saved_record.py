"""Reads a record from its line of annotations.jsonl: what is searched of it, for hits, or all that its page shows.

The index reads lines with the same requirements for what is searched, so that what it finds can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol, TypeVar

import msgspec

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.contract.source import content_name, shown_size, version_key


class SavedWord(msgspec.Struct, gc=False):
    """A word of a segment."""

    start: float
    end: float
    text: str


class Text(msgspec.Struct, gc=False):
    """A caption span or a segment."""

    start: float
    end: float
    text: str


class Segment(Text):
    """A segment with its words."""

    words: list[SavedWord] | None = None
    speaker: str | None = None
    flags: tuple[str, ...] = ()


class Clip(Text):
    """A clip with its description."""

    flags: tuple[str, ...] = ()


class _Timed(Protocol):
    @property
    def start(self) -> float: ...


_Said = TypeVar("_Said", bound=_Timed)


def in_order(said: Iterable[_Said]) -> list[_Said]:
    """Return what is said, with what it is in English, in the order of time, by which searches number it.

    Args:
        said: The segments of speech, and then those of its translation.
    """
    return sorted(said, key=lambda each: each.start)


def summary_texts(summary: SourceSummary | None) -> list[Text]:
    """Return what is searched of a summary: one text, at the beginning of the source.

    Args:
        summary: The summary; None if there is none.
    """
    return [Text(0.0, 0.0, summary.line)] if summary else []


class Texts(msgspec.Struct, dict=True):
    """The texts of a record that are searched."""

    saved_summary: SourceSummary | None = msgspec.field(default=None, name="summary")
    captions: list[Text] = msgspec.field(default_factory=list, name="caption_spans")
    clips: list[Clip] = []
    segments: list[Text] = []
    translations: list[Text] = []

    @cached_property
    def transcript(self) -> list[Text]:
        """What is said, and what it is in English, in the order of time."""
        return in_order([*self.segments, *self.translations])

    @property
    def summary(self) -> list[Text]:
        """The summary as a text; none if there is no summary."""
        return summary_texts(self.saved_summary)


class Stretch(msgspec.Struct, gc=False):
    """A shot, or a clip that failed."""

    start: float
    end: float
    error: str = ""


class FailedFrame(msgspec.Struct, gc=False):
    """A frame without a caption."""

    pts_seconds: float
    error: str


class FailedChunk(msgspec.Struct, gc=False):
    """A chunk of audio without a transcript."""

    start: float
    end: float
    error: str
    speaker: str | None = None


class SavedCaption(msgspec.Struct):
    """A captioned frame."""

    pts_seconds: float
    flags: tuple[str, ...] = ()


class Media(msgspec.Struct):
    """The video stream."""

    duration_seconds: float = 0.0
    width: int = 0
    height: int = 0
    rotation: int = 0
    pixel_aspect: float = 1.0
    frames: int = 0
    average_fps: float = 0.0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    video_codec: str = ""
    audio_codec: str | None = None
    other_streams: int | None = None

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height of a frame as players show it; as it is stored if the record says what cannot be."""
        try:
            return shown_size(self.width, self.height, self.rotation, self.pixel_aspect)
        except OverflowError:
            return self.width, self.height


class Audio(msgspec.Struct):
    """The audio stream."""

    codec: str = ""
    sample_rate: int = 0
    channels: int = 0
    start_seconds: float = 0.0
    media_start_seconds: float = 0.0
    duration_seconds: float = 0.0
    seconds: float = 0.0
    other_streams: int | None = None


class SourcePart(msgspec.Struct, gc=False):
    """The file of a record."""

    path: str
    absolute_path: str
    bytes: int | None = None
    sha256: str | None = None
    version: str | None = None
    missing: bool = False

    @property
    def content(self) -> str | None:
        """The name of what is kept of its content; None if it was never read."""
        if self.sha256 is None and self.version is not None and self.bytes is not None:
            return content_name(version_key(self.absolute_path, self.bytes, self.version))
        return self.sha256


class Error(msgspec.Struct, gc=False):
    """The error of a record."""

    type: str
    message: str


class Turn(msgspec.Struct, gc=False):
    """A stretch in which somebody speaks."""

    start: float
    end: float
    speaker: str


class SavedRecord(msgspec.Struct):
    """A record, as far as the page of its source shows it."""

    source: SourcePart
    error: Error | None = None
    media: Media | None = None
    audio: Audio | None = None
    summary: SourceSummary | None = None
    summary_settings: str | None = None
    shots: list[Stretch] = []
    shot_settings: str | None = None
    captions: list[SavedCaption] = []
    caption_spans: list[Text] = []
    caption_failures: list[FailedFrame] = []
    caption_settings: str | None = None
    clips: list[Clip] = []
    clip_failures: list[Stretch] = []
    clip_settings: str | None = None
    segments: list[Segment] = []
    translations: list[Segment] = []
    speech_failures: list[FailedChunk] = []
    speech_settings: str | None = None
    turns: list[Turn] = []
    speaker_settings: str | None = None

    @property
    def start_seconds(self) -> float:
        """The presentation time at which the source begins."""
        starts = [self.media.start_seconds] if self.media else []
        starts += [self.audio.media_start_seconds] if self.audio else []
        return min(starts, default=0.0)


_RECORD = msgspec.json.Decoder(SavedRecord)
_TEXTS = msgspec.json.Decoder(Texts)


class UnreadableRecord(Exception):
    """A line has not what docs/records.md describes; the message says what."""


def read_record(line: bytes) -> SavedRecord:
    """Read a line of annotations.jsonl.

    Args:
        line: The line.

    Raises:
        UnreadableRecord: It has not what docs/records.md describes.
    """
    record: SavedRecord = _decode(_RECORD, line)
    return record


def read_texts(line: bytes) -> Texts:
    """Read the texts of a line of annotations.jsonl.

    Args:
        line: The line.

    Raises:
        UnreadableRecord: It has not what docs/records.md describes.
    """
    texts: Texts = _decode(_TEXTS, line)
    return texts


def _decode(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError, OverflowError) as error:
        raise UnreadableRecord(str(error)) from None
