"""The chosen frames of a video: the command to read them, the opened video, its batches, and how they are read.

A parent sends `ReadFrames` and parses the replies; the decode process executes the command with `feed`. A batch covers
every chosen frame from ordinal `first` to before `stop`: the frame is in the slot, is nearly equal to an earlier frame,
or cannot be decoded.

A long video is read in portions, from one entry point to the next, by one process or by several. The process that opens
it first finds the entry points and reads what is before the first of them. It keeps the video open for the next
portion, so that it reads the packets of the file only once. The replies are those of `child_channel.py`, with::

    {"opened": {"info", "input_size", "chosen", "end_seconds", "why_incomplete", "shots", "undecodable",
                "entry_points", "decoder"}}
    {"batch": {..., "frame_indices", "pts_seconds", "reused", "undecodable"}}
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import RangedCopy, Section, Span, VideoInfo, before_entry_point
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from reelscribe.decode_pool.child_channel import ChildChannel, Feed, KeptFile, queue_opened, queue_warning
from reelscribe.decode_pool.commands import DecodedBatch, Opened, Portion, ReadCommand, Slots, items_per_request
from reelscribe.decode_pool.reuse import ReuseDetector
from reelscribe.results.jobs import SavedVideo
from reelscribe.thumbnails.keeper import FrameKeeper
from reelscribe.thumbnails.store import ThumbnailTask

PORTION_SECONDS = 2.0
"""Shortest time that a process takes to decode a portion of a video, in seconds, about. To begin one takes some
hundredths of a second."""


@dataclass(frozen=True)
class OpenedVideo(Opened):
    """Facts about a video that are known before its frames are decoded."""

    info: VideoInfo
    """Description of the video stream."""
    input_size: InputSize
    """Size to which its frames are scaled."""
    chosen: int
    """Number of chosen frames."""
    end_seconds: float
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""
    shots: Sequence[Section] | None = None
    """The shots; None if nobody asked for them."""
    undecodable: int = 0
    """Number of frames that could not be decoded when shots were looked for; 0 if they were not."""
    entry_points: Sequence[int] = ()
    """Ordinals of the chosen frames at which other processes may begin, ascending; empty if one must read them all."""
    by_substitute: bool = False
    """True if PyAV reads it in place of the decoder that was chosen."""
    shots_only: bool = False
    """True if frames are only compared to find shots, and none is chosen. All of it is read when this is known."""

    @property
    def total(self) -> int:
        """Number of chosen frames."""
        return self.chosen

    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the chosen frames from `first` to before `stop`; see `Opened.share`."""
        if self.shots_only:
            return 1.0, self.info.end_seconds - self.info.start_seconds
        share = ((self.chosen if stop is None else stop) - first) / max(1, self.chosen)
        return share, share * max(0.0, self.end_seconds - self.info.start_seconds)

    def to_save(self) -> SavedVideo:
        """Return what the ledger keeps."""
        why = self.why_incomplete
        if self.shots_only:
            why = damage(why, self.undecodable, self.info.frames)
        return SavedVideo(self.info, self.end_seconds, why, self.shots)


@dataclass(frozen=True, kw_only=True)
class DecodedFrameBatch(DecodedBatch):
    """The chosen frames of a video from ordinal `first` to before `stop`.

    `anchor` is the index in the video of the last frame to caption before `stop`; None if there is none.
    """

    frames: FrameArray
    """The N frames to caption, (N, height, width, 3) uint8 RGB, valid until `release`; N may be 0."""
    frame_indices: list[int]
    """Index in the video of each of the N frames."""
    pts_seconds: list[float]
    """Presentation time of each of the N frames, in seconds."""
    reused: list[tuple[int, float, int]]
    """Frames that reuse a caption: index, presentation time in seconds, and index of the frame with the caption."""
    undecodable: list[tuple[int, float]]
    """Frames that cannot be decoded: index, and presentation time in seconds."""

    @property
    def items(self) -> FrameArray:
        """Frames to caption."""
        return self.frames

    @property
    def nbytes(self) -> int:
        """Size of the frames to caption, in bytes."""
        return self.frames.nbytes

    def _copied(self) -> dict[str, Any]:
        return {"frames": self.frames.copy()}


@dataclass(frozen=True)
class ReadFrames(ReadCommand[OpenedVideo, DecodedFrameBatch]):
    """The command to read the chosen frames of a video, and the parser of its replies."""

    task: VideoTask
    """Which frames to read, and how."""
    frames_per_batch: int
    """Largest number of frames to caption in a batch."""
    reuse: bool = False
    """True if frames that are nearly equal to the last captioned one reuse its caption. They are compared in their
    order, so one process reads them all."""
    portion: Portion = "all"
    """Which portion of the video the spans are."""
    thumbnails: ThumbnailTask | None = None
    """Which thumbnails to keep of the frames that are read; None for none."""
    ranges: RangedCopy | None = None
    """The copy of the video, if it has only what was fetched."""

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of chosen frames to read, in ascending order."""
        task, spans_json = self.task.to_json(), [vars(span) for span in spans]
        portions = {"portion": self.portion, "portion_seconds": PORTION_SECONDS}
        thumbnails = self.thumbnails and self.thumbnails.to_json()
        fields = {**vars(self), "task": task, "spans": spans_json, **portions, "thumbnails": thumbnails}
        return {"read_frames": {**fields, "ranges": self.ranges is not None}}

    def for_portion(self, portion: Portion, opened: OpenedVideo | None) -> Self:
        """Return the command to read a portion, with what is known about the video."""
        if self.reuse:
            return self
        task = replace(self.task, known_shots=opened.shots) if opened and opened.shots is not None else self.task
        return replace(self, task=task, portion=portion)

    def after_failure(self) -> Self:
        """Return the command for another attempt, which PyAV makes: decord may be why the process has died."""
        return replace(self, task=replace(self.task, decoder="pyav"))

    def parse_opened(self, reply: dict[str, Any]) -> OpenedVideo:
        """Parse the content of an "opened" reply."""
        by_substitute = reply.pop("decoder") != self.task.decoder
        info, input_size = VideoInfo.from_json(reply["info"]), InputSize(**reply["input_size"])
        shots = None if reply["shots"] is None else [Section(*shot) for shot in reply["shots"]]
        fields = {**reply, "info": info, "input_size": input_size, "shots": shots, "by_substitute": by_substitute}
        return OpenedVideo(**fields, shots_only=self.task.sampling is None)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedVideo, slots: Slots) -> DecodedFrameBatch:
        """Parse the content of a "batch" reply. Its frames are a view of the slot."""
        shape = (len(reply["frame_indices"]), opened.input_size.height, opened.input_size.width, 3)
        # A batch without a slot has no frames, and any slot has room for 0 frames.
        frames = slots.array(reply["slot"] or 0, shape, np.uint8)
        rows = {name: [tuple(row) for row in reply[name]] for name in ("reused", "undecodable")}
        return DecodedFrameBatch(**{**reply, **rows}, frames=frames, slots=slots)


MAX_CHOSEN_FRAMES = 1024
"""Largest number of chosen frames in a batch. Without it, nothing would be saved in hours of a still picture."""


def feed(
    channel: ChildChannel,
    kept: KeptFile[Video],
    task: Any,
    spans: list[Any],
    frames_per_batch: int,
    reuse: bool,
    portion: str,
    portion_seconds: float,
    thumbnails: Any = None,
    ranges: bool = False,
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
        ranges: Whether the file has only what was fetched.

    Returns:
        Number of frames that were decoded, including frames that were not chosen.

    Raises:
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    key = {**task, "known_shots": None}  # the shots are those that the process which opened the video first has found
    video = kept.get(key)
    decoded_before = video.decoded if video else 0
    video = video or kept.open(
        key, Video(VideoTask.from_json(task), channel.heartbeat, channel.fetch if ranges else None)
    )
    entry_points = video.entry_points(portion_seconds) if portion == "first" else ()
    queue_opened(
        channel,
        video.file,
        info=video.info.to_json(),
        input_size=asdict(video.input_size),
        chosen=len(video.chosen),
        end_seconds=video.end_seconds,
        why_incomplete=video.why_incomplete,
        shots=video.shots,
        undecodable=video.undecodable,
        entry_points=entry_points,
        decoder=video.decoder,
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

    def __init__(self, channel: ChildChannel, video: Video, span: Span, max_frames: int, reuse: bool) -> None:
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


UNDECODABLE_SHARE = 0.02
"""Fraction of its chosen frames that an intact file may fail to decode, besides one frame, because encoders drop a
frame now and then. A file with more of them is damaged.
"""


def damage(why_incomplete: str | None, undecodable: int, chosen: int) -> str | None:
    """Return why a video counts as damaged, or None if it does not.

    Args:
        why_incomplete: Why frames are missing from the file, according to its packets; None if none are missing.
        undecodable: Number of chosen frames that cannot be decoded.
        chosen: Number of chosen frames.
    """
    if why_incomplete:
        return why_incomplete
    if undecodable > 1 + UNDECODABLE_SHARE * chosen or undecodable == chosen > 0:
        return f"damaged: {undecodable} of {chosen} chosen frames cannot be decoded"
    return None
