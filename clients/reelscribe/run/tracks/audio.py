"""What tracks of audio share: how it is cut, decoded and sent in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.descriptions import SpeakerModelDescription, SpeechDescription
from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.decode.audio import SILENCE_DB, AudioTask
from reelscribe.decode_pool.audio import ReadAudio
from reelscribe.decode_pool.commands import MAX_CHUNKS_PER_REQUEST, items_per_request, request_bytes
from reelscribe.errors import UsageError
from reelscribe.results.jobs import Job, SavedAudio
from reelscribe.run.tracks.medium import Medium, Options, incomplete, unanswered
from reelscribe.thumbnails.store import ThumbnailTask

Description = SpeechDescription | SpeakerModelDescription
"""A model that takes chunks of audio."""


class AudioMedium(Medium):
    """Something that a model makes of chunks of audio."""

    item: ClassVar[str] = "chunk"
    lacks: ClassVar[str]
    """Name of what a chunk lacks that a model could not answer."""

    options: AudioOptions
    description: Any

    @property
    def items_per_count(self) -> float:
        """Number of samples in a second."""
        return float(self.description.sample_rate)

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:  # noqa: ARG002 - of videos alone
        """Return how many chunks of audio there likely are."""
        return max(seconds / self.description.chunk_seconds, 1.0) if seconds else 0.0

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,  # noqa: ARG002 - of videos alone
        thumbnails: ThumbnailTask | None,  # noqa: ARG002 - of videos alone
        utterances: Sequence[Utterance],  # noqa: ARG002 - audio does not depend on them
    ) -> ReadAudio:
        """Return the command that reads audio in chunks; see `Medium.read`."""
        path, stat = source.file
        task = replace(self.options.task(path, self.description), stat=stat)
        return ReadAudio(task, self.options.batch_size(self.description))

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless the model has answered about every sample that is not silent."""
        if not isinstance(job.opened, SavedAudio) or job.total is None or job.missing:
            return incomplete(job, "samples")
        if job.opened.why_incomplete:
            return SourceError("MediaError", job.opened.why_incomplete)
        return unanswered(failures, "chunk of audio", self.lacks)


@dataclass(frozen=True)
class AudioOptions(Options):
    """How to cut, decode and send audio."""

    cutting: Cutting = field(default_factory=Cutting, kw_only=True)
    """Where to cut audio that is longer than the model's longest chunk."""
    silence_db: float | None = field(default=SILENCE_DB, kw_only=True)
    """Chunks that are nowhere louder than this are not sent, in dB of full scale (-200 to 0); None sends all chunks."""
    vad: bool = field(default=False, kw_only=True)
    """True if chunks in which a voice activity detector finds no voice are not sent either."""
    chunks_per_request: int = field(default=MAX_CHUNKS_PER_REQUEST, kw_only=True)
    """Largest number of chunks in one request; fewer where they would exceed 8 MB. Where a language is unsure, those of
    a source in one request are the chunks around."""
    audio_workers: int | None = field(default=None, kw_only=True)
    """Number of processes that decode audio; None to decide it by the cores of the machine."""

    @property
    def workers(self) -> int | None:
        """Number of processes that decode audio; None to decide it by the cores."""
        return self.audio_workers

    def check_cutting(self, description: Description) -> None:
        """Raise UsageError if audio cannot be cut or judged so for a model."""
        if self.silence_db is not None and not -200 <= self.silence_db <= 0:  # NaN is refused, too
            raise UsageError(f"silence_db: expected -200 to 0 dB of full scale, got {self.silence_db}")
        self.task("", description)

    def cutting_settings(self) -> dict[str, Any]:
        """Return what decides which audio is sent, as JSON."""
        return {"cutting": asdict(self.cutting), "silence_db": self.silence_db, "vad": self.vad}

    def task(self, path: str, description: Description) -> AudioTask:
        """Return how to read the audio of a file and cut it into chunks for a model."""
        samples = chunk_samples(description)
        return AudioTask(path, description.sample_rate, samples, self.cutting, self.silence_db, self.vad)

    def batch_size(self, description: Description, sample_rate: int | None = None) -> int:
        """Return the largest number of chunks in one request.

        Args:
            description: The model.
            sample_rate: Sample rate of the chunks, in Hz; None for that of the model.
        """
        most = min(self.chunks_per_request, description.max_chunks)
        chunk_bytes = 2 * chunk_samples(description, sample_rate)
        return items_per_request(request_bytes(chunk_bytes, most), chunk_bytes, most)

    def item_bytes(self, description: Description) -> int:
        """Return the size of the longest chunk, in bytes."""
        return 2 * chunk_samples(description)


def chunk_samples(description: Description, sample_rate: int | None = None) -> int:
    """Return the number of samples in the model's longest chunk, at a sample rate in Hz or at that of the model."""
    return int(description.chunk_seconds * (sample_rate or description.sample_rate))
