"""Reads `annotations.jsonl`, line by line, and checks the type of every value that is exported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from reelscribe.contract.outcomes import Caption, Segment, Utterance
from reelscribe.contract.speech import Word
from reelscribe.errors import UsageError, brief
from reelscribe.results.annotations import Model

Kind = Literal["captions", "transcript"]
"""The two kinds of annotations that a record may hold."""

T = TypeVar("T")


@dataclass(frozen=True)
class Captions:
    """The captions of a source."""

    model: Model
    frames: list[Caption]
    """The caption of each frame that has one, in the order of the frames."""
    segments: list[Segment]
    """Equal captions in a row as one segment, in the order of time."""


@dataclass(frozen=True)
class Transcript:
    """The transcript of a source."""

    model: Model
    utterances: list[Utterance]
    """In the order of time."""


@dataclass(frozen=True)
class AnnotatedSource:
    """The part of a record that is exported. It has captions, a transcript or both."""

    path: str
    """Path of the source as it was given to the run."""
    sha256: str | None
    """Digest of the source in hexadecimal digits; None if it could not be read."""
    start_seconds: float
    """Presentation time at which players start the file, in seconds: that of its first frame or audio."""
    captions: Captions | None
    """None if the run made no captions."""
    transcript: Transcript | None
    """None if the run made no transcripts."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of annotations that the record has, even if they are empty."""
        kinds: tuple[tuple[Kind, Any], ...] = (("captions", self.captions), ("transcript", self.transcript))
        return tuple(kind for kind, value in kinds if value is not None)


def read_lines(annotations: Path, parse: Callable[[bytes], T]) -> Iterator[T]:
    """Parse a file of records line by line, so that only one record is in memory at a time.

    Args:
        annotations: Path of annotations.jsonl.
        parse: Parses a line; raises KeyError, TypeError, ValueError or RecursionError if it is not a record.

    Yields:
        What `parse` returns for each line.

    Raises:
        UsageError: The file cannot be read, or a line is not a record.
    """
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
    """Parse only the path of the source, which is much faster than parsing a line of many megabytes.

    Args:
        line: A line of annotations.jsonl.

    Raises:
        KeyError, TypeError, ValueError or RecursionError: The line is not a record.
    """
    text, head = line.decode(), '{"source": '
    source = json.JSONDecoder().raw_decode(text, len(head))[0] if text.startswith(head) else json.loads(text)["source"]
    return _text(source["path"])


def annotated_source(line: bytes) -> AnnotatedSource:
    """Parse the part of a record that is exported.

    Args:
        line: A line of annotations.jsonl.

    Raises:
        KeyError, TypeError, ValueError or RecursionError: The line is not a record.
    """
    value = json.loads(line.decode())
    source = value["source"]
    starts = []
    for kind, media, start in (("captions", "media", "start_seconds"), ("transcript", "audio", "media_start_seconds")):
        if kind in value and value[media] is not None:
            starts.append(_seconds(value[media][start]))
    if "captions" not in value and "transcript" not in value:
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
        model=_model(value["model"]),
        frames=[
            Caption(
                _index(item["frame_index"]),
                _seconds(item["pts_seconds"]),
                _text(item["text"]),
                _index(item["reused_from"]) if "reused_from" in item else None,
            )
            for item in value["captions"]
        ],
        segments=[
            Segment(_seconds(item["start"]), _seconds(item["end"]), _text(item["text"])) for item in value["segments"]
        ],
    )


def _transcript(value: Any) -> Transcript:
    return Transcript(
        model=_model(value["speech_model"]),
        utterances=[
            Utterance(
                _seconds(item["start"]),
                _seconds(item["end"]),
                _text(item["text"]),
                language=None if item["language"] is None else _text(item["language"]),
                no_speech_prob=None if item["no_speech_prob"] is None else _probability(item["no_speech_prob"]),
                words=tuple(map(_word, item["words"])) if "words" in item else None,
            )
            for item in value["transcript"]
        ],
    )


def _model(value: Any) -> Model:
    return Model(_text(value["name"]), _text(value["revision"]))


def _word(value: Any) -> Word:
    return Word(_seconds(value["start"]), _seconds(value["end"]), _text(value["text"]))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, got {brief(value)}")
    return value


def _index(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"expected the number of a frame, got {brief(value)}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not -1e12 < value < 1e12:  # NaN fails every comparison
        raise TypeError(f"expected seconds, got {brief(value)}")
    return float(value)


def _probability(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise TypeError(f"expected a probability, got {brief(value)}")
    return float(value)
