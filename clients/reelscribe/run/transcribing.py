"""Sound: from a source's samples to what was said in the ledger, and to its record."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from reelscribe.client.models import SpeechClient
from reelscribe.contract.annotations import Silence, SourceError, SpeechFailure
from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.decode_pool.audio_feed import AudioReading, DecodedAudioBatch, OpenedAudio, Stretch
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio
from reelscribe.results.records import Record, TranscriptResult
from reelscribe.run.options import SpeechOptions
from reelscribe.run.track import Track, incomplete, told

Transcripts = list[ChunkTranscript | RequestRefused]


class SpeechTrack(Track[OpenedAudio, DecodedAudioBatch, Transcripts]):
    """Transcribes the sound of sources."""

    counts = "seconds of sound"

    def __init__(self, client: SpeechClient, description: SpeechDescription, options: SpeechOptions) -> None:
        options.check(description)
        super().__init__(
            client,
            description,
            options.settings(description),
            options.pool(description, client.most_in_flight),
            retry_failed=options.retry_failed,
        )
        self._speech, self._options = client, options
        self._rate, self._task = description.sample_rate, options.task(description)
        self._chunks_per_part = options.batch_size(description)

    def ask(self, part: DecodedAudioBatch) -> Coroutine[Any, Any, Transcripts]:
        """What was said in each of its chunks."""
        if not part.chunks:
            return _nothing()
        return self._speech.transcribe(part.chunks, self._rate, self._options.asked)

    def add_to(self, record: Record, job: Job) -> Record:
        """The record, with a transcript."""
        # Without its end, as far as all of it is done.
        samples = job.missing[0].first if job.total is None else job.total
        result = TranscriptResult(
            self._model,
            self._settings,
            audio=job.opened.info if isinstance(job.opened, SavedAudio) else None,
            decoded_seconds=samples / self._rate,
            error=job.error,
            results=partial(self._reader.audio_results, job.id),
        )
        return replace(record, transcript_result=result)

    def add_error(self, record: Record, error: MediaError) -> Record:
        """The record of a source that cannot be read."""
        return replace(record, transcript_result=TranscriptResult(self._model, self._settings, error=told(error)))

    def _reading(self, path: str) -> AudioReading:
        return AudioReading(replace(self._task, path=path), self._chunks_per_part)

    def _to_save(self, opened: OpenedAudio) -> tuple[SavedAudio, int | None]:
        return SavedAudio(opened.info, opened.cut), opened.samples

    def _results(self, part: DecodedAudioBatch, answers: Transcripts) -> tuple[SavedAudioBatch, float]:
        transcripts, failures = [], []
        for stretch, answer in zip(part.heard, answers, strict=True):
            start, end = self._times(stretch)
            if isinstance(answer, ChunkTranscript):
                transcripts.append(TimedTranscript(start, end, answer))
            else:
                failures.append(SpeechFailure(start, end, str(answer)))
        silences = [Silence(*self._times(stretch)) for stretch in part.silent]
        failed = sum(failure.end - failure.start for failure in failures)
        seconds = (part.stop - part.first) / self._rate - failed
        return SavedAudioBatch(part.first, part.stop, None, transcripts, silences, failures), seconds

    def _times(self, stretch: Stretch) -> tuple[float, float]:
        first, stop, start = stretch
        return start, round(start + (stop - first) / self._rate, 6)

    def _share(self, opened: OpenedAudio, first: int, stop: int | None) -> tuple[float, float]:
        # How much there is to hear is known at its end alone; before it, the container's word is all there is.
        samples = opened.samples or max(1.0, opened.info.duration_seconds * self._rate)
        seconds = 0.0 if stop is None else (stop - first) / self._rate
        share = ((samples if stop is None else stop) - first) / samples
        return min(1.0, max(0.0, share)), seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Every sample is accounted for: it was heard, or is silent."""
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


async def _nothing() -> Transcripts:
    return []
