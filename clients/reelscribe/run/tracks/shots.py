"""Shots: where the shots of a video begin and end.

Our own detector finds them while a video is decoded, and needs no model (`ShotMedium`). A shot model looks at windows
of successive frames, and also tells cuts from gradual transitions (`LearnedShotMedium`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from reelscribe.client.operations import Operation, finding_shots
from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.contract.frames import InputSize
from reelscribe.contract.outcomes import Failure, SourceError, Utterance
from reelscribe.contract.shots import WindowAnswer, WindowArray
from reelscribe.contract.source import Section, Source
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import VERSION, ShotDetection
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.commands import MAX_WINDOWS_PER_REQUEST
from reelscribe.decode_pool.frames import ReadFrames, damage
from reelscribe.decode_pool.windows import DecodedWindowBatch, ReadWindows
from reelscribe.errors import RequestRefused, UsageError
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import UNDECODABLE
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import Kind, Model
from reelscribe.results.shots import MarkedFrame, SavedShotBatch
from reelscribe.run.tracks.medium import Medium, Options, incomplete, unanswered
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

DEFAULT_PROBABILITY = 0.5
"""Default probability above which a shot model's frame ends a shot; its authors chose it."""

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
        shots: Sequence[Section] | None,  # noqa: ARG002 - a video whose shots are known is not read
        thumbnails: ThumbnailTask | None,  # noqa: ARG002 - no frames are chosen
        utterances: Sequence[Utterance],  # noqa: ARG002 - shots do not depend on them
    ) -> ReadFrames:
        """Return the command that looks for shots; see `Medium.read`."""
        path, stat = source.file
        task = VideoTask(
            path,
            _NO_FRAMES,
            sampling=None,
            deinterlace=self.options.deinterlace,
            detection=self.options.detection,
            stat=stat,
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
    decode_workers: int | None = None
    """Number of processes that decode video; None to decide it by the cores of the machine."""

    @property
    def workers(self) -> int | None:
        """Number of processes that decode video; None to decide it by the cores."""
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


class LearnedShotMedium(Medium):
    """Shots of a video, by the probabilities that a shot model gives to each frame."""

    kind: ClassVar[Kind] = "shots"
    counts: ClassVar[Counts] = "frames of video"
    item: ClassVar[str] = "frame"
    description_type = ShotModelDescription

    options: LearnedShotOptions
    description: ShotModelDescription

    @property
    def choice(self) -> str:
        """Name of what is sent."""
        return "every frame to the shot model"

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:
        """Return how many frames a video likely has."""
        return seconds * frames_per_second

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,  # noqa: ARG002 - it is here that they are found
        thumbnails: ThumbnailTask | None,  # noqa: ARG002 - frames are too small
        utterances: Sequence[Utterance],  # noqa: ARG002 - shots do not depend on them
    ) -> ReadWindows:
        """Return the command that reads windows; see `Medium.read`."""
        windowing = self.description.windowing
        path, stat = source.file
        task = VideoTask(
            path,
            InputSize(windowing.width, windowing.height),
            sampling=Sampling(every=1),
            deinterlace=self.options.deinterlace,
            stat=stat,
        )
        return ReadWindows(task, windowing, self.options.batch_size(self.description))

    def operation(self) -> Operation[WindowArray, WindowAnswer]:
        """Return the operation that looks at windows."""
        return finding_shots(self.description)

    def results(self, batch: DecodedWindowBatch, answers: Sequence[WindowAnswer | RequestRefused]) -> SavedShotBatch:
        """Return the frames of a batch that matter to shots, and the failures."""
        windowing, marked, failures = self.description.windowing, list[MarkedFrame](), list[Failure]()
        for number, (start, end) in enumerate(pairwise(batch.edges)):
            index, answer = batch.first + number, answers[number // windowing.step]
            if isinstance(answer, RequestRefused):
                failures.append(Failure(index, start, str(answer)))
                continue
            place = windowing.context + number % windowing.step
            frame = MarkedFrame(index, end, answer.cut[place], answer.transition[place])
            if max(frame.cut, frame.transition) > self.options.probability:
                marked.append(frame)
            if index in batch.undecodable:
                failures.append(Failure(index, start, UNDECODABLE))
        return SavedShotBatch(batch.first, batch.stop, batch.anchor, marked, failures)

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless the model has answered for every frame, and nearly all of them could be decoded."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "frames")
        if reason := damage(job.opened.why_incomplete, failures.pop(UNDECODABLE, 0), job.total):
            return SourceError("MediaError", reason)
        return unanswered(failures, "frame", "probability")


@dataclass(frozen=True)
class LearnedShotOptions(Options):
    """How to look for shots with a shot model, and how to decode and send frames."""

    medium: ClassVar[type[Medium]] = LearnedShotMedium

    probability: float = DEFAULT_PROBABILITY
    """Probability above which a frame ends a shot, from 0 to less than 1."""
    deinterlace: bool = False
    """True if frames that are marked as interlaced are deinterlaced before they are scaled."""
    windows_per_request: int = MAX_WINDOWS_PER_REQUEST
    """Largest number of windows in one request."""
    decode_workers: int | None = None
    """Number of processes that decode video; None to decide it by the cores of the machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.probability < 1:
            raise UsageError(f"shot threshold: expected a probability from 0 to less than 1, got {self.probability}")

    @property
    def workers(self) -> int | None:
        """Number of processes that decode video; None to decide it by the cores."""
        return self.decode_workers

    def settings(self, description: ShotModelDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the shots, as JSON. It is part of the key of a job."""
        return {
            "detection": {"threshold": self.probability},
            "deinterlace": self.deinterlace,
            "windowing": description.windowing.to_json(),
            **description.numerics(),
        }

    def item_bytes(self, description: ShotModelDescription) -> int:
        """Return the size of a window, in bytes."""
        return description.windowing.nbytes

    def batch_size(self, description: ShotModelDescription) -> int:
        """Return the largest number of windows in one request, regardless of its size in bytes."""
        return min(self.windows_per_request, description.max_windows)
