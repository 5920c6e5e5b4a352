"""The record of one source: a line of `annotations.jsonl`. docs/records.md describes every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from reelscribe.errors import ReelscribeError
from reelscribe.media import Caption, Source, VideoInfo


@dataclass(frozen=True)
class Model:
    """Which weights made the captions."""

    name: str
    revision: str


@dataclass
class Record:
    """All that is known of one source."""

    source: Source
    model: Model
    settings: Mapping[str, Any]
    status: Literal["ok", "error"] = "ok"
    media: VideoInfo | None = None
    captions: list[Caption] = field(default_factory=list)
    error: ReelscribeError | None = None

    def fail(self, error: ReelscribeError) -> None:
        """Record why there is not more."""
        self.status, self.error = "error", error

    def to_line(self) -> str:
        """One line of JSON without the line feed; the same record always gives the same line."""
        value: dict[str, Any] = {
            "source": asdict(self.source),
            "status": self.status,
            "media": asdict(self.media) if self.media else None,
            "captions": [asdict(caption) for caption in self.captions],
            "model": asdict(self.model),
            "settings": dict(self.settings),
        }
        if self.error:
            value["error"] = {"type": type(self.error).__name__, "message": str(self.error)}
        return json.dumps(value, ensure_ascii=False)
