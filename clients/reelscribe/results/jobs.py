"""Jobs: what the ledger knows about the annotation of one content by one model with its settings.

A content is the bytes of a file, whatever its path; its SHA-256 identifies it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from reelscribe.contract.fields import check_types, known_fields, read_count, read_list, read_number, read_text
from reelscribe.contract.outcomes import SourceError, Turn
from reelscribe.contract.source import AudioInfo, Section, Span, VideoInfo


@dataclass(frozen=True)
class SavedVideo:
    """A video that was opened, as the ledger keeps it."""

    info: VideoInfo
    end_seconds: float
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""
    why_incomplete: str | None
    """The reason why frames are missing from the file; None if it is complete."""
    shots: Sequence[Section] | None = None
    """The shots of the video; None if nobody has asked for them."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that the ledger keeps."""
        return {**vars(self), "info": self.info.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        saved = cls(
            VideoInfo.from_json(value["info"]),
            read_number("end_seconds", value["end_seconds"]),
            value["why_incomplete"],
            None if value["shots"] is None else [_section(*shot) for shot in value["shots"]],
        )
        check_types(saved)
        return saved


@dataclass(frozen=True)
class SavedAudio:
    """The audio of a source that was opened, as the ledger keeps it."""

    info: AudioInfo
    why_incomplete: str | None
    """The reason why audio is missing from the part of the file that was decoded; None if none is missing."""
    turns: Sequence[Turn] | None = None
    """Who speaks when, in the order of time; None unless that was asked for and is known."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that the ledger keeps, without turns if there are none."""
        value: dict[str, Any] = {"info": known_fields(vars(self.info).items()), "why_incomplete": self.why_incomplete}
        if self.turns is not None:
            value["turns"] = [(turn.start, turn.end, turn.speaker) for turn in self.turns]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        turns = value.get("turns")
        saved = cls(
            AudioInfo(**value["info"]),
            value["why_incomplete"],
            None if turns is None else [_turn(*turn) for turn in read_list("turns", turns)],
        )
        check_types(saved)
        check_types(saved.info)
        return saved


def _section(start_frame: int, end_frame: int, start_seconds: float, end_seconds: float) -> Section:
    return Section(
        read_count("start_frame", start_frame),
        read_count("end_frame", end_frame),
        read_number("start_seconds", start_seconds),
        read_number("end_seconds", end_seconds),
    )


def _turn(start: float, end: float, speaker: str) -> Turn:
    return Turn(read_number("start", start), read_number("end", end), read_text("speaker", speaker))


SavedSource = SavedVideo | SavedAudio


def saved_source_from_json(value: Mapping[str, Any]) -> SavedSource:
    """Read what `to_json` of either kind of source returned; only a video has `end_seconds`."""
    return SavedVideo.from_json(value) if "end_seconds" in value else SavedAudio.from_json(value)


@dataclass(frozen=True)
class Job:
    """The annotation of one content by one model with its settings, as far as the ledger has it."""

    id: int
    """Number of the job in the ledger."""
    opened: SavedSource | None
    """The description of the source; None until a run has opened it."""
    total: int | None
    """Number of its chosen frames or samples; None until it is known."""
    done: bool
    """True if nothing is left to do, because it went well or ended with an error."""
    error: SourceError | None
    """The error that the job ended with, also while it is tried again; None if it ended well or was never done."""
    missing: Sequence[Span]
    """The frames or samples that have no saved result yet, in order."""

    def is_settled(self, *, retry_failed: bool) -> bool:
        """Return whether a run leaves it as it is.

        Args:
            retry_failed: Whether the run tries again what has ended with an error.
        """
        return self.done and not (retry_failed and self.error and not self.error.is_missing_stream)


def job_from_row(
    row: tuple[int, str | None, int | None, int, str | None], saved: Iterable[tuple[int, int, int | None]]
) -> Job:
    """Return a job from a row of the ledger.

    Args:
        row: Number of the job; what is known about the source, as JSON; number of its chosen frames or samples; whether
            nothing is left to do; and the error that it ended with, as JSON.
        saved: First number, number after the last, and anchor of each saved batch, in order.
    """
    number, opened, total, done, error = row
    return Job(
        number,
        opened=None if opened is None else saved_source_from_json(json.loads(opened)),
        total=None if total is None else read_count("total", total),
        done=bool(done),
        error=source_error_from_json(error),
        missing=missing_spans(saved, total),
    )


def source_error_from_json(error: str | None) -> SourceError | None:
    """Read the error of a job or of a source from the JSON that the ledger keeps; None if there is none."""
    if error is None:
        return None
    kind, message = json.loads(error)
    return SourceError(read_text("type", kind), read_text("message", message))


def missing_spans(saved: Iterable[tuple[int, int, int | None]], total: int | None) -> list[Span]:
    """Find the frames or samples that no saved batch holds.

    Args:
        saved: First number, number after the last, and anchor of each saved batch, in order.
        total: Number of chosen frames or samples of the source; None if it is not known.

    Returns:
        The gaps between the batches and what follows the last batch, each with the anchor before it. The last span has
        no end if `total` is None.
    """
    spans, stop, anchor = list[Span](), 0, None
    for first, next_stop, next_anchor in saved:
        if read_count("first", first) > stop:
            spans.append(Span(stop, first, anchor))
        stop, anchor = read_count("stop", next_stop, first), next_anchor
    if total is None or stop < total:
        spans.append(Span(stop, total, anchor))
    return spans
