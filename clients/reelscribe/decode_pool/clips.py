"""The clips of a video: the command to read them, the opened video, its batches, and how they are read.

A parent sends `ReadClips` and parses the replies; the decode process executes the command with `feed`. A batch covers
every clip from number `first` to before `stop`: its frames are in the slot, one clip after the other, or none of them
can be decoded. The replies are those of `child_channel.py`, with::

    {"opened": {"info", "clips", "why_incomplete", "shots"}}
    {"batch": {..., "clips": [[span, shape, frame indices, presentation times], ...], "undecodable"}}
    {"opened": {...}}                      once more, if "clips" and "shots" were null because shots were looked for
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reelscribe.contract.clips import Clip
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import Section, Span, VideoInfo
from reelscribe.decode.clips import ClipCutting, ClipTask, ClipVideo, ReadClip
from reelscribe.decode_pool.child_channel import ChildChannel, Feed, queue_opened, queue_warning
from reelscribe.decode_pool.commands import DecodedBatch, Opened, ReadCommand, Slots
from reelscribe.results.batches import SavedBatch, SavedClipBatch
from reelscribe.results.jobs import SavedVideo
from reelscribe.thumbnails.keeper import ClipKeeper
from reelscribe.thumbnails.store import ThumbnailTask

USUAL_SHOT_SECONDS = 5.0
"""Average length of a shot, to say about how many clips a run has before it; in films and on the web, it is 3 to 8."""


def likely_clips(cutting: ClipCutting, seconds: float) -> float:
    """Return about how many clips a video of a duration in seconds has, at least one."""
    return max(1.0, seconds / (USUAL_SHOT_SECONDS if cutting.cut == "shots" else cutting.step_seconds))


class SentClip(NamedTuple):
    """A clip whose frames are in a slot."""

    span: Section
    """The frames and the time that it spans."""
    shape: tuple[int, int, int, int]
    """(N, height, width, 3) of its frames."""
    frame_indices: list[int]
    """Index in the video of each of the N frames."""
    pts_seconds: list[float]
    """Presentation time of each of the N frames, in seconds."""


@dataclass(frozen=True)
class OpenedClips(Opened):
    """Facts about a video that are known when it is opened, and once more when its shots have been found."""

    info: VideoInfo
    """Description of the video stream."""
    clips: int | None
    """Number of clips; None as long as shots are looked for."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""
    shots: Sequence[Section] | None
    """The shots; None if clips are windows, and as long as shots are looked for."""
    cutting: ClipCutting
    """Where the video is cut into clips."""

    @property
    def total(self) -> int | None:
        """Number of clips; None as long as shots are looked for."""
        return self.clips

    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the clips from `first` to before `stop`; see `Opened.share`."""
        seconds = max(0.0, self.info.end_seconds - self.info.start_seconds)
        usual = likely_clips(self.cutting, seconds) if seconds and self.info.average_fps else 0.0
        clips = self.clips if self.clips is not None else max(usual, first + 1)
        share = min(1.0, ((clips if stop is None else stop) - first) / max(1, clips))
        return share, share * seconds

    def share_of(self, batch: DecodedBatch | SavedBatch) -> tuple[float, float]:
        """Return the part of the video that a batch is; see `Opened.share_of`."""
        if self.cutting.cut == "windows":
            return super().share_of(batch)
        # How many clips there are is known at the end, but the shots together are the whole video.
        assert isinstance(batch, DecodedClipBatch | SavedClipBatch)
        seconds = batch.seconds
        return seconds / max(seconds, self.info.end_seconds - self.info.start_seconds, 1e-9), seconds

    def to_save(self) -> SavedVideo:
        """Return what the ledger keeps."""
        return SavedVideo(self.info, self.info.end_seconds, self.why_incomplete, self.shots)


@dataclass(frozen=True, kw_only=True)
class DecodedClipBatch(DecodedBatch):
    """The clips of a video from number `first` to before `stop`."""

    clips: list[SentClip]
    """The clips to describe; may be empty."""
    frames: list[FrameArray]
    """The frames of each of these clips, (N, height, width, 3) uint8 RGB, valid until `release`."""
    undecodable: list[Section]
    """The clips of which no frame can be decoded."""
    prompt: Callable[[Section], str | None]
    """Returns the prompt of a clip; None for that of the model."""

    @property
    def items(self) -> Sequence[Clip]:
        """Clips to describe, with their prompts."""
        return [
            Clip(frames, clip.pts_seconds, self.prompt(clip.span))
            for clip, frames in zip(self.clips, self.frames, strict=True)
        ]

    @property
    def seconds(self) -> float:
        """Length of all clips together."""
        spans = [*(clip.span for clip in self.clips), *self.undecodable]
        return sum(span.end_seconds - span.start_seconds for span in spans)

    @property
    def nbytes(self) -> int:
        """Size of the frames to send, in bytes."""
        return sum(array.nbytes for array in self.frames)

    def _copied(self) -> dict[str, Any]:
        return {"frames": [array.copy() for array in self.frames]}


@dataclass(frozen=True)
class ReadClips(ReadCommand[OpenedClips, DecodedClipBatch]):
    """The command to read clips of a video, and the parser of its replies."""

    task: ClipTask
    """Which clips to read, and how."""
    clips_per_batch: int
    """Largest number of clips in a batch."""
    thumbnails: ThumbnailTask | None = None
    """Which thumbnails to keep of the clips that are read; None for none."""
    prompt: Callable[[Section], str | None] = lambda _: None
    """Returns the prompt of a clip, which stays in the parent; None for that of the model."""

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of clips to read, in ascending order."""
        command = {
            "task": self.task.to_json(),
            "spans": [vars(span) for span in spans],
            "clips_per_batch": self.clips_per_batch,
            "thumbnails": self.thumbnails and self.thumbnails.to_json(),
        }
        return {"read_clips": command}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedClips:
        """Parse the content of an "opened" reply."""
        shots = None if reply["shots"] is None else [Section(*shot) for shot in reply["shots"]]
        fields = {**reply, "info": VideoInfo.from_json(reply["info"]), "shots": shots}
        return OpenedClips(**fields, cutting=self.task.cutting)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedClips, slots: Slots) -> DecodedClipBatch:  # noqa: ARG002 - each clip has its size
        """Parse the content of a "batch" reply. Its frames are views of the slot."""
        clips = [SentClip(Section(*span), tuple(shape), *frames) for span, shape, *frames in reply["clips"]]
        frames, at = [], 0
        # A batch without a slot has no frames, and any slot has room for 0 bytes.
        levels = slots.array(reply["slot"] or 0, (sum(int(np.prod(clip.shape)) for clip in clips),), np.uint8)
        for clip in clips:
            size = int(np.prod(clip.shape))
            frames.append(levels[at : at + size].reshape(clip.shape))
            at += size
        undecodable = [Section(*span) for span in reply["undecodable"]]
        fields = {**reply, "clips": clips, "undecodable": undecodable}
        return DecodedClipBatch(**fields, frames=frames, slots=slots, prompt=self.prompt)


def feed(channel: ChildChannel, task: Any, spans: list[Any], clips_per_batch: int, thumbnails: Any = None) -> int:
    """Execute a `ReadClips` command.

    Args:
        channel: Connection to the parent.
        task: JSON of the ClipTask.
        spans: JSON of the spans of clips to read, in ascending order.
        clips_per_batch: Largest number of clips in a batch.
        thumbnails: JSON of the ThumbnailTask; None if no thumbnails are wanted.

    Returns:
        Number of frames that were decoded, including frames that were not taken.

    Raises:
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    clip_task = ClipTask.from_json(task)
    with ClipVideo(clip_task, channel.heartbeat) as video:
        known = video.count is not None
        _queue_opened(channel, video)
        keeper = None
        if thumbnails is not None:
            of_shots = clip_task.cutting.cut == "shots"
            keeper = ClipKeeper(ThumbnailTask.from_json(thumbnails), video, of_shots=of_shots)
        clips = _ClipFeed(channel, video, clips_per_batch, keeper)
        clips.send_all(video.read([Span(**span) for span in spans]), clips.add)
        queue_warning(channel, keeper)
        if not known:
            _queue_opened(channel, video)
        return video.decoded


def _queue_opened(channel: ChildChannel, video: ClipVideo) -> None:
    info, incomplete = video.info.to_json(), video.why_incomplete
    queue_opened(channel, video.file, info=info, clips=video.count, why_incomplete=incomplete, shots=video.shots)


class _ClipFeed(Feed):
    """Sends the clips of a video in batches of up to `max_clips` clips that fit a slot."""

    def __init__(self, channel: ChildChannel, video: ClipVideo, max_clips: int, keeper: ClipKeeper | None) -> None:
        super().__init__(channel, video.file, ("clips", "undecodable"))
        self._slot_bytes, self._max_clips, self._keeper = channel.slot_bytes, max_clips, keeper

    def add(self, read: ReadClip) -> None:
        if read.clip.ordinal != self.stop:
            self.end(next_first=read.clip.ordinal)
        if read.images:
            if self._keeper:
                self._keeper.add(read.pts_seconds, read.images)
            if self.used + sum(image.nbytes for image in read.images) > self._slot_bytes:
                self.end(is_full=self.used > 0)
            for image in read.images:
                self.write(image)
            shape = (len(read.images), *read.images[0].shape)
            self.lists["clips"].append((read.clip.span, shape, read.frame_indices, read.pts_seconds))
        else:
            self.lists["undecodable"].append(read.clip.span)
        self.stop, self.anchor = read.clip.ordinal + 1, read.clip.span.end_frame
        if len(self.lists["clips"]) == self._max_clips:
            self.end(is_full=True)
