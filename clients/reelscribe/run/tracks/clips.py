"""The track of a clip model: it describes the clips of a source and adds the descriptions to its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from reelscribe.client.joining import JoinedClips
from reelscribe.client.models import ClipClient
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.model import ClipModelDescription
from reelscribe.contract.outcomes import ClipFailure, DescribedClip, SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode_pool.clip_feed import DecodedClipBatch, OpenedClips, ReadClips
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import AnswerRefused, RequestRefused, UsageError
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import UNDECODABLE, SavedClipBatch
from reelscribe.results.jobs import Job, SavedSource, SavedVideo
from reelscribe.results.records import Kind
from reelscribe.run.tracks.model_track import ModelTrack
from reelscribe.run.tracks.options import ClipOptions
from reelscribe.run.tracks.prompts import ask_again, fill, has_field, read_answer
from reelscribe.run.tracks.track import Siblings, Track, incomplete, unanswered
from reelscribe.thumbnails.store import ThumbnailTask

USUAL_SHOT_SECONDS = 5.0
"""Average length of a shot, to say about how many clips a run has before it; in films and on the web, it is 3 to 8."""

_UNUSABLE = "the answer cannot be used"


class ClipTrack(ModelTrack[ClipModelDescription, OpenedClips, DecodedClipBatch, ClipDescription, SavedClipBatch]):
    """Describes the clips of sources."""

    kind: ClassVar[Kind] = "clips"
    counts: ClassVar[Counts] = "clips"
    item: ClassVar[str] = "clip"
    items_per_count = 1.0

    def __init__(self, client: ClipClient, options: ClipOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the clip model.
            options: Where the clips are, and what the model is asked; by default a clip for each shot.
        """
        self.options = options or ClipOptions()
        super().__init__(client, retry_failed=self.options.retry_failed)
        self._describer = client  # `_client`, with the type that has `describe_clips`
        self._said: dict[str, list[Utterance]] = {}
        """What is said in each source that is being described, if prompts have its words."""

    def resolve_dependencies(self, tracks: Sequence[Track[Any]]) -> None:
        """Find the track of transcripts, on whose settings the descriptions depend if their prompts have its words."""
        if not has_field(self.options.prompt, "transcript"):
            return
        speech = next((track for track in tracks if track.kind == "transcript"), None)
        if speech is None:
            raise UsageError("prompt: {transcript} needs a transcript; use `reelscribe annotate`, or leave it out")
        transcript = {name: value for name, value in speech.job_settings.items() if name not in speech.extras}
        extras = {name: speech.job_settings[name] for name in speech.extras}
        self.settings = {**self.settings, "transcript": transcript, **extras}
        self.extras = speech.extras  # a transcript with the times of words tells better which of them are in a clip

    async def work(self, source: Source, job: Job, siblings: Siblings) -> Job:
        """Describe the clips of a source that have no description yet; see `Track.work`."""
        if has_field(self.options.prompt, "transcript"):
            self._said[source.path] = await siblings.utterances()
        try:
            return await super().work(source, job, siblings)
        finally:
            self._said.pop(source.path, None)

    @property
    def choice(self) -> str:
        """What the clips are, in words."""
        return self.options.cutting.describe()

    @property
    def likely_items(self) -> Callable[[float, float], float | None]:
        """Returns about how many clips a video has."""
        return partial(likely_clips, self.options.cutting)

    def _read_settings(self, description: ClipModelDescription) -> Mapping[str, Any]:
        self.options.check(description)
        return self.options.settings(description)

    def _create_pool(self, description: ClipModelDescription) -> DecodePool:
        return self.options.pool(description, self._client.requests_in_flight)

    def _read_command(self, source: Source, opened: SavedSource | None, thumbnails: ThumbnailTask | None) -> ReadClips:
        shots = opened.shots if isinstance(opened, SavedVideo) else None
        task = replace(self.options.task(source.path, self._description, shots), stat=source.stat)
        return ReadClips(task, self.options.batch_size(self._description), thumbnails)

    def _create_joined(self, description: ClipModelDescription) -> JoinedClips:
        most = self.options.batch_size(description)
        return JoinedClips(self._describer, max_items=most, max_bytes=self.pool.slot_bytes)

    def _items(self, batch: DecodedClipBatch) -> Sequence[Clip]:
        return [
            Clip(frames, clip.pts_seconds, self._prompt(batch.path, clip.span))
            for clip, frames in zip(batch.clips, batch.frames, strict=True)
        ]

    def _prompt(self, path: str, span: Section) -> str | None:
        if self.options.prompt is None:
            return None
        return fill(self.options.prompt, path, span, self._said.get(path, ()), self.options.json_schema)

    async def _accepted(
        self, items: Sequence[Clip], answers: list[ClipDescription | RequestRefused]
    ) -> list[ClipDescription | RequestRefused]:
        """Ask once more about the clips whose answers do not fit the JSON schema."""
        again = [(k, why) for k, answer in enumerate(answers) if (why := self._why_refused(answer))]
        if not again:
            return answers
        asked = [replace(items[k], prompt=ask_again(self._asked(items[k]), _text(answers[k]), why)) for k, why in again]
        second = await self._joined.add(asked)
        if not self._reading:
            self._joined.wait_no_longer()
        for (k, _), answer in zip(again, await second, strict=True):
            answers[k] = answer
        return answers

    def _asked(self, clip: Clip) -> str:
        """Return what the model was asked about a clip; for a clip of one frame, it has a prompt of its own."""
        own = self._description.still_prompt if len(clip.frames) == 1 else self._description.prompt
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

    def _to_save(self, batch: DecodedClipBatch, answers: Sequence[ClipDescription | RequestRefused]) -> SavedClipBatch:
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
        failures.sort(key=lambda failure: failure.start_seconds)
        return SavedClipBatch(batch.first, batch.stop, batch.anchor, described=described, failures=failures)

    def _amount(self, saved: SavedClipBatch) -> float:
        return len(saved.described)

    def _unsent(self, saved: SavedClipBatch) -> float:  # noqa: ARG002 - all of them are sent
        return 0.0

    def _opened_to_save(self, opened: OpenedClips) -> tuple[SavedVideo, int | None]:
        info = opened.info
        return SavedVideo(info, info.end_seconds, opened.why_incomplete, opened.shots), opened.clips

    def _share(self, opened: OpenedClips, first: int, stop: int | None) -> tuple[float, float]:
        seconds = max(0.0, opened.info.end_seconds - opened.info.start_seconds)
        usual = self.likely_items(seconds, opened.info.average_fps) or 0.0
        clips = opened.clips if opened.clips is not None else max(usual, first + 1)
        share = min(1.0, ((clips if stop is None else stop) - first) / max(1, clips))
        return share, share * seconds

    def _share_of(self, opened: OpenedClips, batch: DecodedClipBatch | SavedClipBatch) -> tuple[float, float]:
        if self.options.cutting.cut == "windows":
            return self._share(opened, batch.first, batch.stop)
        # How many clips there are is known at the end, but the shots together are the whole video.
        seconds, info = batch.seconds, opened.info
        return seconds / max(seconds, info.end_seconds - info.start_seconds, 1e-9), seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every clip has a description."""
        if not isinstance(job.opened, SavedVideo) or job.total is None or job.missing:
            return incomplete(job, "clips")
        if job.opened.why_incomplete:
            return SourceError("MediaError", job.opened.why_incomplete)
        if undecodable := failures.pop(UNDECODABLE, 0):
            return SourceError("MediaError", f"damaged: {undecodable} of {job.total} clips cannot be decoded")
        answered = all(reason.startswith(_UNUSABLE) for reason in failures)
        return unanswered(failures, "clip", "description", AnswerRefused if answered else RequestRefused)


def _text(answer: ClipDescription | RequestRefused) -> str:
    return "" if isinstance(answer, RequestRefused) else answer.text


def likely_clips(cutting: ClipCutting, seconds: float, frames_per_second: float) -> float:
    """Return about how many clips a video has."""
    if not seconds or not frames_per_second:
        return 0.0
    usual = USUAL_SHOT_SECONDS if cutting.cut == "shots" else cutting.step_seconds
    return max(1.0, seconds / usual)
