"""Captions: a captioner captions chosen frames of a video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

from reelscribe.client.models import CaptionClient
from reelscribe.client.operations import Operation, captioning
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import FrameArray, FrameCaption, Resize
from reelscribe.contract.outcomes import Caption, Failure, SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.decode.frame_reader import Decoder, check_decord
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.commands import MAX_FRAMES_PER_REQUEST
from reelscribe.decode_pool.frames import DecodedFrameBatch, ReadFrames, damage
from reelscribe.decode_pool.reuse import REUSE_DRIFT_LEVELS, REUSE_LEVELS
from reelscribe.errors import RequestRefused, UsageError, brief
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import UNDECODABLE, ReusedFrame, SavedFrameBatch
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import Kind
from reelscribe.run.tracks.medium import Medium, Options, incomplete, unanswered
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

BYTES_FOR_FRAME = 8 * 10**6
"""A source in a store is fetched whole if it has fewer bytes than this for each chosen frame. For one, some seconds of
video are fetched, from the keyframe before it, and each range takes the time of a way to the store."""


class CaptionMedium(Medium):
    """Captions of the chosen frames of a video."""

    kind: ClassVar[Kind] = "captions"
    counts: ClassVar[Counts] = "frames"
    item: ClassVar[str] = "frame"
    keeps_thumbnails = True
    description_type = CaptionerDescription

    options: CaptionOptions
    description: CaptionerDescription

    @property
    def choice(self) -> str:
        """Name of the chosen frames."""
        return self.options.sampling.describe()

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:
        """Return how many frames of a video are likely chosen; None where no header tells: of keyframes and shots."""
        sampling = self.options.sampling
        chosen = max(0.0, min(seconds, sampling.end or seconds) - (sampling.start or 0.0))
        frames = chosen * frames_per_second
        if sampling.keyframes or sampling.per_shot:
            return None
        if sampling.frames is not None:
            return min(float(sampling.frames), frames)
        likely = min(frames, chosen * sampling.fps) if sampling.fps is not None else frames / (sampling.every or 1)
        return max(likely, 1.0) if chosen else 0.0  # at least the first frame is chosen

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,
        thumbnails: ThumbnailTask | None,
        utterances: Sequence[Utterance],  # noqa: ARG002 - captions do not depend on them
    ) -> ReadFrames:
        """Return the command that reads the chosen frames; see `Medium.read`."""
        path, stat = source.file
        task = VideoTask(
            path,
            self.description.input_size,
            self.options.sampling,
            self.options.resize,
            deinterlace=self.options.deinterlace,
            detection=self.options.detection if self.options.sampling.per_shot else None,
            known_shots=shots,
            stat=stat,
            decoder=self.options.decoder,
        )
        most = self.options.batch_size(self.description)
        return ReadFrames(task, most, self.options.reuse, thumbnails=thumbnails, ranges=source.ranges)

    def operation(self) -> Operation[FrameArray, FrameCaption]:
        """Return the operation that captions frames."""
        return captioning(self.description)

    def results(self, batch: DecodedFrameBatch, answers: Sequence[FrameCaption | RequestRefused]) -> SavedFrameBatch:
        """Return the captions of a batch, and the failures of its other frames."""
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

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every chosen frame has a caption, apart from a few that cannot be decoded."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "frames")
        if job.total == 0:
            return SourceError("MediaError", self.options.sampling.why_empty())
        if reason := damage(job.opened.why_incomplete, failures.pop(UNDECODABLE, 0), job.total):
            return SourceError("MediaError", reason)
        return unanswered(failures, "frame", "caption")


@dataclass(frozen=True)
class CaptionOptions(Options):
    """Which frames to caption, and how to decode and send them."""

    medium: ClassVar[type[Medium]] = CaptionMedium
    per_source = frozenset({"start", "end"})

    sampling: Sampling = field(default_factory=Sampling)
    """Which frames; by default one frame a second."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """How the shots are found, if `sampling` chooses frames of each shot."""
    resize: Resize = "fast"
    """How frames are scaled to the model's input size: "fast" or "exact"."""
    decoder: Decoder = "pyav"
    """What decodes and scales frames: "pyav", or "decord" for the files that it reads as PyAV does."""
    deinterlace: bool = False
    """True if frames that are marked as interlaced are deinterlaced before they are scaled."""
    reuse: bool = False
    """True if a frame that is nearly equal to the last captioned one reuses its caption."""
    frames_per_request: int = MAX_FRAMES_PER_REQUEST
    """Largest number of frames in one request; fewer where they would exceed 8 MB."""
    decode_workers: int | None = None
    """Number of processes that decode video; None to decide it by the cores of the machine."""
    model_shots: bool = False
    """True if the shots are those that a shot model in another track of the run finds."""

    def for_source(self, values: Mapping[str, Any]) -> Self:
        """Return the options with the times of one source in their place; see `Options.for_source`."""
        start = _seconds("start", values) if "start" in values else self.sampling.start
        end = _seconds("end", values) if "end" in values else self.sampling.end
        return replace(self, sampling=replace(self.sampling, start=start, end=end))

    @property
    def workers(self) -> int | None:
        """Number of processes that decode video; None to decide it by the cores."""
        return self.decode_workers

    @property
    def needs_shots(self) -> bool:
        """True if frames are chosen of the shots that another track finds."""
        return self.model_shots and self.sampling.per_shot is not None

    def reads_little(self, size: int) -> bool:
        """Return whether so few frames are chosen that only what is around them is fetched."""
        frames = self.sampling.frames
        return frames is not None and size > frames * BYTES_FOR_FRAME

    def settings(self, description: CaptionerDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the captions, as JSON. It is part of the key of a job.

        Raises:
            UsageError: decord is not installed, or cannot do what other options say.
        """
        if self.decoder == "decord":
            check_decord(scales=self.resize == "fast" and not self.deinterlace)
        return {
            "sampling": self.sampling.to_json(),
            "detection": self.detection.to_json() if self.sampling.per_shot and not self.model_shots else None,
            "resize": self.resize,
            **({} if self.decoder == "pyav" else {"decoder": self.decoder}),
            "deinterlace": self.deinterlace,
            "reuse_levels": REUSE_LEVELS if self.reuse else None,
            "reuse_drift_levels": REUSE_DRIFT_LEVELS if self.reuse else None,
            "frame": asdict(description.input_size),
            **description.numerics(),
            "prompt": description.prompt,
            "generation": dict(description.generation),
        }

    def item_bytes(self, description: CaptionerDescription) -> int:
        """Return the size of the largest frame, in bytes."""
        return description.input_size.nbytes

    def batch_size(self, description: CaptionerDescription) -> int:
        """Return the largest number of frames in one request, regardless of its size in bytes."""
        return min(self.frames_per_request, description.max_frames)


class CaptionTrack(Track):
    """Captions the chosen frames of sources: a `Track` with a captioner."""

    def __init__(self, client: CaptionClient, options: CaptionOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the captioner.
            options: Which frames to caption, and how; by default one frame a second.
        """
        super().__init__(options or CaptionOptions(), client)


def _seconds(name: str, values: Mapping[str, Any]) -> float:
    """Return a number of seconds that a list has as a number or a text."""
    value = values[name]
    try:
        return float(value if type(value) in (str, int, float) else "")
    except (ValueError, OverflowError):
        raise UsageError(f"{name}: expected a number of seconds, got {brief(value)}; correct the list") from None
