"""Clips: a clip model describes the clips of a video."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

from reelscribe.client.models import ClipClient
from reelscribe.client.operations import Operation, describing_clips
from reelscribe.contract.clips import Clip, ClipBudget, ClipDescription
from reelscribe.contract.descriptions import ClipModelDescription
from reelscribe.contract.frames import Resize
from reelscribe.contract.outcomes import ClipFailure, DescribedClip, SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.decode.clips import ClipCutting, ClipTask
from reelscribe.decode_pool.clips import DecodedClipBatch, ReadClips, likely_clips
from reelscribe.decode_pool.commands import MAX_CLIPS_PER_REQUEST
from reelscribe.errors import AnswerRefused, RequestRefused, UsageError
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import UNDECODABLE, SavedClipBatch
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import Kind
from reelscribe.run.tracks.medium import FollowUp, Medium, Options, incomplete, unanswered
from reelscribe.run.tracks.prompts import ask_again, check_schema, fill, has_field, read_answer
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

_UNUSABLE = "the answer cannot be used"


class ClipMedium(Medium):
    """Descriptions of the clips of a video."""

    kind: ClassVar[Kind] = "clips"
    counts: ClassVar[Counts] = "clips"
    item: ClassVar[str] = "clip"
    keeps_thumbnails = True
    description_type = ClipModelDescription

    options: ClipOptions
    description: ClipModelDescription

    @property
    def choice(self) -> str:
        """Name of the parts of a video that are clips."""
        return self.options.cutting.describe()

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:
        """Return about how many clips a video has."""
        return likely_clips(self.options.cutting, seconds) if seconds and frames_per_second else 0.0

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,
        thumbnails: ThumbnailTask | None,
        utterances: Sequence[Utterance],
    ) -> ReadClips:
        """Return the command that reads clips; see `Medium.read`."""
        path, stat = source.file
        task = replace(self.options.task(path, self.description, shots), stat=stat)
        prompt = partial(self._prompt, source.path, utterances)
        return ReadClips(task, self.options.batch_size(self.description), thumbnails, prompt)

    def _prompt(self, path: str, utterances: Sequence[Utterance], span: Section) -> str | None:
        if self.options.prompt is None:
            return None
        return fill(self.options.prompt, path, span, utterances, self.options.json_schema)

    def operation(self) -> Operation[Sequence[Clip], ClipDescription]:
        """Return the operation that describes clips."""
        return describing_clips(self.description, self.options.json_schema)

    def follow_ups(
        self, items: Sequence[Clip], answers: Sequence[ClipDescription | RequestRefused]
    ) -> Sequence[FollowUp]:
        """Ask once more about clips whose answers cannot be used."""
        return [FollowUp(self._retries(items, answers))]

    def _retries(
        self, items: Sequence[Clip], answers: Sequence[ClipDescription | RequestRefused]
    ) -> Mapping[int, Clip]:
        """Return the clips whose answers do not fit the JSON schema, with a prompt that says why.

        To the same prompt, greedy search would give the same answer.
        """
        return {
            k: replace(items[k], prompt=ask_again(self._asked(items[k]), _text(answer), why))
            for k, answer in enumerate(answers)
            if (why := self._why_refused(answer))
        }

    def _asked(self, clip: Clip) -> str:
        """Return the question to the model about a clip; for a clip of one frame, it has a prompt of its own."""
        own = self.description.still_prompt if len(clip.frames) == 1 else self.description.prompt
        return clip.prompt or own

    def _why_refused(self, answer: ClipDescription | RequestRefused) -> str | None:
        """Return why an answer does not fit the JSON schema; None if it does, or if nothing was answered."""
        if self.options.json_schema is None or isinstance(answer, RequestRefused):
            return None
        try:
            read_answer(answer.text, self.options.json_schema)
        except AnswerRefused as error:
            return str(error)
        return None

    def results(self, batch: DecodedClipBatch, answers: Sequence[ClipDescription | RequestRefused]) -> SavedClipBatch:
        """Return the descriptions of a batch, and the failures of its other clips."""
        described, failures = [], []
        for clip, answer in zip(batch.clips, answers, strict=True):
            start, end = clip.span.start_seconds, clip.span.end_seconds
            if isinstance(answer, RequestRefused):
                failures.append(ClipFailure(start, end, str(answer)))
            elif why := self._why_refused(answer):
                failures.append(ClipFailure(start, end, f"{_UNUSABLE}: {why}", answer.text))
            else:
                schema = self.options.json_schema
                value = None if schema is None else read_answer(answer.text, schema)
                frames = len(clip.frame_indices)
                described.append(
                    DescribedClip(
                        start, end, frames, answer.text, answer.status, answer.tokens, answer.avg_logprob, value
                    )
                )
        failures += [ClipFailure(span.start_seconds, span.end_seconds, UNDECODABLE) for span in batch.undecodable]
        failures.sort(key=lambda failure: failure.start)
        return SavedClipBatch(batch.first, batch.stop, batch.anchor, described=described, failures=failures)

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every clip has a description."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "clips")
        if job.opened.why_incomplete:
            return SourceError("MediaError", job.opened.why_incomplete)
        if undecodable := failures.pop(UNDECODABLE, 0):
            return SourceError("MediaError", f"damaged: {undecodable} of {job.total} clips cannot be decoded")
        answered = all(reason.startswith(_UNUSABLE) for reason in failures)
        return unanswered(failures, "clip", "description", AnswerRefused if answered else RequestRefused)


@dataclass(frozen=True)
class ClipOptions(Options):
    """Where the clips of a video are, and how to describe, decode and send them."""

    medium: ClassVar[type[Medium]] = ClipMedium
    per_source = frozenset({"prompt"})

    cutting: ClipCutting = field(default_factory=ClipCutting)
    """Where a video is cut into clips; by default at its shots."""
    fps: float | None = None
    """Frames for each second of a clip; None for the model's own number."""
    max_frames: int | None = None
    """Largest number of frames of a clip, at least 1; None for the model's own number, which it never exceeds."""
    frame_pixels: int | None = None
    """Largest number of pixels of a frame, at least 1; None for the model's own number, which it never exceeds."""
    total_pixels: int | None = None
    """Largest number of pixels of all frames of a clip together, at least 1; None for the model's own number, which it
    never exceeds."""
    prompt: str | None = None
    """The question to the model, with fields that are filled in for each clip (prompts.py); None for its own prompt."""
    json_schema: Mapping[str, Any] | None = None
    """JSON schema that answers must fit; None if they are plain texts."""
    resize: Resize = "fast"
    """How frames are scaled to the size that the model takes: "fast" or "exact"."""
    deinterlace: bool = False
    """True if frames that are marked as interlaced are deinterlaced before they are scaled."""
    clips_per_request: int = MAX_CLIPS_PER_REQUEST
    """Largest number of clips in one request; fewer where they would exceed 8 MB."""
    decode_workers: int | None = None
    """Number of processes that decode video; None to decide it by the cores of the machine."""
    model_shots: bool = False
    """True if the shots are those that a shot model in another track of the run finds."""

    def for_source(self, values: Mapping[str, Any]) -> Self:
        """Return the options with the prompt of one source in its place; see `Options.for_source`."""
        return replace(self, prompt=values.get("prompt", self.prompt))

    @property
    def workers(self) -> int | None:
        """Number of processes that decode video; None to decide it by the cores."""
        return self.decode_workers

    @property
    def needs_transcript(self) -> bool:
        """True if the prompt has the words of a clip."""
        return has_field(self.prompt, "transcript")

    @property
    def needs_shots(self) -> bool:
        """True if clips are cut at the shots that another track finds."""
        return self.model_shots and self.cutting.cut == "shots"

    def check(self, description: ClipModelDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise UsageError(f"clip fps: expected more than 0 frames a second, got {self.fps}")
        for name in ("max_frames", "frame_pixels", "total_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"clip {name.replace('_', ' ')}: expected 1 or more, got {value}")
        if self.prompt is not None and not self.prompt.strip():
            raise UsageError("prompt: expected a text that is not empty; leave it out for the model's own prompt")
        if has_field(self.prompt, "schema") and self.json_schema is None:
            raise UsageError("prompt: {schema} needs a JSON schema; give one, or leave it out")
        if self.json_schema is not None:
            check_schema(self.json_schema)
        if (self.prompt is not None or self.json_schema is not None) and not description.allow_prompts:
            raise UsageError(
                f"prompt: {description.name} is served with a prompt of its own (allow_prompts: false in its YAML);"
                " leave it out"
            )

    def budget(self, description: ClipModelDescription) -> ClipBudget:
        """Return how many frames of a clip are sent, and at which size."""
        own = description.budget
        return replace(
            own,
            fps=own.fps if self.fps is None else self.fps,
            max_frames=min(own.max_frames, self.max_frames or own.max_frames),
            max_pixels=min(filter(None, (own.max_pixels, self.frame_pixels)), default=None),
            total_pixels=min(filter(None, (own.total_pixels, self.total_pixels)), default=None),
        )

    def settings(self, description: ClipModelDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the descriptions, as JSON. It is part of a job's key."""
        self.check(description)
        return {
            "clips": {**self.cutting.settings(), **({"detection": None} if self.needs_shots else {})},
            "budget": self.budget(description).to_json(),
            "resize": self.resize,
            "deinterlace": self.deinterlace,
            **description.numerics(),
            "system_prompt": description.system_prompt,
            "prompt": self.prompt or description.prompt,
            "still_prompt": description.still_prompt,
            "json_schema": self.json_schema,
            "generation": dict(description.generation),
        }

    def task(self, path: str, description: ClipModelDescription, shots: Sequence[Section] | None) -> ClipTask:
        """Return how to read the clips of a file, whose shots may be known."""
        budget = self.budget(description)
        return ClipTask(path, budget, self.cutting, self.resize, deinterlace=self.deinterlace, known_shots=shots)

    def batch_size(self, description: ClipModelDescription) -> int:
        """Return the largest number of clips in one request, regardless of its size in bytes."""
        return min(self.clips_per_request, description.max_clips)

    def item_bytes(self, description: ClipModelDescription) -> int:
        """Return the size of the largest clip, in bytes."""
        return self.budget(description).most_bytes(self.cutting.longest_seconds)


class ClipTrack(Track):
    """Describes the clips of sources: a `Track` with a clip model."""

    def __init__(self, client: ClipClient, options: ClipOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the clip model.
            options: Where the clips are, and the question to the model; by default a clip for each shot.
        """
        super().__init__(options or ClipOptions(), client)


def _text(answer: ClipDescription | RequestRefused) -> str:
    return "" if isinstance(answer, RequestRefused) else answer.text
