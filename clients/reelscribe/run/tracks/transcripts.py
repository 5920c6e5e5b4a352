"""The track of a speech model: it transcribes the audio of a source and adds the transcript to its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from reelscribe.client.joining import JoinedChunks
from reelscribe.client.models import SpeechClient
from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.outcomes import Silence, SourceError, SpeechFailure
from reelscribe.contract.source import Source
from reelscribe.contract.speech import ChunkTranscript, SampleArray
from reelscribe.decode_pool.audio_feed import DecodedAudioBatch, OpenedAudio, ReadAudio, Stretch
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio, SavedSource
from reelscribe.results.records import Kind
from reelscribe.run.tracks.model_track import ModelTrack
from reelscribe.run.tracks.options import SpeechOptions
from reelscribe.run.tracks.track import incomplete, unanswered


class TranscriptTrack(ModelTrack[SpeechDescription, OpenedAudio, DecodedAudioBatch, ChunkTranscript, SavedAudioBatch]):
    """Transcribes the audio of sources."""

    kind: ClassVar[Kind] = "transcript"
    counts: ClassVar[Counts] = "seconds of audio"
    item: ClassVar[str] = "chunk"
    extras = frozenset({"word_times"})

    def __init__(self, client: SpeechClient, options: SpeechOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the speech model.
            options: Language, task, and where audio is cut; by default the language is detected.
        """
        self.options = options or SpeechOptions()
        super().__init__(client, retry_failed=self.options.retry_failed)
        self._speech = client  # `_client`, with the type that has `transcribe`

    @property
    def choice(self) -> str:
        """What is transcribed, in words."""
        return "speech"

    @property
    def items_per_count(self) -> float:
        """Number of samples in a second."""
        return float(self._description.sample_rate)

    @property
    def likely_items(self) -> Callable[[float, float], float | None]:
        """Returns how many chunks of audio there likely are."""
        return partial(likely_chunks, self._description.chunk_seconds)

    def _read_settings(self, description: SpeechDescription) -> Mapping[str, Any]:
        self.options.check(description)
        self.options.task("", description)  # raises UsageError before anything is written
        return self.options.settings(description)

    def _create_pool(self, description: SpeechDescription) -> DecodePool:
        return self.options.pool(description, self._client.requests_in_flight)

    def _read_command(self, source: Source, opened: SavedSource | None, thumbnails: object) -> ReadAudio:  # noqa: ARG002 - of videos alone
        task = replace(self.options.task(source.path, self._description), stat=source.stat)
        return ReadAudio(task, self.options.batch_size(self._description))

    def _create_joined(self, description: SpeechDescription) -> JoinedChunks:
        most = self.options.batch_size(description)
        sample_rate, options = description.sample_rate, self.options.transcription
        return JoinedChunks(self._speech, sample_rate, options, max_items=most, max_bytes=self.pool.slot_bytes)

    def _items(self, batch: DecodedAudioBatch) -> Sequence[SampleArray]:
        return batch.chunks

    def _to_save(
        self, batch: DecodedAudioBatch, answers: Sequence[ChunkTranscript | RequestRefused]
    ) -> SavedAudioBatch:
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

    def _unsent(self, saved: SavedAudioBatch) -> float:
        return sum(silence.end - silence.start for silence in saved.silences)

    def _opened_to_save(self, opened: OpenedAudio) -> tuple[SavedAudio, int | None]:
        return SavedAudio(opened.info, opened.why_incomplete), opened.samples

    def _share(self, opened: OpenedAudio, first: int, stop: int | None) -> tuple[float, float]:
        rate = self._description.sample_rate
        # The number of samples is known once all audio has been decoded. Until then, use the container's duration.
        samples = opened.samples or max(1.0, opened.info.duration_seconds * rate)
        seconds = 0.0 if stop is None else (stop - first) / rate
        share = ((samples if stop is None else stop) - first) / samples
        return min(1.0, max(0.0, share)), seconds

    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every sample has been transcribed or is silent."""
        if not isinstance(job.opened, SavedAudio) or job.total is None or job.missing:
            return incomplete(job, "samples")
        if job.opened.why_incomplete:
            return SourceError("MediaError", job.opened.why_incomplete)
        return unanswered(failures, "chunk of sound", "transcript")

    def _times(self, stretch: Stretch) -> tuple[float, float]:
        """Return start and end of a stretch, in seconds of presentation time."""
        first, stop, start = stretch
        return start, round(start + (stop - first) / self._description.sample_rate, 6)


def likely_chunks(chunk_seconds: float, seconds: float, frames_per_second: float) -> float:  # noqa: ARG001 - of videos alone
    """Return how many chunks of audio there likely are."""
    return max(seconds / chunk_seconds, 1.0) if seconds else 0.0
