"""The chosen frames of a video, on their way from a decode process to its parent.

The parent sends a `ReadFrames` command with the spans that are missing, and the process runs `feed`, which replies::

    {"opened": {"info", "input_size", "chosen", "end_seconds", "cut"}}
    {"batch": {"first", "stop", "slot", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor"}}
    ...

The replies become an `OpenedVideo` and `DecodedFrameBatch`es. A batch accounts for every chosen frame from ordinal
`first` to before `stop`: it lies in the slot, is nearly equal to an earlier frame, or cannot be decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import Span, VideoInfo
from reelscribe.decode.reuse import Reuse
from reelscribe.decode.video import ChosenFrame, Library, Video, VideoTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.slots import DecodedBatch, Slots, items_per_request
from reelscribe.errors import MediaError

LIBRARIES: tuple[Library, ...] = ("av", "av", "decord")
"""What each attempt at a file reads it with. A process that died or hung is retried the same way, as the file need not
be the reason; then another build of FFmpeg tries it.
"""

MOST_ORDINALS = 1024
"""Largest number of chosen frames in a batch, sent or not, so that hours of a still picture are saved step by step."""


@dataclass(frozen=True)
class OpenedVideo:
    """What is known of a video before any frame is decoded."""

    info: VideoInfo
    input_size: InputSize
    """Size that its frames are sent in."""
    chosen: int
    """Number of chosen frames."""
    end_seconds: float
    """Presentation time at which the last chosen frame has been shown."""
    cut: str | None
    """Why the file is incomplete; None if it is whole."""


@dataclass(frozen=True, kw_only=True)
class DecodedFrameBatch(DecodedBatch):
    """The chosen frames of a video from ordinal `first` to before `stop`.

    `anchor` is the index of the last frame before `stop` that is to be captioned, with which the next frame is compared
    for reuse.
    """

    frames: FrameArray
    """The frames to caption, (N, height, width, 3) uint8 RGB, valid until `release`; N may be 0."""
    frame_indices: list[int]
    """Index in the video of each of the N frames."""
    pts_seconds: list[float]
    """Presentation time of each of the N frames, in seconds."""
    reused: list[tuple[int, float, int]]
    """For frames that reuse a caption: frame index, presentation time, and index of the frame that has the caption."""
    undecodable: list[tuple[int, float]]
    """Frame index and presentation time of frames that cannot be decoded."""


@dataclass(frozen=True)
class ReadFrames:
    """The command to read a video's chosen frames, and how its replies are parsed."""

    task: VideoTask
    frames_per_batch: int
    """Largest number of frames to caption in a batch."""
    reuse: bool = False
    """Whether frames that are nearly equal to the last captioned one reuse its caption."""

    def attempts(self) -> Sequence[Self]:
        """Return the commands to try in turn while processes die or hang."""
        return [replace(self, task=replace(self.task, library=library)) for library in LIBRARIES]

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the command for these spans of the chosen frames."""
        spans_json = [asdict(span) for span in spans]
        return {"read_frames": {**vars(self), "task": self.task.to_json(), "spans": spans_json}}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedVideo:
        """Read an "opened" reply."""
        info, input_size = VideoInfo(**reply["info"]), InputSize(**reply["input_size"])
        return OpenedVideo(**{**reply, "info": info, "input_size": input_size})

    def parse_batch(self, reply: dict[str, Any], opened: OpenedVideo, slots: Slots) -> DecodedFrameBatch:
        """Read a "batch" reply; its frames are a view on their slot."""
        shape = (len(reply["frame_indices"]), opened.input_size.height, opened.input_size.width, 3)
        frames = slots.array(reply["slot"] or 0, shape, np.uint8)
        rows = {name: [tuple(row) for row in reply[name]] for name in ("reused", "undecodable")}
        return DecodedFrameBatch(**{**reply, **rows}, frames=frames, slots=slots)


def feed(channel: WorkerChannel, task: Any, spans: list[Any], frames_per_batch: int, reuse: bool) -> int:
    """Carry out the command in the decode process; the arguments are its fields.

    Returns:
        Number of frames that were decoded, including those that only lay before a chosen one.

    Raises:
        MediaError: The file cannot be read, or not to its end. Everything before is sent.
    """
    with Video(VideoTask.from_json(task), channel.heartbeat) as video:
        channel.send(
            opened={
                "info": asdict(video.info),
                "input_size": asdict(video.input_size),
                "chosen": len(video.chosen),
                "end_seconds": video.end_seconds,
                "cut": video.why_incomplete,
            }
        )
        most = items_per_request(channel.slot_bytes, video.input_size.nbytes, frames_per_batch)
        for span in [Span(**span) for span in spans]:
            _FrameFeed(channel, video, span, most, reuse).run()
        return video.decoded


@dataclass
class _Batch:
    """The batch under construction, with the fields of its reply."""

    first: int
    stop: int
    anchor: int | None
    slot: int | None = None
    frame_indices: list[int] = field(default_factory=list)
    pts_seconds: list[float] = field(default_factory=list)
    reused: list[tuple[int, float, int | None]] = field(default_factory=list)
    undecodable: list[tuple[int, float]] = field(default_factory=list)


class _FrameFeed:
    """Sends one span of a video in batches of up to `most` frames to caption."""

    def __init__(self, channel: WorkerChannel, video: Video, span: Span, most: int, reuse: bool) -> None:
        self._channel, self._video, self._span, self._most, self._reuse = channel, video, span, most, reuse
        self._batch = _Batch(span.first, span.first, span.anchor)
        self._last_sent = Reuse()

    def run(self) -> None:
        if self._reuse:
            self._remember_anchor()
        stop = len(self._video.chosen) if self._span.stop is None else self._span.stop
        try:
            for frame in self._video.frames(range(self._span.first, stop)):
                self._channel.heartbeat()
                self._add(frame)
        except MediaError:
            self._send_batch()  # what came before the damage
            raise
        self._send_batch()

    def _remember_anchor(self) -> None:
        """Decode the last captioned frame before the span, which the first frames are compared with."""
        if self._span.anchor is not None:
            at = bisect_left(self._video.chosen, self._span.anchor)
            for frame in self._video.frames(range(at, at + 1)):
                if frame.image is not None:
                    self._last_sent.remember(frame.image)

    def _add(self, frame: ChosenFrame) -> None:
        batch = self._batch
        if frame.image is None:
            batch.undecodable.append((frame.frame_index, frame.pts_seconds))
        elif self._reuse and self._last_sent.nearly_equal(frame.image):
            batch.reused.append((frame.frame_index, frame.pts_seconds, batch.anchor))
        else:
            self._last_sent.remember(frame.image)
            self._write(frame.image)
            batch.frame_indices.append(frame.frame_index)
            batch.pts_seconds.append(frame.pts_seconds)
            batch.anchor = frame.frame_index
        batch.stop = frame.ordinal + 1
        if len(batch.frame_indices) == self._most or batch.stop - batch.first == MOST_ORDINALS:
            self._send_batch()

    def _write(self, image: FrameArray) -> None:
        batch = self._batch
        if batch.slot is None:
            batch.slot = self._channel.take_slot()
        frames = self._channel.array(batch.slot, (self._most, *image.shape), np.uint8)
        frames[len(batch.frame_indices)] = image

    def _send_batch(self) -> None:
        """Send the batch, unless it is empty, and begin the next one."""
        batch = self._batch
        if batch.stop > batch.first:
            self._channel.send(batch=vars(batch))
        self._batch = _Batch(batch.stop, batch.stop, batch.anchor)
