"""The windows of a video that a shot model looks at: the command to read them, their batches, and how they are read.

A parent sends `ReadWindows` and parses the replies; the decode process executes the command with `feed`. A batch covers
every frame from number `first` to before `stop`: these are the middles of successive windows, which are in the slot.
A frame that cannot be decoded looks like the one before it in its window, or else the one after it. The replies are
those of `child_channel.py`, with::

    {"opened": {"info", "input_size", "chosen", "end_seconds", "why_incomplete"}}
    {"batch": {..., "edges", "undecodable"}}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.shots import WindowArray, Windowing
from reelscribe.contract.source import Span, VideoInfo
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from reelscribe.decode_pool.child_channel import ChildChannel, Feed, queue_opened
from reelscribe.decode_pool.commands import DecodedBatch, ReadCommand, Slots, items_per_request
from reelscribe.decode_pool.frames import OpenedVideo


@dataclass(frozen=True, kw_only=True)
class DecodedWindowBatch(DecodedBatch):
    """Windows whose middles are the frames of a video from number `first` to before `stop`."""

    windows: WindowArray
    """(N, T, height, width, 3) uint8 RGB, valid until `release`."""
    edges: list[float]
    """Presentation time of each of the frames from `first` to before `stop`, and that at which the last one disappears,
    in seconds."""
    undecodable: list[int]
    """Numbers of those of these frames that cannot be decoded."""

    @property
    def items(self) -> WindowArray:
        """Windows to send."""
        return self.windows

    @property
    def nbytes(self) -> int:
        """Size of the windows, in bytes."""
        return self.windows.nbytes

    def _copied(self) -> dict[str, Any]:
        return {"windows": self.windows.copy()}


@dataclass(frozen=True)
class ReadWindows(ReadCommand[OpenedVideo, DecodedWindowBatch]):
    """The command to read the windows of a video, and the parser of its replies."""

    task: VideoTask
    """How to read the frames: all of them, in the size of the windows."""
    windowing: Windowing
    """The windows."""
    windows_per_batch: int
    """Largest number of windows in a batch."""

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of frames to read, in ascending order."""
        command = {
            "task": self.task.to_json(),
            "windowing": self.windowing.to_json(),
            "windows_per_batch": self.windows_per_batch,
            "spans": [vars(span) for span in spans],
        }
        return {"read_windows": command}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedVideo:
        """Parse the content of an "opened" reply."""
        info, size = VideoInfo.from_json(reply["info"]), InputSize(**reply["input_size"])
        return OpenedVideo(**{**reply, "info": info, "input_size": size})

    def parse_batch(self, reply: dict[str, Any], opened: OpenedVideo, slots: Slots) -> DecodedWindowBatch:  # noqa: ARG002 - the command knows the size
        """Parse the content of a "batch" reply. Its windows are a view of the slot."""
        count = -(-(reply["stop"] - reply["first"]) // self.windowing.step)
        shape = (count, self.windowing.frames, self.windowing.height, self.windowing.width, 3)
        return DecodedWindowBatch(**reply, windows=slots.array(reply["slot"], shape, np.uint8), slots=slots)


def feed(channel: ChildChannel, task: Any, windowing: Any, windows_per_batch: int, spans: list[Any]) -> int:
    """Execute a `ReadWindows` command.

    Args:
        channel: Connection to the parent.
        task: JSON of the VideoTask.
        windowing: JSON of the Windowing.
        windows_per_batch: Largest number of windows in a batch.
        spans: JSON of the spans of frames to read, in ascending order; each begins where the middle of a window does.

    Returns:
        Number of frames that were decoded.

    Raises:
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    with Video(VideoTask.from_json(task), channel.heartbeat) as video:
        queue_opened(
            channel,
            video.file,
            info=video.info.to_json(),
            input_size=asdict(video.input_size),
            chosen=len(video.chosen),
            end_seconds=video.end_seconds,
            why_incomplete=video.why_incomplete,
        )
        size = Windowing.from_json(windowing)
        max_windows = items_per_request(channel.slot_bytes, size.nbytes, windows_per_batch)
        for span in [Span(**span) for span in spans]:
            windows = _WindowFeed(channel, video, size, max_windows, span.first)
            stop = len(video.chosen) if span.stop is None else span.stop
            windows.send_all(windows.read(stop), windows.add)
        return video.decoded


class _WindowFeed(Feed):
    """Sends the windows of a video in batches of up to `max_windows`."""

    def __init__(self, channel: ChildChannel, video: Video, windowing: Windowing, max_windows: int, first: int) -> None:
        super().__init__(channel, video.file, ("edges", "undecodable"), first)
        self._video, self._windowing, self._max_windows = video, windowing, max_windows

    def read(self, stop: int) -> Iterator[deque[ChosenFrame]]:
        """Yield the frames of each window whose middle begins before frame `stop`; each frame is decoded once."""
        total, step = len(self._video.chosen), self._windowing.step
        firsts = range(self.first, stop, step)
        if not firsts:
            return
        last = self._windowing.indices(firsts[-1], total)[-1]
        frames = self._video.frames(range(self._windowing.indices(self.first, total)[0], last + 1))
        window = deque[ChosenFrame]()
        for first in firsts:
            indices = self._windowing.indices(first, total)
            while window and window[0].ordinal < indices[0]:
                window.popleft()
            while not window or window[-1].ordinal < indices[-1]:
                self._channel.heartbeat()
                window.append(next(frames))
            yield window

    def add(self, window: deque[ChosenFrame]) -> None:
        """Add the next window, of these successive frames of the video."""
        total, first = len(self._video.chosen), self.stop
        images = _without_gaps([frame.image for frame in window], self._windowing)
        self.write(images[self._windowing.indices(first, total) - window[0].ordinal])
        self.stop = min(first + self._windowing.step, total)
        edges = self.lists["edges"]
        edges += [self._edge(index) for index in range(first + len(edges[:1]), self.stop + 1)]
        self.lists["undecodable"] += [
            frame.ordinal for frame in window if frame.image is None and first <= frame.ordinal < self.stop
        ]
        if self.stop - self.first > (self._max_windows - 1) * self._windowing.step:
            self.end(is_full=True)

    def _edge(self, index: int) -> float:
        """Return when a frame appears, or the frame before it disappears if it is the last one."""
        return self._video.seconds(index) if index < len(self._video.times) else self._video.info.end_seconds


def _without_gaps(images: Sequence[FrameArray | None], windowing: Windowing) -> WindowArray:
    """Return an image for each frame: its own, or that of the frame before it, or else after it; black if none has."""
    black = np.zeros((windowing.height, windowing.width, 3), np.uint8)
    known = next((image for image in images if image is not None), black)
    filled = []
    for image in images:
        known = known if image is None else image
        filled.append(known)
    return np.stack(filled)
