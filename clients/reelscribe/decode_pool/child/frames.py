"""Reads the chosen frames of a video in a decode process, and sends them; `decode_pool/frames.py` is the other side.

The replies to "read_frames" are those of `channel.py`, with::

    {"opened": {"info", "input_size", "chosen", "end_seconds", "why_incomplete", "shots", "undecodable",
                "entry_points"}}
    {"batch": {..., "frame_indices", "pts_seconds", "reused", "undecodable"}}

A process keeps a video open for the next portion, so that it reads the packets of the file only once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict
from typing import Any

from reelscribe.contract.source import Span, before_entry_point
from reelscribe.decode.reuse import ReuseDetector
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from reelscribe.decode_pool.child.channel import Feed, WorkerChannel, queue_opened, queue_warning
from reelscribe.decode_pool.child.files import KeptFile
from reelscribe.decode_pool.slots import items_per_request
from reelscribe.thumbnails.keeper import FrameKeeper
from reelscribe.thumbnails.store import ThumbnailTask

MAX_CHOSEN_FRAMES = 1024
"""Largest number of chosen frames in a batch. Without it, nothing would be saved in hours of a still picture."""


def feed(
    channel: WorkerChannel,
    kept: KeptFile[Video],
    task: Any,
    spans: list[Any],
    frames_per_batch: int,
    reuse: bool,
    portion: str,
    portion_seconds: float,
    thumbnails: Any = None,
) -> int:
    """Execute a `ReadFrames` command.

    Args:
        channel: Connection to the parent.
        kept: The video that the process has kept open; afterwards this one, if it has other portions.
        task: JSON of the VideoTask.
        spans: JSON of the spans of chosen frames to read, in ascending order.
        frames_per_batch: Largest number of frames to caption in a batch.
        reuse: Whether frames that are nearly equal to the last captioned one reuse its caption.
        portion: Which portion of the video the spans are, "all", "first" or "later"; of the first one, they go beyond
            its end.
        portion_seconds: Shortest time to read a portion, in seconds, about.
        thumbnails: JSON of the ThumbnailTask; None if no thumbnails are wanted.

    Returns:
        Number of frames that were decoded, including frames that were not chosen.

    Raises:
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    key = {**task, "known_shots": None}  # the shots are those that the process which opened the video first has found
    video = kept.get(key)
    decoded_before = video.decoded if video else 0
    video = video or kept.open(key, Video(VideoTask.from_json(task), channel.heartbeat))
    entry_points = video.entry_points(portion_seconds) if portion == "first" else ()
    queue_opened(
        channel,
        video.file,
        info=asdict(video.info),
        input_size=asdict(video.input_size),
        chosen=len(video.chosen),
        end_seconds=video.end_seconds,
        why_incomplete=video.why_incomplete,
        shots=video.shots,
        undecodable=video.undecodable,
        entry_points=entry_points,
    )
    max_frames = items_per_request(channel.slot_bytes, video.input_size.nbytes, frames_per_batch)
    wanted, rest = before_entry_point([Span(**span) for span in spans], entry_points)
    keeper = None
    if thumbnails is not None:
        keeper = FrameKeeper(ThumbnailTask.from_json(thumbnails), video, video.chosen, video.end_seconds)
    for span in wanted:
        _SpanFeed(channel, video, span, max_frames, reuse).run(keeper)
    queue_warning(channel, keeper)
    if not rest and portion != "later":
        kept.close()
    return video.decoded - decoded_before


class _SpanFeed(Feed):
    """Sends one span of a video in batches of up to `max_frames` frames to caption."""

    def __init__(self, channel: WorkerChannel, video: Video, span: Span, max_frames: int, reuse: bool) -> None:
        lists = ("frame_indices", "pts_seconds", "reused", "undecodable")
        super().__init__(channel, video.file, lists, span.first, span.anchor)
        self._video, self._span, self._max_frames = video, span, max_frames
        self._detector = ReuseDetector() if reuse else None

    def run(self, keeper: FrameKeeper | None) -> None:
        if self._detector:
            self._remember_anchor(self._detector)
        stop = len(self._video.chosen) if self._span.stop is None else self._span.stop
        on_picture = keeper.add if keeper else lambda *_: None
        self.send_all(self._video.frames(range(self._span.first, stop), on_picture), self._add)

    def _remember_anchor(self, detector: ReuseDetector) -> None:
        """Decode the last captioned frame before the span, with which its first frames are compared."""
        if self._span.anchor is not None:
            at = bisect_left(self._video.chosen, self._span.anchor)
            for frame in self._video.frames(range(at, at + 1)):
                if frame.image is not None:
                    detector.remember(frame.image)

    def _add(self, frame: ChosenFrame) -> None:
        if frame.image is None:
            self.lists["undecodable"].append((frame.frame_index, frame.pts_seconds))
        elif self._detector and self._detector.nearly_equal(frame.image):
            self.lists["reused"].append((frame.frame_index, frame.pts_seconds, self.anchor))
        else:
            if self._detector:
                self._detector.remember(frame.image)
            self.write(frame.image)
            self.lists["frame_indices"].append(frame.frame_index)
            self.lists["pts_seconds"].append(frame.pts_seconds)
            self.anchor = frame.frame_index
        self.stop = frame.ordinal + 1
        is_full = len(self.lists["frame_indices"]) == self._max_frames
        if is_full or self.stop - self.first == MAX_CHOSEN_FRAMES:
            self.end(is_full=is_full)
