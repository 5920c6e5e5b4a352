"""Transcripts: a speech model transcribes the audio of a source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Self, get_args

from reelscribe.client.models import SpeechClient
from reelscribe.client.operations import Operation, SpokenChunk, aligning, transcribing
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.fields import check_options
from reelscribe.contract.outcomes import Silence, SpeechFailure
from reelscribe.contract.speech import (
    Channels,
    ChunkTranscript,
    SampleArray,
    SpeechSegment,
    TranscriptionOptions,
    has_words,
)
from reelscribe.decode.audio import AudioTask
from reelscribe.decode_pool.audio import DecodedAudioBatch
from reelscribe.errors import RequestRefused, UsageError, brief
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.records import Kind
from reelscribe.run.tracks.audio import AudioMedium, AudioOptions, Description
from reelscribe.run.tracks.medium import FollowUp, Medium
from reelscribe.run.tracks.track import Track

LEAST_LANGUAGE_PROBABILITY = 0.5
"""A chunk whose detected language is less probable takes that of the chunks around it. It is the threshold from which
faster-whisper trusts a window's language (language_detection_threshold); none was measured here."""


class TranscriptMedium(AudioMedium):
    """Transcripts of the audio of sources."""

    kind: ClassVar[Kind] = "transcript"
    counts: ClassVar[Counts] = "seconds of audio"
    lacks: ClassVar[str] = "complete transcript"
    extras = frozenset({"word_times"})
    description_type = SpeechDescription

    options: SpeechOptions
    description: SpeechDescription
    second: SpeechDescription | None

    def settings(self) -> dict[str, Any]:
        """Return what decides the transcript; a model that aligns its words is part of it."""
        settings = super().settings()
        if self.second:
            self.options.check_aligning(self.description, self.second)
            settings["align"] = {"model": [self.second.name, self.second.revision], **self.second.numerics()}
        return settings

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

    def follow_ups(
        self, items: Sequence[SampleArray], answers: Sequence[ChunkTranscript | RequestRefused]
    ) -> Iterator[FollowUp]:
        """Ask again in the language of the chunks around where the detected one is unsure; then align words."""
        if language := _language_of_sure(items, answers):
            unsure = {
                k: items[k]
                for k, each in _transcripts(answers)
                if each.text and not _is_sure(each) and each.language not in (None, language)
            }
            yield FollowUp(unsure, _or_incomplete, medium=self.for_source({"language": language}))
        if self.second:
            words = {k: of_chunk for k, each in _transcripts(answers) if (of_chunk := _words(each))}
            spoken = {k: SpokenChunk(items[k], of_chunk) for k, of_chunk in words.items()}
            operation = partial(aligning, self.description.sample_rate)
            yield FollowUp(spoken, _with_aligned, of_second_model=operation)

    def results(
        self, batch: DecodedAudioBatch, answers: Sequence[ChunkTranscript | Incomplete | RequestRefused]
    ) -> SavedAudioBatch:
        """Return the transcripts of a batch, its silences, and the failures of its chunks."""
        transcripts, failures = [], []
        for stretch, answer in zip(batch.audible, answers, strict=True):
            start, end = stretch.times(batch.sample_rate)
            transcript, why = answer if isinstance(answer, Incomplete) else (answer, answer)
            if isinstance(transcript, ChunkTranscript):
                transcripts.append(TimedTranscript(start, end, transcript, stretch.speaker))
            if not isinstance(why, ChunkTranscript):
                failures.append(SpeechFailure(start, end, str(why), stretch.speaker))
        silences = [Silence(*stretch.times(batch.sample_rate), stretch.speaker) for stretch in batch.silent]
        return SavedAudioBatch(batch.first, batch.stop, transcripts=transcripts, silences=silences, failures=failures)


@dataclass(frozen=True)
class SpeechOptions(AudioOptions):
    """How to transcribe audio, and how to cut, decode and send it."""

    medium: ClassVar[type[Medium]] = TranscriptMedium
    per_source = frozenset({"language", "initial_prompt", "hotwords"})

    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    """Language, task, vocabulary, beams, and whether to record the times of words."""
    align_model: str | None = field(default=None, kw_only=True)
    """Name of a model with a CTC head on the same servers that tells when the words of transcripts are spoken. A chunk
    that is too short for its words keeps those of the speech model, if these have times."""
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

    @property
    def second_model(self) -> str | None:
        """Name of the model that aligns words."""
        return self.align_model

    def check(self, description: SpeechDescription) -> None:
        """Raise UsageError if an option is out of range, or the model does not support it."""
        self._check_languages(description)
        task = self.transcription.task
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

    def _check_languages(self, description: SpeechDescription) -> None:
        """Raise UsageError for a language that the model does not know, or for several if it cannot choose."""
        codes, known_codes = self.transcription.languages, description.languages
        for code in codes:
            if known_codes is not None and code not in known_codes:
                known = ", ".join(known_codes) or "none, as it does not say which language it knows"
                raise UsageError(
                    f"language: expected one that {description.name} knows, got {code!r}; it knows {known}"
                )
        if len(codes) > 1 and not description.detects_among:
            raise UsageError(
                f"language: expected one code, as {description.name} cannot detect which of several is spoken, got"
                f" {self.transcription.language!r}; use our handler with a multilingual Whisper, or name none"
            )

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

    def check_aligning(self, description: SpeechDescription, aligner: SpeechDescription) -> None:
        """Raise UsageError if the words of transcripts cannot be aligned by another model.

        Args:
            description: The speech model.
            aligner: The other one.
        """
        if not aligner.aligns:
            raise UsageError(f"align model: expected one with a CTC head, which can align words, got {aligner.name}")
        if self.transcription.task == "translate":
            raise UsageError("align model: expected the task transcribe or both, as a translation is not what is heard")
        if aligner.chunk_seconds < description.chunk_seconds:
            raise UsageError(
                f"align model: expected one that takes chunks of {description.chunk_seconds:g} s, as"
                f" {description.name} does, got {aligner.name}, which takes {aligner.chunk_seconds:g} s; raise"
                " chunk_seconds in its archive"
            )
        for language in self.transcription.languages or (description.language,):
            if language and aligner.languages and language not in aligner.languages:
                known = ", ".join(aligner.languages)
                raise UsageError(f"align model: expected one for {language}, got {aligner.name}, which knows {known}")

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
            **({"chunks_per_request": self.batch_size(description)} if self._detects(description) else {}),
            **description.numerics(),
            "generation": dict(description.generation),
        }

    def _detects(self, description: SpeechDescription) -> bool:
        """Return whether a language is detected, for which the chunks of a request decide if it is unsure."""
        several = description.detects_among and description.language is None
        return several and len(self.transcription.languages) != 1

    def task(self, path: str, description: Description) -> AudioTask:
        """Return how to read the audio of a file and cut it into chunks for a model."""
        return replace(super().task(path, description), channels=self.channels)


def _transcripts(answers: Sequence[ChunkTranscript | RequestRefused]) -> Iterator[tuple[int, ChunkTranscript]]:
    """Yield the transcripts among the answers to chunks, with their numbers."""
    return ((k, each) for k, each in enumerate(answers) if isinstance(each, ChunkTranscript))


def _is_sure(transcript: ChunkTranscript) -> bool:
    """Return whether a chunk was in the given language, or in one that the model is sure to have detected."""
    probability = transcript.language_probability
    return probability is None or probability >= LEAST_LANGUAGE_PROBABILITY


def _language_of_sure(chunks: Sequence[SampleArray], answers: Sequence[ChunkTranscript | RequestRefused]) -> str | None:
    """Return the language that most speech of a batch was surely detected in; None if there is none.

    A chunk in which something is said counts with its length times the probability of its language.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    for k, each in _transcripts(answers):
        if each.text and each.language and each.language_probability and _is_sure(each):  # not where it was given
            weights[each.language] += len(chunks[k]) * each.language_probability
    return max(weights, key=lambda language: weights[language], default=None)


def _words(transcript: ChunkTranscript) -> list[str]:
    """Return the words of a transcript, as its segments have them, or else as spaces divide them."""
    return [word for segment in transcript.segments for word in _words_of(segment)]


def _words_of(segment: SpeechSegment) -> list[str]:
    return segment.text.split() if segment.words is None else [word.text for word in segment.words]


class Incomplete(NamedTuple):
    """A transcript that lacks what was to follow: the language of the chunks around, or the times of aligned words."""

    transcript: ChunkTranscript
    """What the speech model answered first."""
    why: str
    """What came of the second question."""


def _or_incomplete(first: ChunkTranscript, second: ChunkTranscript | RequestRefused) -> ChunkTranscript | Incomplete:
    """Return the second transcript of a chunk, or the first one with the refusal of the second."""
    return (
        second if isinstance(second, ChunkTranscript) else Incomplete(first, f"language of the chunks around: {second}")
    )


def _with_aligned(
    transcript: ChunkTranscript, aligned: ChunkTranscript | RequestRefused
) -> ChunkTranscript | Incomplete:
    """Return a transcript whose words have the times of the aligned ones, and whose segments have those of their words.

    It is the transcript itself if its chunk is too short for its words.
    """
    if isinstance(aligned, RequestRefused):
        return Incomplete(transcript, f"align model: {aligned}")
    if not aligned.segments:
        return transcript
    timed = [word for segment in aligned.segments for word in segment.words or ()]
    words = _words(transcript)
    if len(timed) != len(words):
        return Incomplete(transcript, f"align model: expected the times of {len(words)} words, got {len(timed)}")
    left = zip(words, timed, strict=True)
    segments = []
    for segment in transcript.segments:
        own = tuple(replace(word, text=text) for text, word in islice(left, len(_words_of(segment))))
        segments.append(replace(segment, start=own[0].start, end=own[-1].end, words=own) if own else segment)
    return replace(transcript, segments=tuple(segments))


class TranscriptTrack(Track):
    """Transcribes the audio of sources: a `Track` with a speech model."""

    def __init__(self, client: SpeechClient, options: SpeechOptions | None = None) -> None:
        """Create a track.

        Args:
            client: The open client of the speech model.
            options: Language, task, and where audio is cut; by default the language is detected.
        """
        super().__init__(options or SpeechOptions(), client)
