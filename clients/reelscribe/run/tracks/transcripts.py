"""Transcripts: a speech model transcribes the audio of a source."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

from reelscribe.client.models import SpeechClient
from reelscribe.client.operations import Operation, transcribing
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.fields import check_options
from reelscribe.contract.outcomes import Silence, SourceError, SpeechFailure, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.contract.speech import Channels, ChunkTranscript, SampleArray, TranscriptionOptions, has_words
from reelscribe.decode.audio import SILENCE_DB, AudioTask
from reelscribe.decode_pool.audio import DecodedAudioBatch, ReadAudio
from reelscribe.decode_pool.commands import items_per_request, request_bytes
from reelscribe.errors import RequestRefused, UsageError, brief
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio
from reelscribe.results.records import Kind
from reelscribe.run.tracks.medium import Medium, Options, incomplete, unanswered
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

MAX_CHUNKS_PER_REQUEST = 8
"""Default number of chunks of audio in one request: 8 MB for chunks of 30 s. The size of device batches is up to the
server.
"""


class TranscriptMedium(Medium):
    """Transcripts of the audio of sources."""

    kind: ClassVar[Kind] = "transcript"
    counts: ClassVar[Counts] = "seconds of audio"
    item: ClassVar[str] = "chunk"
    extras = frozenset({"word_times"})
    description_type = SpeechDescription

    options: SpeechOptions
    description: SpeechDescription

    @property
    def choice(self) -> str:
        """Name of the part of the audio that is transcribed."""
        return "speech"

    @property
    def items_per_count(self) -> float:
        """Number of samples in a second."""
        return float(self.description.sample_rate)

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:  # noqa: ARG002 - of videos alone
        """Return how many chunks of audio there likely are; None if each channel has its own, as nobody counts them."""
        if self.options.channels == "separate":
            return None
        return max(seconds / self.description.chunk_seconds, 1.0) if seconds else 0.0

    def read(
        self,
        source: Source,
        shots: Sequence[Section] | None,  # noqa: ARG002 - of videos alone
        thumbnails: ThumbnailTask | None,  # noqa: ARG002 - of videos alone
        utterances: Sequence[Utterance],  # noqa: ARG002 - they are made of this
    ) -> ReadAudio:
        """Return the command that reads audio in chunks; see `Medium.read`."""
        path, stat = source.file
        task = replace(self.options.task(path, self.description), stat=stat)
        return ReadAudio(task, self.options.batch_size(self.description))

    def operation(self) -> Operation[Sequence[SampleArray], ChunkTranscript]:
        """Return the operation that transcribes chunks."""
        return transcribing(self.description, self.description.sample_rate, self.options.transcription)

    def results(self, batch: DecodedAudioBatch, answers: Sequence[ChunkTranscript | RequestRefused]) -> SavedAudioBatch:
        """Return the transcripts of a batch, its silences, and the failures of its other chunks."""
        transcripts, failures = [], []
        for stretch, answer in zip(batch.audible, answers, strict=True):
            start, end = stretch.times(batch.sample_rate)
            if isinstance(answer, ChunkTranscript):
                transcripts.append(TimedTranscript(start, end, answer, stretch.speaker))
            else:
                failures.append(SpeechFailure(start, end, str(answer), stretch.speaker))
        silences = [Silence(*stretch.times(batch.sample_rate), stretch.speaker) for stretch in batch.silent]
        return SavedAudioBatch(batch.first, batch.stop, transcripts=transcripts, silences=silences, failures=failures)

    def verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return an error unless every sample has been transcribed or is silent."""
        if not isinstance(job.opened, SavedAudio) or job.total is None or job.missing:
            return incomplete(job, "samples")
        if job.opened.why_incomplete:
            return SourceError("MediaError", job.opened.why_incomplete)
        return unanswered(failures, "chunk of audio", "transcript")


@dataclass(frozen=True)
class SpeechOptions(Options):
    """How to transcribe audio, and how to cut, decode and send it."""

    medium: ClassVar[type[Medium]] = TranscriptMedium
    per_source = frozenset({"language", "initial_prompt", "hotwords"})

    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    """Language, task, vocabulary, beams, and whether to record the times of words."""
    cutting: Cutting = field(default_factory=Cutting)
    """Where to cut audio that is longer than the model's longest chunk."""
    silence_db: float | None = SILENCE_DB
    """Chunks that are nowhere louder than this are not sent, in dB of full scale (-200 to 0); None sends all chunks."""
    vad: bool = False
    """True if chunks in which a voice activity detector finds no voice are not sent either."""
    channels: Channels = "mix"
    """What is transcribed of a recording with several channels: "mix" for the mix of all, or "separate" for each by
    itself, whose name is then that of the speaker."""
    chunks_per_request: int = MAX_CHUNKS_PER_REQUEST
    """Largest number of chunks in one request; fewer where they would exceed 8 MB."""
    audio_workers: int = 2
    """Number of processes that decode audio."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.transcription)
        if self.channels not in get_args(Channels):
            raise UsageError(f"channels: expected {' or '.join(get_args(Channels))}, got {brief(self.channels)}")

    def for_source(self, values: Mapping[str, Any]) -> Self:
        """Return the options with the language and vocabulary of one source; see `Options.for_source`."""
        chosen = {name: values[name] for name in self.per_source & values.keys()}
        return replace(self, transcription=replace(self.transcription, **chosen))

    @property
    def request_key(self) -> Hashable:
        """The options of the transcription, which are those of a whole request."""
        return self.transcription

    @property
    def workers(self) -> int:
        """Number of processes that decode audio."""
        return self.audio_workers

    def check(self, description: SpeechDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        language, task = self.transcription.language, self.transcription.task
        if self.silence_db is not None and not -200 <= self.silence_db <= 0:  # NaN is refused, too
            raise UsageError(f"silence_db: expected -200 to 0 dB of full scale, got {self.silence_db}")
        known_codes = description.languages
        if language is not None and known_codes is not None and language not in known_codes:
            known = ", ".join(known_codes) or "none, as it does not say which language it knows"
            raise UsageError(
                f"language: expected one that {description.name} knows, got {language!r}; it knows {known}"
            )
        if task not in description.tasks:
            raise UsageError(
                f"task: expected one that {description.name} can do, {', '.join(description.tasks)}; got {task!r}"
            )
        if self.transcription.word_times and not description.word_times:
            raise UsageError(
                f"word times: {description.name} cannot tell when a word was spoken; leave them out, or use another"
                " model"
            )
        self._check_decoding(description)
        self.task("", description)

    def _check_decoding(self, description: SpeechDescription) -> None:
        """Raise UsageError for a vocabulary or beams that the model does not take."""
        asked = self.transcription
        given = {"initial prompt": asked.initial_prompt, "hot words": asked.hotwords}
        for name, text in given.items():
            if text is not None and description.prompt_tokens == 0:
                raise UsageError(f"{name}: {description.name} takes none; leave them out, or use a Whisper")
            if text is not None and not has_words(text):
                raise UsageError(f"{name}: expected a text that is not empty, got {text!r}; leave them out")
        if not 1 <= asked.beams <= description.beams:
            raise UsageError(
                f"beams: expected 1 to {description.beams}, the most of {description.name}, got {asked.beams}"
            )

    def settings(self, description: SpeechDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the transcript, as JSON. It is part of the key of a job."""
        self.check(description)
        return {
            "language": description.language,
            **self.transcription.to_json(),
            "cutting": asdict(self.cutting),
            "silence_db": self.silence_db,
            "vad": self.vad,
            # Left out of the mix, so that results from before there was a choice are those of the same settings.
            **({"channels": self.channels} if self.channels != "mix" else {}),
            "sample_rate": description.sample_rate,
            "chunk_seconds": description.chunk_seconds,
            **description.numerics(),
            "generation": dict(description.generation),
        }

    def task(self, path: str, description: SpeechDescription) -> AudioTask:
        """Return how to read the audio of a file and cut it into chunks for a model."""
        samples = chunk_samples(description)
        return AudioTask(
            path, description.sample_rate, samples, self.cutting, self.silence_db, self.vad, channels=self.channels
        )

    def batch_size(self, description: SpeechDescription, sample_rate: int | None = None) -> int:
        """Return the largest number of chunks in one request.

        Args:
            description: The speech model.
            sample_rate: Sample rate of the chunks, in Hz; None for that of the model.
        """
        most = min(self.chunks_per_request, description.max_chunks)
        chunk_bytes = 2 * chunk_samples(description, sample_rate)
        return items_per_request(request_bytes(chunk_bytes, most), chunk_bytes, most)

    def item_bytes(self, description: SpeechDescription) -> int:
        """Return the size of the longest chunk, in bytes."""
        return 2 * chunk_samples(description)


def chunk_samples(description: SpeechDescription, sample_rate: int | None = None) -> int:
    """Return the number of samples in the model's longest chunk, at a sample rate in Hz or at that of the model."""
    return int(description.chunk_seconds * (sample_rate or description.sample_rate))


class TranscriptTrack(Track):
    """Transcribes the audio of sources: a `Track` with a speech model."""

    def __init__(self, client: SpeechClient, options: SpeechOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the speech model.
            options: Language, task, and where audio is cut; by default the language is detected.
        """
        super().__init__(options or SpeechOptions(), client)
