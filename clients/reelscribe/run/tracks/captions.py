"""The track of a captioner: it captions the chosen frames of a source and adds the captions to its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from reelscribe.client.joining import JoinedFrames
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameArray, FrameCaption
from reelscribe.contract.model import CaptionerDescription
from reelscribe.contract.outcomes import Caption, Failure, SourceError
from reelscribe.contract.source import Source
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import UNDECODABLE, ReusedFrame, SavedFrameBatch
from reelscribe.results.jobs import Job, SavedSource, SavedVideo
from reelscribe.results.records import Kind
from reelscribe.run.tracks.model_track import ModelTrack
from reelscribe.run.tracks.options import CaptionOptions
from reelscribe.run.tracks.track import incomplete, unanswered
from reelscribe.thumbnails.store import ThumbnailTask

UNDECODABLE_SHARE = 0.02
"""Fraction of its chosen frames that an intact file may fail to decode, besides one frame, because encoders drop a
frame now and then. A file with more of them is damaged.
"""


class CaptionTrack(ModelTrack[CaptionerDescription, OpenedVideo, DecodedFrameBatch, str, SavedFrameBatch]):
    """Captions the chosen frames of sources."""

    kind: ClassVar[Kind] = "captions"
    counts: ClassVar[Counts] = "frames"
    item: ClassVar[str] = "frame"
    items_per_count = 1.0

    def __init__(self, client: CaptionClient, options: CaptionOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the captioner.
            options: Which frames to caption, and how; by default one frame a second.
        """
        self.options = options or CaptionOptions()
        super().__init__(client, retry_failed=self.options.retry_failed)
        self._captioner = client  # `_client`, with the type that has `caption`

    @property
    def choice(self) -> str:
        """Which frames are chosen, in words."""
        return self.options.sampling.describe()

    @property
    def likely_items(self) -> Callable[[float, float], float | None]:
        """Returns how many frames of a video are likely chosen; None where no header tells: of keyframes and shots."""
        return partial(likely_frames, self.options.sampling)

    def _read_settings(self, description: CaptionerDescription) -> Mapping[str, Any]:
        return self.options.settings(description)

    def _create_pool(self, description: CaptionerDescription) -> DecodePool:
        if not self.options.stream:
            self.held_batches = self.options.held_batches(description)
        return self.options.pool(description, self._client.requests_in_flight)

    def _read_command(self, source: Source, opened: SavedSource | None, thumbnails: ThumbnailTask | None) -> ReadFrames:
        task = VideoTask(
            source.path,
            self._description.input_size,
            self.options.sampling,
            self.options.resize,
            deinterlace=self.options.deinterlace,
            detection=self.options.detection if self.options.sampling.per_shot else None,
            known_shots=opened.shots if isinstance(opened, SavedVideo) else None,
            stat=source.stat,
        )
        most = self.options.batch_size(self._description)
        return ReadFrames(task, most, self.options.reuse, thumbnails=thumbnails)

    def _create_joined(self, description: CaptionerDescription) -> JoinedFrames:
        most = self.options.batch_size(description)
        return JoinedFrames(self._captioner, max_items=most, max_bytes=self.pool.slot_bytes)

    def _items(self, batch: DecodedFrameBatch) -> FrameArray:
        return batch.frames

    def _to_save(self, batch: DecodedFrameBatch, answers: Sequence[str | RequestRefused]) -> SavedFrameBatch:
        rows = list(zip(batch.frame_indices, batch.pts_seconds, answers, strict=True))
        captions = [
            Caption(index, seconds, answer.text, avg_logprob=answer.avg_logprob)
            for index, seconds, answer in rows
            if isinstance(answer, FrameCaption)
        ]
        failures = [
            Failure(index, seconds, str(answer))
            for index, seconds, answer in rows
            if isinstance(answer, RequestRefused)
        ]
        failures += [Failure(index, seconds, UNDECODABLE) for index, seconds in batch.undecodable]
        failures.sort(key=lambda failure: failure.frame_index)
        reused = [ReusedFrame(*frame) for frame in batch.reused]
        return SavedFrameBatch(batch.first, batch.stop, batch.anchor, captions, reused, failures)

    def _amount(self, saved: SavedFrameBatch) -> float:
        return len(saved.captions) + len(saved.reused)

    def _unsent(self, saved: SavedFrameBatch) -> float:
        return len(saved.reused)

    def _opened_to_save(self, opened: OpenedVideo) -> tuple[SavedVideo, int]:
        return opened_to_save(opened), opened.chosen

    def _share(self, opened: OpenedVideo, first: int, stop: int | None) -> tuple[float, float]:
        share = ((opened.chosen if stop is None else stop) - first) / max(1, opened.chosen)
        return share, share * max(0.0, opened.end_seconds - opened.info.start_seconds)

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every chosen frame has a caption, apart from a few that cannot be decoded."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "frames")
        if job.total == 0:
            return SourceError("MediaError", self.options.sampling.why_empty())
        if reason := damage(job.opened.why_incomplete, failures.pop(UNDECODABLE, 0), job.total):
            return SourceError("MediaError", reason)
        return unanswered(failures, "frame", "caption")


def likely_frames(sampling: Sampling, seconds: float, frames_per_second: float) -> float | None:
    """Return how many frames of a video are likely chosen; None where no header tells: of keyframes and shots."""
    chosen = max(0.0, min(seconds, sampling.end or seconds) - (sampling.start or 0.0))
    frames = chosen * frames_per_second
    if sampling.keyframes or sampling.per_shot:
        return None
    if sampling.frames is not None:
        return min(float(sampling.frames), frames)
    likely = min(frames, chosen * sampling.fps) if sampling.fps is not None else frames / (sampling.every or 1)
    return max(likely, 1.0) if chosen else 0.0  # at least the first frame is chosen


def opened_to_save(opened: OpenedVideo) -> SavedVideo:
    """Return what the ledger keeps about an opened video."""
    return SavedVideo(opened.info, opened.end_seconds, opened.why_incomplete, opened.shots)


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
