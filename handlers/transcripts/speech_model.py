"""A speech model as handlers see it: its settings, the chunks that it takes, and the transcripts that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import BOTH, ChunkTranscript, SpeechSegment, TranscriptionOptions
from reelscribe.errors import PromptError, StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.model_settings import ModelSettings
from runtime.prompt_text import plain_tokens

Samples = NDArray[np.float32]
"""Mono audio at the model's sample rate, (N,) values from -1 to 1."""

LANGUAGES_WITHOUT_SPACES = frozenset(["zh", "ja", "th", "lo", "my", "yue"])
"""Languages, by Whisper's codes, that are written without spaces between words."""

MIN_CHUNK_SECONDS = 2.0
"""The lowest `chunk_seconds`: cutting a recording into shorter chunks leaves no room to search for silence."""

MAX_PREVIOUS_LETTERS = 10_000
"""The most letters of an initial prompt and hot words; no model has room for the tokens of so many."""

MIN_TOKENS = 10
"""Tokens that the text of every stretch may have, however short it is: a word or two, and timestamps or a language."""


@dataclass(frozen=True)
class SpeechSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a speech model.

    Raises:
        StartupError: A value is out of range.
    """

    engines: ClassVar[tuple[str, ...]] = ("torch", "ctranslate2")
    """Only Whisper has both; other models have torch alone."""
    device_batches: ClassVar[tuple[int, int]] = (16, 64)

    max_chunks: int = 64
    """The most chunks of one request."""
    chunk_seconds: float | None = None
    """Longest chunk in seconds, at least 2. None is the model's own window, or 30 for models without a window."""
    language: str | None = None
    """Language code for requests that name none. None detects the language."""
    timestamps: bool = True
    """Whisper: whether the model generates the times of segments. Otherwise each chunk is one segment."""
    temperatures: tuple[float, ...] = (0.0, 0.4, 0.8)
    """Whisper: temperatures from 0 to 2 that are tried in order, until a result does not end in a loop."""
    compression_ratio_threshold: float | None = 2.4
    """Whisper: text with a higher compression ratio that ends in a loop is decoded again. None disables this."""
    no_speech_threshold: float | None = 0.8
    """Whisper: text is dropped if the probability of no speech, plus 0.4 times how far its average log-probability is
    below 0, is higher. None disables this."""
    tokens_per_second: float = 14.0
    """Whisper, Canary and Qwen3-ASR: limit for generated tokens, in tokens for each second of audio."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Whisper, Canary and Qwen3-ASR: further options of transformers' `generate`."""
    pause_seconds: float = 0.5
    """CTC models and Parakeet-TDT: a longer pause between two words, in seconds, starts a new segment."""
    logprob_threshold: float | None = -1.0
    """CTC models and Parakeet-TDT: segments with a lower average log-probability are dropped. None disables this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # YAML has lists
        if self.chunk_seconds is not None and not self.chunk_seconds >= MIN_CHUNK_SECONDS:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected {MIN_CHUNK_SECONDS:g} or more, got {self.chunk_seconds}"
            )
        if not self.temperatures or any(not 0 <= t <= 2 for t in self.temperatures):
            raise StartupError(f"YAML, handler, temperatures: expected numbers from 0 to 2, got {self.temperatures}")

    def token_limit(self, seconds: float) -> int:
        """Return the most tokens of a stretch of audio; without a limit, a model might repeat itself for minutes."""
        return MIN_TOKENS + math.ceil(seconds * self.tokens_per_second)


class Chunk(NamedTuple):
    """A stretch of audio that a model takes whole."""

    samples: Samples
    options: TranscriptionOptions
    """Language, task, vocabulary, beams, and whether words get times."""
    words: tuple[str, ...] | None = None
    """The words that are spoken, whose times are wanted; None if they are to be found out."""


def previous_tokens(tokenizer: Any, text: str, most: int) -> list[int]:
    """Make the tokens of an initial prompt and hot words.

    Args:
        tokenizer: The tokenizer of the model.
        text: The text, with the space before it if the model wants one.
        most: The most tokens that the model has room for.

    Raises:
        PromptError: The text is too long, or has special tokens of the model.
    """
    ids = plain_tokens(tokenizer, "initial_prompt, hotwords", text, MAX_PREVIOUS_LETTERS)
    if len(ids) > most:
        raise PromptError(
            f"initial_prompt, hotwords: expected at most {most} tokens together, as many as the model has room for, got"
            f" {len(ids)}; leave out what is least likely to be said"
        )
    return ids


class SpeechModel(Protocol):
    """A loaded speech model with its processor, on one device.

    A chunk's transcript depends on nothing but the chunk, whatever the other chunks of its batch are.
    """

    sample_rate: int
    """Sample rate of the model's input, in Hz."""
    chunk_seconds: float
    """Longest chunk, in seconds."""
    languages: tuple[str, ...]
    """Codes of the languages that requests may name; empty if the model does not say which one it knows."""
    language: str | None
    """Code of the language of chunks whose options name none; None if it is detected, or is not known."""
    tasks: tuple[str, ...]
    """The supported tasks, of "transcribe", "translate" and BOTH."""
    word_times: bool
    """True if the model can give the times of words."""
    prompt_tokens: int
    """The most tokens of an initial prompt and hot words together; 0 if the model takes none."""
    beams: int
    """The most beams that a request may ask for."""
    aligns: bool
    """True if the model can tell when given words are spoken."""
    detects_among: bool
    """True if the model can detect which of several languages is spoken that options name."""
    generation: dict[str, Any]
    """All other settings that influence transcripts; they are part of the description."""
    revision: str
    """Commit or digest of the weights."""
    dtype: str
    """Name of the data type that the model computes in."""
    steps: CompiledSteps | None
    """The compiled steps of the model, if the settings ask for them."""

    def check_previous_text(self, text: str) -> None:
        """Raise PromptError if the model cannot take a text for what was said before a chunk."""

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks; returns one transcript for each. It is `collect` of `submit`."""

    def submit(self, chunks: list[Chunk]) -> Any:
        """Run the first stage of a model with two stages, or the whole model; returns a handle for `collect`."""

    def collect(self, pending: Any) -> list[ChunkTranscript]:
        """Wait for the second stage, if there is one; returns one transcript for each submitted chunk."""


def one_task_each(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return a chunk for each text that is wanted: of one with the task BOTH, two with the same array of samples.

    Args:
        chunks: The chunks.

    Returns:
        Chunks with the tasks "transcribe" and "translate" alone, for whose transcripts there is `with_translations`.
    """
    return [
        chunk._replace(options=replace(chunk.options, task=task))
        for chunk in chunks
        for task in (("transcribe", "translate") if chunk.options.task == BOTH else (chunk.options.task,))
    ]


def with_translations(chunks: Sequence[Chunk], transcripts: Iterable[ChunkTranscript]) -> list[ChunkTranscript]:
    """Return the transcript of each chunk, with its translation where the task is BOTH.

    Args:
        chunks: The chunks.
        transcripts: Those of `one_task_each(chunks)`, in order.
    """
    left = iter(transcripts)
    return [_with_translation(next(left), next(left)) if chunk.options.task == BOTH else next(left) for chunk in chunks]


def _with_translation(transcript: ChunkTranscript, translation: ChunkTranscript) -> ChunkTranscript:
    """Return a transcript with its translation, which is empty where the transcript says that nobody speaks."""
    if not transcript.text:
        translation = replace(translation, text="", segments=())
    return replace(transcript, translation=translation)


def join_transcripts(parts: Sequence[tuple[float, ChunkTranscript]]) -> ChunkTranscript:
    """Join the transcripts of consecutive chunks to one.

    Args:
        parts: For each chunk, in order, its start in seconds from the start of the whole, and its transcript.

    Returns:
        A transcript whose times count from the start of the whole. Of the chunks with text, it has the lowest average
        log-probability, the highest compression ratio and temperature, and the language of the first. Of all chunks, it
        has the lowest probability of no speech, and of a language.
    """
    if len(parts) == 1 and parts[0][0] == 0:
        return parts[0][1]
    transcripts = [transcript for _, transcript in parts]
    with_text = [transcript for transcript in transcripts if transcript.text] or transcripts
    language = with_text[0].language
    return ChunkTranscript(
        text=join_texts([t.text for t in with_text], language),
        language=language,
        segments=tuple(_shifted(segment, start) for start, t in parts for segment in t.segments),
        no_speech_prob=_of_known(min, (t.no_speech_prob for t in transcripts)),
        avg_logprob=_of_known(min, (t.avg_logprob for t in with_text)),
        compression_ratio=_of_known(max, (t.compression_ratio for t in with_text)),
        temperature=_of_known(max, (t.temperature for t in with_text)),
        language_probability=_of_known(min, (t.language_probability for t in transcripts)),
    )


def join_texts(texts: Sequence[str], language: str | None) -> str:
    """Join texts that follow each other, with spaces where the language has them."""
    return ("" if language in LANGUAGES_WITHOUT_SPACES else " ").join(texts)


def round_seconds(value: float) -> float:
    """Round a time in seconds to whole milliseconds, the precision of all times in transcripts."""
    return round(value, 3)


def _shifted(segment: SpeechSegment, by: float) -> SpeechSegment:
    """Return the segment `by` seconds later."""
    words = segment.words and tuple(
        replace(word, start=round_seconds(word.start + by), end=round_seconds(word.end + by)) for word in segment.words
    )
    start, end = round_seconds(segment.start + by), round_seconds(segment.end + by)
    return replace(segment, start=start, end=end, words=words)


def _of_known(choose: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    """`choose` among the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return choose(known) if known else None
