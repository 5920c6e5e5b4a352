"""Pictures: from a source's frames to captions in the ledger, and to its record."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from reelscribe.client.models import CaptionClient
from reelscribe.contract.annotations import Caption, Failure, SourceError
from reelscribe.contract.model import CaptionerDescription
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, FrameReading, OpenedVideo
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.results.batches import UNDECODABLE, ReusedFrame, SavedFrameBatch
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import CaptionResult, Record
from reelscribe.run.options import CaptionOptions
from reelscribe.run.track import Track, incomplete, told

UNDECODABLE_SHARE = 0.02
"""Encoders leave out a frame now and then; a file with more frames missing than that, and one, is damaged."""

Captions = list[str | RequestRefused]


class CaptionTrack(Track[OpenedVideo, DecodedFrameBatch, Captions]):
    """Captions the chosen frames of sources."""

    counts = "frames"

    def __init__(self, client: CaptionClient, description: CaptionerDescription, options: CaptionOptions) -> None:
        super().__init__(
            client,
            description,
            options.settings(description),
            options.pool(description, client.most_in_flight),
            held_batches=1 if options.stream else options.held_batches(description),
            retry_failed=options.retry_failed,
        )
        self._captioner, self._description, self._options = client, description, options

    def ask(self, part: DecodedFrameBatch) -> Coroutine[Any, Any, Captions]:
        """A caption for each of its frames."""
        return self._captioner.caption(part.frames) if part.frame_indices else _nothing()

    def add_to(self, record: Record, job: Job) -> Record:
        """The record, with captions."""
        video = job.opened if isinstance(job.opened, SavedVideo) else None
        result = CaptionResult(
            self._model,
            self._settings,
            video=video.info if video else None,
            end_seconds=video.end_seconds if video else 0.0,
            error=job.error,
            results=partial(self._reader.frame_results, job.id),
        )
        return replace(record, caption_result=result)

    def add_error(self, record: Record, error: MediaError) -> Record:
        """The record of a source that cannot be read."""
        return replace(record, caption_result=CaptionResult(self._model, self._settings, error=told(error)))

    def _reading(self, path: str) -> FrameReading:
        return frame_reading(path, self._description, self._options)

    def _to_save(self, opened: OpenedVideo) -> tuple[SavedVideo, int]:
        return SavedVideo(opened.info, opened.end_seconds, opened.cut), opened.chosen

    def _results(self, part: DecodedFrameBatch, answers: Captions) -> tuple[SavedFrameBatch, float]:
        done = captioned(part, answers)
        return done, len(done.captions) + len(done.reused)

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


def frame_reading(path: str, description: CaptionerDescription, options: CaptionOptions) -> FrameReading:
    """What a decode process is asked for of the file at `path`."""
    task = VideoTask(path, description.input_size, options.sampling, options.resize)
    return FrameReading(task, options.batch_size(description), options.reuse)


def captioned(part: DecodedFrameBatch, texts: Sequence[str | RequestRefused]) -> SavedFrameBatch:
    """What came of each frame of a part; `texts` are the answers for those that were sent."""
    rows = list(zip(part.frame_indices, part.pts_seconds, texts, strict=True))
    captions = [Caption(index, seconds, text) for index, seconds, text in rows if isinstance(text, str)]
    failures = [Failure(index, seconds, str(text)) for index, seconds, text in rows if not isinstance(text, str)]
    failures += [Failure(index, seconds, UNDECODABLE) for index, seconds in part.undecodable]
    failures.sort(key=lambda failure: failure.frame_index)
    reused = [ReusedFrame(*frame) for frame in part.reused]
    return SavedFrameBatch(part.first, part.stop, part.anchor, captions, reused, failures)


def damage(cut: str | None, undecodable: int, chosen: int) -> str | None:
    """Why a file is not whole, if it is not; `undecodable` of its `chosen` frames cannot be decoded."""
    if cut:
        return cut
    if undecodable > 1 + UNDECODABLE_SHARE * chosen or undecodable == chosen > 0:
        return f"damaged: {undecodable} of {chosen} chosen frames cannot be decoded"
    return None


async def _nothing() -> Captions:
    return []
