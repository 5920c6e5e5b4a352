"""The chosen frames of a video, from a decode process to its parent, part by part.

After the order `{"frames": {"task", "spans", "frames_per_batch", "reuse"}}` the process says::

    {"opened": {"info", "frame", "chosen", "end_seconds", "cut"}}       once, if it is a video
    {"part": {"first", "stop", "slot", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor"}}

A part accounts for the chosen frames from ordinal `first` to before `stop`: those that lie in its slot, those that are
nearly equal to one before them (frame index, presentation time, frame index of that one), and those that cannot be
decoded (frame index, presentation time).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import Span, VideoInfo
from reelscribe.decode.reuse import Reuse
from reelscribe.decode.video import Library, Video, VideoTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.slots import DecodedBatch, Slots, items_per_request
from reelscribe.errors import MediaError

MOST_ORDINALS = 1024
"""Of one part: a still picture of hours is saved, and told of, in pieces."""

LIBRARIES: tuple[Library, ...] = ("av", "av", "decord")
"""That are tried while processes die or hang over a file: perhaps it was not the file, and then, a different build of
FFmpeg."""


@dataclass(frozen=True)
class OpenedVideo:
    """What is known of a video before any frame is decoded."""

    info: VideoInfo
    input_size: InputSize
    """As its frames are sent."""
    chosen: int
    """How many frames."""
    end_seconds: float
    """When the last of them has been shown."""
    cut: str | None
    """Why the file is not whole."""


@dataclass(frozen=True, kw_only=True)
class DecodedFrameBatch(DecodedBatch):
    """The chosen frames of a video from ordinal `first` to before `stop`.

    `anchor` is the index of the last frame up to its end that is to be captioned.
    """

    frames: FrameArray
    """Those to be captioned, (N, H, W, 3); they are gone after `release`. N may be 0."""
    frame_indices: list[int]
    pts_seconds: list[float]
    reused: list[tuple[int, float, int]]
    """Frame index and presentation time of those that are nearly equal to a captioned one, and that one's index."""
    undecodable: list[tuple[int, float]]
    """Frame index and presentation time."""


@dataclass(frozen=True)
class FrameReading:
    """What a decode process is asked for of a video, and what its answers mean."""

    task: VideoTask
    frames_per_batch: int
    reuse: bool = False

    def attempts(self) -> Sequence[FrameReading]:
        """How it is tried while processes die or hang over it."""
        return [replace(self, task=replace(self.task, library=library)) for library in LIBRARIES]

    def order(self, spans: Sequence[Span]) -> dict[str, Any]:
        """For these of the chosen frames."""
        spans_json = [asdict(span) for span in spans]
        return {"frames": {**vars(self), "task": self.task.to_json(), "spans": spans_json}}

    def opened(self, answer: dict[str, Any]) -> OpenedVideo:
        """What is known of the video."""
        return OpenedVideo(
            **{**answer, "info": VideoInfo(**answer["info"]), "input_size": InputSize(**answer["input_size"])}
        )

    def part(self, answer: dict[str, Any], opened: OpenedVideo, slots: Slots) -> DecodedFrameBatch:
        """One of its parts."""
        shape = (len(answer["frame_indices"]), opened.input_size.height, opened.input_size.width, 3)
        rows = {name: [tuple(row) for row in answer[name]] for name in ("reused", "undecodable")}
        frames = slots.array(answer["slot"] or 0, shape, np.uint8)
        return DecodedFrameBatch(**{**answer, **rows}, frames=frames, slots=slots)


def feed(orders: WorkerChannel, task: Any, spans: list[Any], frames_per_batch: int, reuse: bool) -> int:
    """Follow the order; returns how many frames were decoded. Raises MediaError."""
    with Video(VideoTask.from_json(task), orders.heartbeat) as video:
        chosen = len(video.chosen)
        orders.say(
            opened={
                "info": asdict(video.info),
                "input_size": asdict(video.input_size),
                "chosen": chosen,
                "end_seconds": video.end_seconds,
                "cut": video.why_incomplete,
            }
        )
        most = items_per_request(orders.slot_bytes, video.input_size.nbytes, frames_per_batch)
        for span in [Span(**span) for span in spans]:
            _Feed(orders, video, most, reuse).run(span, chosen if span.stop is None else span.stop)
        return video.decoded


@dataclass
class _Part:
    """A part that is being made; its fields are those of the answer."""

    first: int
    stop: int
    anchor: int | None
    slot: int | None = None
    frame_indices: list[int] = field(default_factory=list)
    pts_seconds: list[float] = field(default_factory=list)
    reused: list[tuple[int, float, int | None]] = field(default_factory=list)
    undecodable: list[tuple[int, float]] = field(default_factory=list)


class _Feed:
    """One span of a video."""

    def __init__(self, orders: WorkerChannel, video: Video, most: int, reuse: bool) -> None:
        self._orders, self._video, self._most, self._reuse = orders, video, most, reuse

    def run(self, span: Span, stop: int) -> None:
        last = self._last_sent(span)
        part = _Part(span.first, span.first, span.anchor)
        try:
            for chosen in self._video.frames(range(span.first, stop)):
                self._orders.heartbeat()
                if chosen.image is None:
                    part.undecodable.append((chosen.frame_index, chosen.pts_seconds))
                elif self._reuse and last.nearly_equal(chosen.image):
                    part.reused.append((chosen.frame_index, chosen.pts_seconds, part.anchor))
                else:
                    last.remember(chosen.image)
                    self._put(part, chosen.image)
                    part.frame_indices.append(chosen.frame_index)
                    part.pts_seconds.append(chosen.pts_seconds)
                    part.anchor = chosen.frame_index
                part.stop = chosen.ordinal + 1
                if len(part.frame_indices) == self._most or part.stop - part.first == MOST_ORDINALS:
                    part = self._hand_over(part)
        except MediaError:
            self._hand_over(part)  # what came before it
            raise
        self._hand_over(part)

    def _last_sent(self, span: Span) -> Reuse:
        last = Reuse()
        if self._reuse and span.anchor is not None:
            at = bisect_left(self._video.chosen, span.anchor)
            for chosen in self._video.frames(range(at, at + 1)):
                if chosen.image is not None:
                    last.remember(chosen.image)
        return last

    def _put(self, part: _Part, image: FrameArray) -> None:
        if part.slot is None:
            part.slot = self._orders.take_slot()
        room = self._orders.array(part.slot, (self._most, *image.shape), np.uint8)
        room[len(part.frame_indices)] = image

    def _hand_over(self, part: _Part) -> _Part:
        if part.stop > part.first:
            self._orders.say(part=vars(part))
        return _Part(part.stop, part.stop, part.anchor)
