"""The record of one source: a line of `annotations.jsonl`. docs/records.md describes every field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from reelscribe.media import Caption, Failure, Segment, Source, VideoInfo


@dataclass(frozen=True)
class Model:
    """Which weights made the captions."""

    name: str
    revision: str


@dataclass(frozen=True)
class Record:
    """All that is known of one source. Its frames are read when they are asked for: there may be very many."""

    source: Source
    model: Model
    settings: Mapping[str, Any]
    media: VideoInfo | None = None
    end_seconds: float = 0.0
    """When the last chosen frame has been shown."""
    error: tuple[str, str] | None = None
    """Type and message."""
    frames: Callable[[], Iterable[Caption | Failure]] = field(default=tuple, repr=False)
    """What came of each chosen frame, in order."""

    @property
    def status(self) -> Literal["ok", "error"]:
        """Whether every chosen frame has a caption, and the file is whole."""
        return "error" if self.error else "ok"

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
        """One line of JSON without its line feed, bit by bit; the same record always gives the same line."""
        source = {**asdict(self.source), "sha256": self.source.sha256 or None}
        yield f'{{"source": {_json(source)}'
        yield f', "status": {_json(self.status)}'
        yield f', "media": {_json(asdict(self.media) if self.media else None)}'
        yield from _array("captions", map(_caption, self.captions()))
        yield from _array("segments", map(vars, self.segments()))
        yield from _array("failures", map(vars, self.failures()))
        yield f', "model": {_json(asdict(self.model))}'
        yield f', "settings": {_json(self.settings)}'
        if self.error:
            yield f', "error": {_json(dict(zip(("type", "message"), self.error, strict=True)))}'
        yield "}"


def _caption(caption: Caption) -> dict[str, Any]:
    return {name: value for name, value in vars(caption).items() if value is not None}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _array(name: str, values: Iterable[Any]) -> Iterator[str]:
    separator = ""
    yield f', "{name}": ['
    for value in values:
        yield separator + _json(value)
        separator = ", "
    yield "]"
