"""Sound: from a source's samples to what was said in the ledger, and to its record."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from reelscribe.client.models import SpeechClient
from reelscribe.contract.annotations import Silence, SpeechFailure, Utterance
from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.source import AudioInfo
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.decode_pool.audio_feed import DecodedAudioBatch, OpenedAudio, ReadAudio, Stretch
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.results.batches import SavedAudioBatch
from reelscribe.results.ledger import Job, LedgerReader
from reelscribe.results.records import Error, Record, TranscriptResult
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
            options.pool(description, client.requests_in_flight),
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
        heard = TranscriptResult(
            self._model,
            self._settings,
            audio=AudioInfo(**job.opened["info"]) if job.opened else None,
            seconds=samples / self._rate,
            error=job.error,
            sound=partial(_sound, self._out, job.id),
        )
        return replace(record, transcript_result=heard)

    def add_error(self, record: Record, error: MediaError) -> Record:
        """The record of a source that cannot be read."""
        return replace(record, transcript_result=TranscriptResult(self._model, self._settings, error=told(error)))

    def _reading(self, path: str) -> ReadAudio:
        return ReadAudio(replace(self._task, path=path), self._chunks_per_part)

    def _to_save(self, opened: OpenedAudio) -> tuple[dict[str, Any], int | None]:
        return {"info": asdict(opened.info), "cut": opened.cut}, opened.samples

    def _results(self, part: DecodedAudioBatch, answers: Transcripts) -> tuple[SavedAudioBatch, float]:
        heard, failures = [], []
        for stretch, answer in zip(part.audible, answers, strict=True):
            start, end = self._times(stretch)
            if isinstance(answer, ChunkTranscript):
                heard.append((start, end, answer))
            else:
                failures.append((start, end, str(answer)))
        silent = [self._times(stretch) for stretch in part.silent]
        failed = sum(end - start for start, end, _ in failures)
        seconds = (part.stop - part.first) / self._rate - failed
        return SavedAudioBatch(part.first, part.stop, heard, silent, failures), seconds

    def _times(self, stretch: Stretch) -> tuple[float, float]:
        first, stop, start = stretch
        return start, round(start + (stop - first) / self._rate, 6)

    def _share(self, opened: OpenedAudio, first: int, stop: int | None) -> tuple[float, float]:
        # How much there is to hear is known at its end alone; before it, the container's word is all there is.
        samples = opened.samples or max(1.0, opened.info.duration_seconds * self._rate)
        seconds = 0.0 if stop is None else (stop - first) / self._rate
        share = ((samples if stop is None else stop) - first) / samples
        return min(1.0, max(0.0, share)), seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> Error | None:
        """Every sample is accounted for: it was heard, or is silent."""
        if job.opened is None or job.total is None or job.missing:
            return incomplete(job, "samples")
        if job.opened["cut"]:
            return "MediaError", job.opened["cut"]
        if failures:
            reason, _ = next(iter(failures.items()))
            return "RequestRefused", f"{sum(failures.values())} chunks of sound have no transcript: {reason}"
        return None


def _sound(out: Path, job: int) -> Iterator[Utterance | Silence | SpeechFailure]:
    with LedgerReader(out) as ledger:
        yield from ledger.sound(job)


async def _nothing() -> Transcripts:
    return []
