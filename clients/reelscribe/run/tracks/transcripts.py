"""Transcripts: a speech model transcribes the audio of a source."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

from reelscribe.client.models import SpeechClient
from reelscribe.client.operations import Operation, transcribing
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.fields import check_options
from reelscribe.contract.outcomes import Silence, SpeechFailure
from reelscribe.contract.speech import Channels, ChunkTranscript, SampleArray, TranscriptionOptions, has_words
from reelscribe.decode.audio import AudioTask
from reelscribe.decode_pool.audio import DecodedAudioBatch
from reelscribe.errors import RequestRefused, UsageError, brief
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.records import Kind
from reelscribe.run.tracks.audio import AudioMedium, AudioOptions, Description
from reelscribe.run.tracks.medium import Medium
from reelscribe.run.tracks.track import Track


class TranscriptMedium(AudioMedium):
    """Transcripts of the audio of sources."""

    kind: ClassVar[Kind] = "transcript"
    counts: ClassVar[Counts] = "seconds of audio"
    lacks: ClassVar[str] = "transcript"
    extras = frozenset({"word_times"})
    description_type = SpeechDescription

    options: SpeechOptions
    description: SpeechDescription

    @property
    def choice(self) -> str:
        """Name of the part of the audio that is transcribed."""
        return "speech"

    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:
        """Return how many chunks of audio there likely are; None if each channel has its own, as nobody counts them."""
        if self.options.channels == "separate":
            return None
        return super().likely_items(seconds, frames_per_second)

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


@dataclass(frozen=True)
class SpeechOptions(AudioOptions):
    """How to transcribe audio, and how to cut, decode and send it."""

    medium: ClassVar[type[Medium]] = TranscriptMedium
    per_source = frozenset({"language", "initial_prompt", "hotwords"})

    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    """Language, task, vocabulary, beams, and whether to record the times of words."""
    channels: Channels = field(default="mix", kw_only=True)
    """What is transcribed of a recording with several channels: "mix" for the mix of all, or "separate" for each by
    itself, whose name is then that of the speaker."""

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

    def check(self, description: SpeechDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        language, task = self.transcription.language, self.transcription.task
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
        self.check_cutting(description)

    def _check_decoding(self, description: SpeechDescription) -> None:
        """Raise UsageError for a vocabulary or beams that the model does not take."""
        asked = self.transcription
        given = {"initial prompt": asked.initial_prompt, "hot words": asked.hotwords}
        for name, text in given.items():
            if text is not None and description.prompt_tokens == 0:
                raise UsageError(
                    f"{name}: {description.name} takes none; leave them out, or use a Whisper or Qwen3-ASR"
                )
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
            **self.cutting_settings(),
            # Left out of the mix, so that results from before there was a choice are those of the same settings.
            **({"channels": self.channels} if self.channels != "mix" else {}),
            "sample_rate": description.sample_rate,
            "chunk_seconds": description.chunk_seconds,
            **description.numerics(),
            "generation": dict(description.generation),
        }

    def task(self, path: str, description: Description) -> AudioTask:
        """Return how to read the audio of a file and cut it into chunks for a model."""
        return replace(super().task(path, description), channels=self.channels)


class TranscriptTrack(Track):
    """Transcribes the audio of sources: a `Track` with a speech model."""

    def __init__(self, client: SpeechClient, options: SpeechOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the speech model.
            options: Language, task, and where audio is cut; by default the language is detected.
        """
        super().__init__(options or SpeechOptions(), client)
