"""Shots: where the shots of a video begin and end, which needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reelscribe.contract.frames import InputSize
from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Source
from reelscribe.decode.shots import VERSION, ShotDetection
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frames import ReadFrames
from reelscribe.reporting.units import Counts
from reelscribe.results.jobs import Job, SavedSource, SavedVideo
from reelscribe.results.records import Kind, Model
from reelscribe.run.tracks.medium import Medium, Options, incomplete
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

_NO_FRAMES = InputSize(1, 1)
"""Size of the frames that are sent: there are none."""


class ShotMedium(Medium):
    """Shots of a video. They are among the facts about an opened video, so there are no batches."""

    kind: ClassVar[Kind] = "shots"
    counts: ClassVar[Counts] = "seconds of video"
    detector: ClassVar[Model] = Model("reelscribe shots", VERSION)

    options: ShotOptions

    def read(
        self,
        source: Source,
        opened: SavedSource | None,  # noqa: ARG002 - a video whose shots are known is not read
        thumbnails: ThumbnailTask | None,  # noqa: ARG002 - no frames are chosen
        utterances: Sequence[Utterance],  # noqa: ARG002 - shots do not depend on them
    ) -> ReadFrames:
        """Return the command that looks for shots; see `Medium.read`."""
        task = VideoTask(
            source.path,
            _NO_FRAMES,
            sampling=None,
            deinterlace=self.options.deinterlace,
            detection=self.options.detection,
            stat=source.stat,
        )
        return ReadFrames(task, 1)

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:  # noqa: ARG002 - nothing is sent
        """Return an error unless the whole video was searched."""
        if not isinstance(job.opened, SavedVideo):
            return incomplete(job, "frames")
        reason = job.opened.why_incomplete
        return SourceError("MediaError", reason) if reason else None


@dataclass(frozen=True)
class ShotOptions(Options):
    """How to look for shots."""

    medium: ClassVar[type[Medium]] = ShotMedium

    detection: ShotDetection = field(default_factory=ShotDetection)
    """How much must change at a cut."""
    deinterlace: bool = False
    """True if frames that are marked as interlaced are deinterlaced before they are compared."""
    decode_workers: int = 2
    """Number of processes that decode video."""

    @property
    def workers(self) -> int:
        """Number of processes that decode video."""
        return self.decode_workers

    def settings(self, description: None) -> dict[str, Any]:  # noqa: ARG002 - there is no model
        """Return everything that decides the shots, as JSON. It is part of the key of a job."""
        return {"detection": self.detection.to_json(), "deinterlace": self.deinterlace}


class ShotTrack(Track):
    """Finds the shots of sources: a `Track` without a model."""

    def __init__(self, options: ShotOptions | None = None) -> None:
        """Create a track.

        Args:
            options: How to look for shots.
        """
        super().__init__(options or ShotOptions())
