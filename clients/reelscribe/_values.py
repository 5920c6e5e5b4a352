"""The values that the functions of `_api` return: results and records, which `print` and notebooks show to people.

The results of a file are a list that knows the file, so that a notebook shows them with pictures. A record is a line of
annotations.jsonl as an object: docs/records.md describes its fields, which have the same names here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from reelscribe.contract.fields import known_fields
from reelscribe.contract.outcomes import (
    Caption,
    ClipFailure,
    DescribedClip,
    Failure,
    Segment,
    Shot,
    Silence,
    SourceSummary,
    SpeechFailure,
    Translation,
    Turn,
    Utterance,
)
from reelscribe.contract.source import AudioInfo, Source, VideoInfo
from reelscribe.errors import printable
from reelscribe.reporting.formatting import count
from reelscribe.viewer.notebook import Moment, strip

MOST_SHOWN = 5
"""Largest number of records, or of results of an array, that a notebook shows of a list."""

_TEXTS = (Caption, DescribedClip, Utterance, Translation)
_FAILURES = (Failure, ClipFailure, SpeechFailure)


class _Shown(Protocol):
    def _repr_html_(self) -> str: ...


T = TypeVar("T", bound=_Shown)


class Results(list[T]):
    """A list of results or of records. As text it has a line for each; a notebook shows it with pictures."""

    def __init__(self, results: Iterable[T], path: str | None = None) -> None:
        """Make the list.

        Args:
            results: What is in it, in order.
            path: Path of the file whose results these are; None for those of an array, and for records.
        """
        super().__init__(results)
        self.path = None if path is None else os.path.abspath(path)
        """Absolute path of the file; None if there is none."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        if self.path is None:
            shown = "".join(f"<div>{each._repr_html_()}</div>" for each in self[:MOST_SHOWN])
            more = len(self) - MOST_SHOWN
            return f"<div>{shown}{f'<div>and {more:,} more</div>' if more > 0 else ''}</div>"
        failed = [each for each in self if isinstance(each, _FAILURES)]
        notes = [f"{count(len(failed), 'failure')}; the first one: {failed[0]}"] if failed else []
        moments = (Moment(*each.moment) for each in self if isinstance(each, _TEXTS))
        return strip(Source(self.path), self.path, moments, notes=notes)


@dataclass(frozen=True)
class SavedSource:
    """The file of a record."""

    path: str
    bytes: int | None
    sha256: str | None
    missing: bool
    absolute_path: str
    version: str | None = None
    """The version that its store told, as an ETag; None for a file."""


@dataclass(frozen=True)
class SavedError:
    """The error of a source that failed."""

    type: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SavedAudio(AudioInfo):
    """The audio stream of a record."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class SavedCaption(Caption):
    """A caption of a record."""

    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SavedClip(DescribedClip):
    """A described clip of a record."""

    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SavedSegment(Utterance):
    """A segment of a record."""

    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedTranslation(Translation):
    """A segment of the translation of a record."""

    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedRecord:
    """A record: a line of annotations.jsonl as an object, with the fields that docs/records.md describes."""

    source: SavedSource
    status: Literal["ok", "error"]
    error: SavedError | None
    media: VideoInfo | None
    audio: SavedAudio | None
    summary: SourceSummary | None
    summary_settings: str | None
    shots: tuple[Shot, ...]
    shot_settings: str | None
    captions: tuple[SavedCaption, ...]
    caption_spans: tuple[Segment, ...]
    caption_failures: tuple[Failure, ...]
    caption_settings: str | None
    clips: tuple[SavedClip, ...]
    clip_failures: tuple[ClipFailure, ...]
    clip_settings: str | None
    segments: tuple[SavedSegment, ...]
    silences: tuple[Silence, ...]
    speech_failures: tuple[SpeechFailure, ...]
    speech_settings: str | None
    turns: tuple[Turn, ...] = ()
    """Who speaks when; empty unless speakers were told apart."""
    speaker_settings: str | None = None
    translations: tuple[SavedTranslation, ...] | None = None
    """What is said in English; None unless a translation was asked for beside the transcript."""
    extra: dict[str, Any] | None = None
    """What a list of sources said of it besides its name; None if no list did."""
    _file: str = field(default="", compare=False, repr=False)
    _folder: str | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_line(cls, line: bytes, file: str = "", folder: str | None = None) -> SavedRecord:
        """Read a line of annotations.jsonl.

        Args:
            line: The line.
            file: Absolute path of the source, in which bytes that are not UTF-8 are as Python keeps them.
            folder: Output folder of the run, whose thumbnails a notebook shows; None if it is gone.

        Raises:
            msgspec.MsgspecError: It is no such line.
        """
        return replace(_LINE.decode(line), _file=file, _folder=folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON: what `json.loads` makes of its line."""
        fields_of_line = replace(self, _file="", _folder=None)
        value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields_of_line))
        for name in ("media", "audio"):
            value[name] = value[name] and known_fields(value[name].items())
        for name in ("segments", "translations", "silences", "speech_failures"):
            value[name] = value[name] and [known_fields(each.items()) for each in value[name]]
        for segment in (*value["segments"], *(value["translations"] or ())):
            segment["words"] = segment["words"] and [known_fields(word.items()) for word in segment["words"]]
        absent = {"_file", "_folder"}
        absent |= set() if self.speaker_settings else {"turns", "speaker_settings"}
        absent |= {"translations"} if self.translations is None else set()
        return {name: each for name, each in value.items() if name not in absent}

    def __str__(self) -> str:
        parts = [f"{self.error.type}: {self.error.message}"] if self.error else []
        made = (
            (self.caption_settings, self.captions, "caption"),
            (self.clip_settings, self.clips, "clip"),
            (self.shot_settings, self.shots, "shot"),
            (self.speech_settings, self.segments, "segment"),
            (self.speaker_settings, self.turns, "turn"),
        )
        parts += [count(len(results), noun) for settings, results, noun in made if settings]
        return printable(f"{self.source.path}: {', '.join(parts)}")

    def _repr_html_(self) -> str:
        source = Source(self.source.path, self.source.bytes, self.source.sha256 or "")
        notes = [f"{self.error.type}: {self.error.message}"] if self.error else []
        folder = None if self._folder is None else Path(self._folder)
        return strip(source, self._file or self.source.absolute_path, self._moments(), folder=folder, notes=notes)

    def _moments(self) -> Iterator[Moment]:
        """Yield the captions, or else the descriptions of clips, or else what is said."""
        results = self.captions or self.clips or self.segments
        return (Moment(*each.moment) for each in results)


_LINE = msgspec.json.Decoder(SavedRecord)
