"""Reads `annotations.jsonl`: what is exported of each line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from reelscribe.errors import UsageError, brief

Kind = Literal["captions", "transcript"]
"""What a record may hold: captions of frames, a transcript of speech."""

T = TypeVar("T")


class FrameCaption(NamedTuple):
    """The caption of one frame."""

    frame_index: int
    pts_seconds: float
    text: str
    reused_from: int | None


class TimedText(NamedTuple):
    """A caption for as long as it stays the same, or a word; in seconds of presentation time."""

    start: float
    end: float
    text: str


class SpokenText(NamedTuple):
    """One segment of a transcript."""

    start: float
    end: float
    text: str
    language: str | None
    no_speech_prob: float | None
    words: list[TimedText] | None
    """Only where they were asked for."""


@dataclass(frozen=True)
class Captions:
    """What a captioner made of a source."""

    model_name: str
    model_revision: str
    frames: list[FrameCaption]
    segments: list[TimedText]


@dataclass(frozen=True)
class Transcript:
    """What a speech model made of a source."""

    model_name: str
    model_revision: str
    segments: list[SpokenText]


@dataclass(frozen=True)
class AnnotatedSource:
    """What is exported of a line. Captions, transcript or both are there."""

    path: str
    sha256: str | None
    start_seconds: float
    """Presentation time of the first frame or the first sound, whichever comes first: where players begin to count."""
    captions: Captions | None
    transcript: Transcript | None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What this record holds, even if it says nothing."""
        held: tuple[tuple[Kind, Any], ...] = (("captions", self.captions), ("transcript", self.transcript))
        return tuple(kind for kind, value in held if value is not None)


def each_line(annotations: Path, parse: Callable[[bytes], T]) -> Iterator[T]:
    """What `parse` makes of every line. Raises UsageError for a line that is no record, and for an unreadable file."""
    try:
        with annotations.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    parsed = parse(line)
                except (KeyError, TypeError, ValueError, RecursionError) as error:
                    raise UsageError(
                        f"export: {annotations}, line {number}: expected a record as docs/records.md describes it, got"
                        f" {brief(line)} ({type(error).__name__}: {error}); was it written by this version, to its end?"
                    ) from None
                yield parsed
                del parsed
    except OSError as error:
        raise UsageError(f"export: {annotations} cannot be read: {error.strerror or error}") from None


def source_path(line: bytes) -> str:
    """Its source alone: to parse a line of tens of MB takes most of a second."""
    text, head = line.decode(), '{"source": '
    source = json.JSONDecoder().raw_decode(text, len(head))[0] if text.startswith(head) else json.loads(text)["source"]
    return _text(source["path"])


def annotated_source(line: bytes) -> AnnotatedSource:
    """All that is exported of a line. Raises KeyError, TypeError or ValueError for what is no record."""
    value = json.loads(line.decode())
    source = value["source"]
    streams = {"captions": ("media", "start_seconds"), "transcript": ("audio", "media_start_seconds")}
    made = [streams[kind] for kind in streams if kind in value]
    starts = [_seconds(value[stream][start]) for stream, start in made if value[stream] is not None]
    if not made:
        raise ValueError("neither captions nor a transcript")
    return AnnotatedSource(
        path=_text(source["path"]),
        sha256=None if source["sha256"] is None else _text(source["sha256"]),
        start_seconds=min(starts, default=0.0),
        captions=_captions(value) if "captions" in value else None,
        transcript=_transcript(value) if "transcript" in value else None,
    )


def _captions(value: Any) -> Captions:
    return Captions(
        model_name=_text(value["model"]["name"]),
        model_revision=_text(value["model"]["revision"]),
        frames=[
            FrameCaption(
                _index(item["frame_index"]),
                _seconds(item["pts_seconds"]),
                _text(item["text"]),
                _index(item["reused_from"]) if "reused_from" in item else None,
            )
            for item in value["captions"]
        ],
        segments=[_timed(item) for item in value["segments"]],
    )


def _transcript(value: Any) -> Transcript:
    return Transcript(
        model_name=_text(value["speech_model"]["name"]),
        model_revision=_text(value["speech_model"]["revision"]),
        segments=[
            SpokenText(
                *_timed(item),
                language=None if item["language"] is None else _text(item["language"]),
                no_speech_prob=None if item["no_speech_prob"] is None else _probability(item["no_speech_prob"]),
                words=[_timed(word) for word in item["words"]] if "words" in item else None,
            )
            for item in value["transcript"]
        ],
    )


def _timed(item: Any) -> TimedText:
    return TimedText(_seconds(item["start"]), _seconds(item["end"]), _text(item["text"]))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, got {brief(value)}")
    return value


def _index(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"expected the number of a frame, got {brief(value)}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not -1e12 < value < 1e12:  # no comparison holds for NaN
        raise TypeError(f"expected seconds, got {brief(value)}")
    return float(value)


def _probability(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise TypeError(f"expected a probability, got {brief(value)}")
    return float(value)
