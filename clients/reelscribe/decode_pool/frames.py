"""The chosen frames of a video: the command to read them, the opened video, and its batches.

`child/frames.py` executes the command. A batch covers every chosen frame from ordinal `first` to before `stop`: the
frame is in the slot, is nearly equal to an earlier frame, or cannot be decoded.

A long video is read in portions, from one entry point to the next, by one process or by several. The process that opens
it first finds the entry points and reads what is before the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import Section, Span, VideoInfo
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.commands import DecodedBatch, Opened, Portion, ReadCommand
from reelscribe.decode_pool.slots import Slots
from reelscribe.results.jobs import SavedVideo
from reelscribe.thumbnails.store import ThumbnailTask

PORTION_SECONDS = 2.0
"""Shortest time that a process takes to decode a portion of a video, in seconds, about. To begin one takes some
hundredths of a second."""

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

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of chosen frames to read, in ascending order."""
        task, spans_json = self.task.to_json(), [vars(span) for span in spans]
        portions = {"portion": self.portion, "portion_seconds": PORTION_SECONDS}
        thumbnails = self.thumbnails and self.thumbnails.to_json()
        return {"read_frames": {**vars(self), "task": task, "spans": spans_json, **portions, "thumbnails": thumbnails}}

    def for_portion(self, portion: Portion, opened: OpenedVideo | None) -> Self:
        """Return the command to read a portion, with what is known about the video."""
        if self.reuse:
            return self
        task = replace(self.task, known_shots=opened.shots) if opened and opened.shots is not None else self.task
        return replace(self, task=task, portion=portion)

    def parse_opened(self, reply: dict[str, Any]) -> OpenedVideo:
        """Parse the content of an "opened" reply."""
        info, input_size = VideoInfo(**reply["info"]), InputSize(**reply["input_size"])
        shots = None if reply["shots"] is None else [Section(*shot) for shot in reply["shots"]]
        fields = {**reply, "info": info, "input_size": input_size, "shots": shots}
        return OpenedVideo(**fields, shots_only=self.task.sampling is None)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedVideo, slots: Slots) -> DecodedFrameBatch:
        """Parse the content of a "batch" reply. Its frames are a view of the slot."""
        shape = (len(reply["frame_indices"]), opened.input_size.height, opened.input_size.width, 3)
        # A batch without a slot has no frames, and any slot has room for 0 frames.
        frames = slots.array(reply["slot"] or 0, shape, np.uint8)
        rows = {name: [tuple(row) for row in reply[name]] for name in ("reused", "undecodable")}
        return DecodedFrameBatch(**{**reply, **rows}, frames=frames, slots=slots)
