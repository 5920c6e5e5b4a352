"""The track of a captioner: from a source's frames to captions in the ledger, and to its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from reelscribe.client.models import CaptionClient
from reelscribe.contract.annotations import Caption, Failure, SourceError
from reelscribe.contract.model import CaptionerDescription
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.results.batches import UNDECODABLE, ReusedFrame, SavedFrameBatch
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import CaptionResult, Record
from reelscribe.run.meter import Counts
from reelscribe.run.options import CaptionOptions
from reelscribe.run.track import Track, incomplete

UNDECODABLE_SHARE = 0.02
"""Encoders leave out a frame now and then. A file is damaged if more than this fraction of its frames, and one more,
cannot be decoded."""

Captions = list[str | RequestRefused]


class CaptionTrack(Track[CaptionerDescription, OpenedVideo, DecodedFrameBatch, Captions, SavedFrameBatch]):
    """Captions the chosen frames of sources."""

    counts: ClassVar[Counts] = "frames"

    def __init__(self, client: CaptionClient, options: CaptionOptions | None = None) -> None:
        """Take a captioner, and which frames it is to caption.

        Args:
            client: The captioner on its servers.
            options: By default every frame of every source.
        """
        self.options = options or CaptionOptions()
        super().__init__(client, retry_failed=self.options.retry_failed)
        self._captioner = client

    def add_to(self, record: Record, job: Job) -> Record:
        """Return the record with the captions of a job that is done."""
        video = job.opened if isinstance(job.opened, SavedVideo) else None
        result = CaptionResult(
            self.model,
            self.settings,
            video=video.info if video else None,
            end_seconds=video.end_seconds if video else 0.0,
            error=job.error,
            results=partial(self._reader.frame_results, job.id),
        )
        return replace(record, caption_result=result)

    def add_error(self, record: Record, error: SourceError) -> Record:
        """Return the record with the error of a source that cannot be read."""
        return replace(record, caption_result=CaptionResult(self.model, self.settings, error=error))

    def _prepare(self, description: CaptionerDescription) -> tuple[Mapping[str, Any], DecodePool]:
        if not self.options.stream:
            self.held_batches = self.options.held_batches(description)
        return self.options.settings(description), self.options.pool(description, self._client.requests_in_flight)

    def _read_command(self, path: str) -> ReadFrames:
        task = VideoTask(path, self._description.input_size, self.options.sampling, self.options.resize)
        return ReadFrames(task, self.options.batch_size(self._description), self.options.reuse)

    async def _ask(self, batch: DecodedFrameBatch) -> Captions:
        return await self._captioner.caption(batch.frames) if batch.frame_indices else []

    def _to_save(self, batch: DecodedFrameBatch, answers: Captions) -> SavedFrameBatch:
        rows = list(zip(batch.frame_indices, batch.pts_seconds, answers, strict=True))
        captions = [Caption(index, seconds, text) for index, seconds, text in rows if isinstance(text, str)]
        failures = [Failure(index, seconds, str(text)) for index, seconds, text in rows if not isinstance(text, str)]
        failures += [Failure(index, seconds, UNDECODABLE) for index, seconds in batch.undecodable]
        failures.sort(key=lambda failure: failure.frame_index)
        reused = [ReusedFrame(*frame) for frame in batch.reused]
        return SavedFrameBatch(batch.first, batch.stop, batch.anchor, captions, reused, failures)

    def _amount(self, saved: SavedFrameBatch) -> float:
        return len(saved.captions) + len(saved.reused)

    def _opened_to_save(self, opened: OpenedVideo) -> tuple[SavedVideo, int]:
        return SavedVideo(opened.info, opened.end_seconds, opened.why_incomplete), opened.chosen

    def _share(self, opened: OpenedVideo, first: int, stop: int | None) -> tuple[float, float]:
        share = ((opened.chosen if stop is None else stop) - first) / max(1, opened.chosen)
        return share, share * max(0.0, opened.end_seconds - opened.info.start_seconds)

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Every chosen frame is accounted for, and has a caption."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "frames")
        if job.total == 0:
            return SourceError("MediaError", "no frame lies between --start and --end")
        if reason := damage(job.opened.cut, failures.pop(UNDECODABLE, 0), job.total):
            return SourceError("MediaError", reason)
        if failures:
            reason, _ = next(iter(failures.items()))
            return SourceError("RequestRefused", f"{sum(failures.values())} frames have no caption: {reason}")
        return None


def damage(truncated: str | None, undecodable: int, chosen: int) -> str | None:
    """Return why a video is not whole, or None if it is.

    Args:
        truncated: What its packets say of that.
        undecodable: How many of the chosen frames cannot be decoded.
        chosen: How many frames were chosen.
    """
    if truncated:
        return truncated
    if undecodable > 1 + UNDECODABLE_SHARE * chosen or undecodable == chosen > 0:
        return f"damaged: {undecodable} of {chosen} chosen frames cannot be decoded"
    return None
