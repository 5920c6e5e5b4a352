"""Reads the clips of a video in a decode process, and sends them; `decode_pool/clips.py` is the other side.

The replies to "read_clips" are those of `channel.py`, with::

    {"opened": {"info", "clips", "why_incomplete", "shots"}}
    {"batch": {..., "clips": [[span, shape, frame indices, presentation times], ...], "undecodable"}}
    {"opened": {...}}                      once more, if "clips" and "shots" were null because shots were looked for
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reelscribe.contract.source import Span
from reelscribe.decode.clips import ClipTask, ClipVideo, ReadClip
from reelscribe.decode_pool.child.channel import Feed, WorkerChannel, queue_opened, queue_warning
from reelscribe.thumbnails.keeper import ClipKeeper
from reelscribe.thumbnails.store import ThumbnailTask


def feed(channel: WorkerChannel, task: Any, spans: list[Any], clips_per_batch: int, thumbnails: Any = None) -> int:
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


def _queue_opened(channel: WorkerChannel, video: ClipVideo) -> None:
    info, incomplete = asdict(video.info), video.why_incomplete
    queue_opened(channel, video.file, info=info, clips=video.count, why_incomplete=incomplete, shots=video.shots)


class _ClipFeed(Feed):
    """Sends the clips of a video in batches of up to `max_clips` clips that fit a slot."""

    def __init__(self, channel: WorkerChannel, video: ClipVideo, max_clips: int, keeper: ClipKeeper | None) -> None:
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
