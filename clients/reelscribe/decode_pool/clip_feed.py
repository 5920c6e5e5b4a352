"""Transfer the clips of a video from a decode process to its parent.

The parent sends a `ReadClips` command with the spans of clips to read, and the process runs `feed`, which replies::

    {"opened": {"info", "clips", "why_incomplete", "shots"}}
    {"batch": {"first", "stop", "anchor", "slot", "clips", "undecodable"}}
    ...
    {"opened": {...}}                      once more, if "clips" and "shots" were null because shots were looked for

The parent parses the replies into `OpenedClips` and `DecodedClipBatch`. A batch covers every clip from number `first`
to before `stop`: its frames are in the slot, one clip after the other, or none of them can be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import Section, Span, VideoInfo
from reelscribe.decode.clips import ClipTask, ClipVideo, ReadClip
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.portions.spans import Portion
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import MediaError
from reelscribe.thumbnails.keeper import ClipKeeper
from reelscribe.thumbnails.store import ThumbnailTask


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
class OpenedClips:
    """Facts about a video that are known when it is opened, and once more when its shots have been found."""

    info: VideoInfo
    """Description of the video stream."""
    clips: int | None
    """Number of clips; None as long as shots are looked for."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""
    shots: Sequence[Section] | None
    """The shots; None if clips are windows, and as long as shots are looked for."""


@dataclass(frozen=True, kw_only=True)
class DecodedClipBatch(DecodedBatch):
    """The clips of a video from number `first` to before `stop`."""

    path: str
    """Path of the video."""
    clips: list[SentClip]
    """The clips to describe; may be empty."""
    frames: list[FrameArray]
    """The frames of each of these clips, (N, height, width, 3) uint8 RGB, valid until `release`."""
    undecodable: list[Section]
    """The clips of which no frame can be decoded."""

    @property
    def seconds(self) -> float:
        """Length of all clips together."""
        spans = [*(clip.span for clip in self.clips), *self.undecodable]
        return sum(span.end_seconds - span.start_seconds for span in spans)

    @property
    def nbytes(self) -> int:
        """Size of the frames to send, in bytes."""
        return sum(array.nbytes for array in self.frames)

    def _copied(self) -> Self:
        return replace(self, frames=[array.copy() for array in self.frames], slot=None)


@dataclass(frozen=True)
class ReadClips:
    """The command to read clips of a video, and the parser of its replies."""

    task: ClipTask
    """Which clips to read, and how."""
    clips_per_batch: int
    """Largest number of clips in a batch."""
    thumbnails: ThumbnailTask | None = None
    """Which thumbnails to keep of the clips that are read; None for none."""

    def for_portion(self, portion: Portion, opened: OpenedClips | None) -> Self:  # noqa: ARG002 - there is only one
        """Return this command: one process reads the source."""
        return self

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of clips to read, in ascending order."""
        values = {
            "task": self.task.to_json(),
            "spans": [vars(span) for span in spans],
            "thumbnails": self.thumbnails and self.thumbnails.to_json(),
        }
        return {"read_clips": {**vars(self), **values}}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedClips:
        """Parse the content of an "opened" reply."""
        shots = None if reply["shots"] is None else [Section(*shot) for shot in reply["shots"]]
        return OpenedClips(**{**reply, "info": VideoInfo(**reply["info"]), "shots": shots})

    def parse_batch(self, reply: dict[str, Any], _: OpenedClips, slots: Slots) -> DecodedClipBatch:
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
        return DecodedClipBatch(**fields, path=self.task.path, frames=frames, slots=slots)


def feed(channel: WorkerChannel, task: Any, spans: list[Any], clips_per_batch: int, thumbnails: Any = None) -> int:
    """Execute a `ReadClips` command in the decode process.

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
        _ClipFeed(channel, video, clips_per_batch, keeper).run([Span(**span) for span in spans])
        if keeper and keeper.failure:
            channel.queue(warning=keeper.failure)
        if not known:
            _queue_opened(channel, video)
        return video.decoded


def _queue_opened(channel: WorkerChannel, video: ClipVideo) -> None:
    video.file.check()
    channel.queue(
        opened={
            "info": asdict(video.info),
            "clips": video.count,
            "why_incomplete": video.why_incomplete,
            "shots": video.shots,
        }
    )


@dataclass
class _Batch:
    """A batch that is being filled. Its fields are those of the "batch" reply."""

    first: int
    stop: int
    anchor: int | None = None
    slot: int | None = None
    clips: list[SentClip] = field(default_factory=list)
    undecodable: list[Section] = field(default_factory=list)


class _ClipFeed:
    """Sends the clips of a video in batches that fill a slot at most."""

    def __init__(
        self, channel: WorkerChannel, video: ClipVideo, max_clips: int, keeper: ClipKeeper | None = None
    ) -> None:
        self._channel, self._video, self._max_clips, self._keeper = channel, video, max_clips, keeper
        self._batch, self._used = _Batch(0, 0), 0

    def run(self, spans: Sequence[Span]) -> None:
        try:
            for read in self._video.read(spans):
                self._channel.heartbeat()
                if read.clip.ordinal != self._batch.stop:
                    self._end_batch(next_first=read.clip.ordinal)
                self._add(read)
        except MediaError:
            self._end_batch()  # what came before the damage
            raise
        self._end_batch()

    def _add(self, read: ReadClip) -> None:
        if read.images:
            if self._keeper:
                self._keeper.add(read.pts_seconds, read.images)
            frames = np.stack(read.images)
            if self._used + frames.nbytes > self._channel.slot_bytes:
                self._end_batch()
            self._write(frames)
            shape = (len(frames), *frames.shape[1:3], 3)
            self._batch.clips.append(SentClip(read.clip.span, shape, read.frame_indices, read.pts_seconds))
        else:
            self._batch.undecodable.append(read.clip.span)
        self._batch.stop, self._batch.anchor = read.clip.ordinal + 1, read.clip.span.end_frame
        if len(self._batch.clips) == self._max_clips:
            self._end_batch()

    def _write(self, frames: FrameArray) -> None:
        if self._batch.slot is None:
            self._batch.slot = self._channel.take_slot()
        slot = self._channel.array(self._batch.slot, (self._channel.slot_bytes,), np.uint8)
        slot[self._used : self._used + frames.nbytes] = frames.reshape(-1)
        self._used += frames.nbytes

    def _end_batch(self, next_first: int | None = None) -> None:
        """Send the batch unless it is empty, and begin the next one, by default where this one ends.

        Raises SourceChanged if the batch may be of other bytes.
        """
        self._video.file.check()
        batch = self._batch
        if batch.slot is not None:
            self._channel.send(batch=vars(batch))
        elif batch.stop > batch.first:
            self._channel.queue(batch=vars(batch))
        first = batch.stop if next_first is None else next_first
        self._batch, self._used = _Batch(first, first), 0
