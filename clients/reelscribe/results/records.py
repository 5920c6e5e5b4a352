"""The record of one source: a line of `annotations.jsonl`. docs/records.md describes every field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from reelscribe.contract.annotations import Caption, Failure, Segment, Silence, SpeechFailure, Utterance
from reelscribe.contract.source import AudioInfo, Source, VideoInfo


class SourceError(NamedTuple):
    """Why a source, or one half of its record, failed."""

    type: str
    message: str


MISSING = ("NoPictures", "NoSound")
"""Types of errors that say what a source does not have: another try would find it no more."""


@dataclass(frozen=True)
class Model:
    """Which weights were asked."""

    name: str
    revision: str


@dataclass(frozen=True)
class CaptionResult:
    """What a captioner said of a source. Its frames are read when they are asked for: there may be very many."""

    model: Model
    settings: Mapping[str, Any]
    media: VideoInfo | None = None
    end_seconds: float = 0.0
    """When the last chosen frame has been shown."""
    error: SourceError | None = None
    frames: Callable[[], Iterable[Caption | Failure]] = field(default=tuple, repr=False)
    """What came of each chosen frame, in order."""

    def captions(self) -> Iterator[Caption]:
        """In order of their frames."""
        return (frame for frame in self.frames() if isinstance(frame, Caption))

    def failures(self) -> Iterator[Failure]:
        """In order of their frames."""
        return (frame for frame in self.frames() if isinstance(frame, Failure))

    def segments(self) -> Iterator[Segment]:
        """Equal captions in a row as one: from its first frame to the next other one, or to the end."""
        start, text = 0.0, ""
        for frame in self.frames():
            new = frame.text if isinstance(frame, Caption) else ""
            if new != text:
                if text:
                    yield Segment(start, frame.pts_seconds, text)
                start, text = frame.pts_seconds, new
        if text:
            yield Segment(start, max(start, self.end_seconds), text)

    def pieces(self) -> Iterator[str]:
        """Its fields, bit by bit."""
        yield f', "media": {_json(asdict(self.media) if self.media else None)}'
        yield from _array("captions", map(_given, self.captions()))
        yield from _array("segments", map(vars, self.segments()))
        yield from _array("failures", map(vars, self.failures()))
        yield f', "model": {_json(asdict(self.model))}'
        yield f', "settings": {_json(self.settings)}'


@dataclass(frozen=True)
class TranscriptResult:
    """What a speech model heard of a source. Its words are read when they are asked for: there may be very many."""

    model: Model
    settings: Mapping[str, Any]
    audio: AudioInfo | None = None
    seconds: float = 0.0
    """Of sound that could be decoded, by its samples."""
    error: SourceError | None = None
    sound: Callable[[], Iterable[Utterance | Silence | SpeechFailure]] = field(default=tuple, repr=False)
    """What came of all of it, in order."""

    def transcript(self) -> Iterator[Utterance]:
        """What was said, in order."""
        return (what for what in self.sound() if isinstance(what, Utterance))

    def silences(self) -> Iterator[Silence]:
        """Sound that no model was asked about, in order."""
        return (what for what in self.sound() if isinstance(what, Silence))

    def failures(self) -> Iterator[SpeechFailure]:
        """Sound of which nothing is known, in order."""
        return (what for what in self.sound() if isinstance(what, SpeechFailure))

    def pieces(self) -> Iterator[str]:
        """Its fields, bit by bit."""
        audio = {**asdict(self.audio), "seconds": self.seconds} if self.audio else None
        yield f', "audio": {_json(audio)}'
        yield from _array("transcript", map(_utterance, self.transcript()))
        yield from _array("silences", map(vars, self.silences()))
        yield from _array("transcript_failures", map(vars, self.failures()))
        yield f', "speech_model": {_json(asdict(self.model))}'
        yield f', "speech_settings": {_json(self.settings)}'


@dataclass(frozen=True)
class Record:
    """All that is known of one source."""

    source: Source
    caption_result: CaptionResult | None = None
    """None where no captions were asked for."""
    transcript_result: TranscriptResult | None = None
    """None where no transcript was asked for."""

    @property
    def status(self) -> Literal["ok", "error"]:
        """Whether all that was asked for is there, and the file is whole."""
        return "error" if self.error else "ok"

    @property
    def error(self) -> SourceError | None:
        """Of pictures or sound. One of the two may be missing, and a transcript may be of a video without sound."""
        halves = [half.error for half in (self.caption_result, self.transcript_result) if half and half.error]
        errors = [error for error in halves if error[0] not in MISSING]
        if not errors and (len(halves) == 2 or not self.transcript_result):
            errors = halves
        if len(set(errors)) < 2:
            return errors[0] if errors else None
        (kind, pictures), (_, sound) = errors
        return SourceError(kind, f"pictures: {pictures}; sound: {sound}")

    def pieces(self) -> Iterator[str]:
        """One line of JSON without its line feed, bit by bit; the same record always gives the same line."""
        source = {**asdict(self.source), "sha256": self.source.sha256 or None}
        yield f'{{"source": {_json(source)}'
        yield f', "status": {_json(self.status)}'
        for half in (self.caption_result, self.transcript_result):
            if half:
                yield from half.pieces()
        if self.error:
            yield f', "error": {_json(dict(zip(("type", "message"), self.error, strict=True)))}'
        yield "}"


def _given(value: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(value).items() if value is not None}


def _utterance(utterance: Utterance) -> dict[str, Any]:
    value = dict(vars(utterance))
    words = value.pop("words")
    return value if words is None else {**value, "words": [*map(vars, words)]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _array(name: str, values: Iterable[Any]) -> Iterator[str]:
    separator = ""
    yield f', "{name}": ['
    for value in values:
        yield separator + _json(value)
        separator = ", "
    yield "]"
