"""The track of a speech model: from a source's audio to a transcript in the ledger, and to its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from reelscribe.client.models import SpeechClient
from reelscribe.contract.annotations import Silence, SourceError, SpeechFailure
from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.decode_pool.audio_feed import DecodedAudioBatch, OpenedAudio, ReadAudio, Stretch
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio
from reelscribe.results.records import Record, TranscriptResult
from reelscribe.run.meter import Counts
from reelscribe.run.options import SpeechOptions
from reelscribe.run.track import Track, incomplete

Transcripts = list[ChunkTranscript | RequestRefused]


class TranscriptTrack(Track[SpeechDescription, OpenedAudio, DecodedAudioBatch, Transcripts, SavedAudioBatch]):
    """Transcribes the audio of sources."""

    counts: ClassVar[Counts] = "seconds of sound"

    def __init__(self, client: SpeechClient, options: SpeechOptions | None = None) -> None:
        """Take a speech model, and how it is to transcribe.

        Args:
            client: The speech model on its servers.
            options: By default the model's own, with the language detected.
        """
        self.options = options or SpeechOptions()
        super().__init__(client, retry_failed=self.options.retry_failed)
        self._speech = client

    def add_to(self, record: Record, job: Job) -> Record:
        """Return the record with the transcript of a job that is done."""
        # Where the end of the audio is not known, the part up to the first gap counts.
        samples = job.missing[0].first if job.total is None else job.total
        result = TranscriptResult(
            self.model,
            self.settings,
            audio=job.opened.info if isinstance(job.opened, SavedAudio) else None,
            decoded_seconds=samples / self._description.sample_rate,
            error=job.error,
            results=partial(self._reader.audio_results, job.id),
        )
        return replace(record, transcript_result=result)

    def add_error(self, record: Record, error: SourceError) -> Record:
        """Return the record with the error of a source that cannot be read."""
        return replace(record, transcript_result=TranscriptResult(self.model, self.settings, error=error))

    def _prepare(self, description: SpeechDescription) -> tuple[Mapping[str, Any], DecodePool]:
        self.options.check(description)
        return self.options.settings(description), self.options.pool(description, self._client.requests_in_flight)

    def _read_command(self, path: str) -> ReadAudio:
        task = replace(self.options.task(self._description), path=path)
        return ReadAudio(task, self.options.batch_size(self._description))

    async def _ask(self, batch: DecodedAudioBatch) -> Transcripts:
        if not batch.chunks:
            return []
        return await self._speech.transcribe(batch.chunks, self._description.sample_rate, self.options.transcription)

    def _to_save(self, batch: DecodedAudioBatch, answers: Transcripts) -> SavedAudioBatch:
        transcripts, failures = [], []
        for stretch, answer in zip(batch.audible, answers, strict=True):
            start, end = self._times(stretch)
            if isinstance(answer, ChunkTranscript):
                transcripts.append(TimedTranscript(start, end, answer))
            else:
                failures.append(SpeechFailure(start, end, str(answer)))
        silences = [Silence(*self._times(stretch)) for stretch in batch.silent]
        return SavedAudioBatch(batch.first, batch.stop, transcripts=transcripts, silences=silences, failures=failures)

    def _amount(self, saved: SavedAudioBatch) -> float:
        failed = sum(failure.end - failure.start for failure in saved.failures)
        return (saved.stop - saved.first) / self._description.sample_rate - failed

    def _opened_to_save(self, opened: OpenedAudio) -> tuple[SavedAudio, int | None]:
        return SavedAudio(opened.info, opened.why_incomplete), opened.samples

    def _share(self, opened: OpenedAudio, first: int, stop: int | None) -> tuple[float, float]:
        rate = self._description.sample_rate
        # How long the audio is, is known at its end alone; before that, the container's word is all there is.
        samples = opened.samples or max(1.0, opened.info.duration_seconds * rate)
        seconds = 0.0 if stop is None else (stop - first) / rate
        share = ((samples if stop is None else stop) - first) / samples
        return min(1.0, max(0.0, share)), seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Every sample is accounted for: it was transcribed, or is silent."""
        if not isinstance(job.opened, SavedAudio) or job.total is None or job.missing:
            return incomplete(job, "samples")
        if job.opened.cut:
            return SourceError("MediaError", job.opened.cut)
        if failures:
            reason, _ = next(iter(failures.items()))
            return SourceError(
                "RequestRefused", f"{sum(failures.values())} chunks of sound have no transcript: {reason}"
            )
        return None

    def _times(self, stretch: Stretch) -> tuple[float, float]:
        """Return start and end of a stretch, in seconds of presentation time."""
        first, stop, start = stretch
        return start, round(start + (stop - first) / self._description.sample_rate, 6)
