"""The track that looks for shots: it needs no model, and adds the shots of a source to its record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import ClassVar

from reelscribe.contract.fields import check_options
from reelscribe.contract.frames import InputSize
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source, Span
from reelscribe.decode.shots import VERSION, ShotDetection
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frame_feed import OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.reporting.units import Counts
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import Kind, Model
from reelscribe.run.tracks.captions import damage, opened_to_save
from reelscribe.run.tracks.track import Track, incomplete

_NO_FRAMES = InputSize(1, 1)
"""Size of the frames that are sent: there are none."""


@dataclass(frozen=True)
class ShotOptions:
    """How to look for shots."""

    detection: ShotDetection = field(default_factory=ShotDetection)
    """What counts as a cut."""
    deinterlace: bool = False
    """Whether frames that are marked as interlaced are deinterlaced before they are compared."""
    decode_workers: int = 2
    """Number of processes that decode video."""
    stall_seconds: float = STALL_SECONDS
    """Seconds without a heartbeat after which a decode process is killed."""
    retry_failed: bool = False
    """Whether sources that ended with an error in an earlier run are tried again."""

    def __post_init__(self) -> None:
        check_options(self)


class ShotTrack(Track[OpenedVideo]):
    """Finds the shots of sources."""

    kind: ClassVar[Kind] = "shots"
    counts: ClassVar[Counts] = "seconds of video"
    item: ClassVar[None] = None
    items_per_count = 1.0

    def __init__(self, options: ShotOptions | None = None) -> None:
        """Create a track.

        Args:
            options: How to look for shots.
        """
        self.options = options or ShotOptions()
        super().__init__(retry_failed=self.options.retry_failed)

    @property
    def choice(self) -> str:
        """What is looked for, in words."""
        return "shots"

    @property
    def likely_items(self) -> Callable[[float, float], float | None]:
        """Returns None, as nothing is sent."""
        return likely_nothing

    async def _prepare(self) -> None:
        self.model = Model("reelscribe shots", VERSION)
        deinterlace = {"deinterlace": True} if self.options.deinterlace else {}
        self.settings = {"detection": self.options.detection.to_json(), **deinterlace}
        # Nothing is written to its slots.
        self.pool = DecodePool(self.options.decode_workers, 1, 0, stall_seconds=self.options.stall_seconds)

    async def _take(self, source: Source, job: Job) -> None:
        path = source.path
        task = VideoTask(
            path,
            _NO_FRAMES,
            sampling=None,
            deinterlace=self.options.deinterlace,
            detection=self.options.detection,
            stat=source.stat,
        )
        replies = self.pool.read(ReadFrames(task, 1), [Span()], lambda: self._meter.begun(path))
        async with aclosing(replies):
            async for opened in replies:
                assert isinstance(opened, OpenedVideo), "no frames are chosen, so there are no batches"
                await self.save_opened(path, job, opened)
                seconds = opened.info.end_seconds - opened.info.start_seconds
                self._meter.decoded(path, 1.0)
                self._meter.saved(path, seconds, 1.0, seconds, 0.0)
        self._meter.ended(path)

    def _opened_to_save(self, opened: OpenedVideo) -> tuple[SavedVideo, int]:
        reason = damage(opened.why_incomplete, opened.undecodable, opened.info.frames)
        return replace(opened_to_save(opened), why_incomplete=reason), opened.chosen

    def _share(self, opened: OpenedVideo, first: int, stop: int | None) -> tuple[float, float]:  # noqa: ARG002
        """Return a whole source, as shots are known when all of it has been decoded."""
        return 1.0, opened.info.end_seconds - opened.info.start_seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:  # noqa: ARG002 - nothing is sent
        if not isinstance(job.opened, SavedVideo):
            return incomplete(job, "frames")
        reason = job.opened.why_incomplete
        return SourceError("MediaError", reason) if reason else None


def likely_nothing(seconds: float, frames_per_second: float) -> None:  # noqa: ARG001 - nothing is sent
    """Return None, as nothing is sent."""
