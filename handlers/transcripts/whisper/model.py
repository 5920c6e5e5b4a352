"""A loaded Whisper: chunks of audio come in, transcripts go out.

`WhisperModel.submit` runs the encoder, the first of two stages. The second stage (runtime/second_stage.py) is the
decoder with all that follows it, `WindowTranscriber.transcribe` of transcriber.py; it may be another process. `collect`
waits for its transcripts. The transcript of a chunk depends on nothing but the chunk, except for rounding, as a device
may add up numbers in another order for another batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from reelscribe.contract.speech import MOST_BEAMS, ChunkTranscript
from reelscribe.errors import StartupError
from runtime.metrics import Counters
from runtime.pretrained import from_pretrained
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree
from transcripts.speech_model import (
    Chunk,
    SpeechSettings,
    join_transcripts,
    one_task_each,
    round_seconds,
    with_translations,
)
from transcripts.whisper.engine_interface import WhisperEngine
from transcripts.whisper.log_mel import LogMel
from transcripts.whisper.previous_text import PreviousText
from transcripts.whisper.torch_engine import TorchEngine, WhisperFirstStage, WhisperSecondStage
from transcripts.whisper.transcriber import TranscribedWindow, Window, WindowTranscriber
from transcripts.word_trimming import fit_words

MIN_PROGRESS = 1.0
"""Seconds by which each pass over a chunk advances at least. Otherwise, a model that ends after 0.02 s in each pass
would take minutes for a chunk."""

MIN_REMAINDER = 0.1
"""Remainders of a chunk up to this many seconds are not transcribed."""

_DESCRIBED_SETTINGS = (
    "timestamps",
    "temperatures",
    "compression_ratio_threshold",
    "no_speech_threshold",
    "tokens_per_second",
)
"""The settings that influence transcripts, besides the options of `generate`; they are part of the description."""


class _Remainder(NamedTuple):
    """The part of a chunk that is still to be transcribed."""

    chunk_index: int
    """Index of the chunk in its batch, where one with two tasks counts twice."""
    start: int
    """Start of this part in the chunk, in samples."""
    chunk: Chunk
    """This part as a chunk of its own."""


class WhisperModel:
    """A loaded Whisper with its processor, on one device. It implements `SpeechModel`."""

    aligns = False

    def __init__(
        self,
        settings: SpeechSettings,
        device: torch.device,
        counters: Counters | None = None,
        second_stage: SecondStage | None = None,
    ) -> None:
        """Load the model.

        Args:
            settings: Which model, and how it transcribes.
            device: Where to load it.
            counters: Counts tokens.
            second_stage: The decoder in another process. By default, this process loads encoder and decoder.

        Raises:
            StartupError: A setting is out of the model's range, or the model lacks settings that every Whisper has.
        """
        self._temperatures = settings.temperatures
        self._counters = counters or Counters()
        processor = _processor(settings)
        extractor = processor.feature_extractor
        self._log_mel = LogMel(extractor, device)
        self.engine = _load_engine(settings, device, whole=second_stage is None)
        self.revision, self.dtype, self.steps = self.engine.revision, self.engine.dtype, self.engine.steps
        self._second_stage = second_stage or LocalSecondStage(
            WindowTranscriber(self.engine, processor.tokenizer, settings).transcribe
        )
        self._previous_text = PreviousText(processor.tokenizer, self.engine.positions)
        self.prompt_tokens, self.beams = self._previous_text.most_tokens, MOST_BEAMS
        self.sample_rate: int = extractor.sampling_rate
        window_seconds = extractor.n_samples / self.sample_rate
        self.chunk_seconds: float = settings.chunk_seconds or window_seconds
        if self.chunk_seconds > window_seconds:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected at most {window_seconds:g}, the model's window, got"
                f" {self.chunk_seconds}"
            )
        self.languages = self.engine.tokens.languages
        self.tasks = self.engine.tokens.request_tasks
        if settings.language is not None and settings.language not in self.languages:
            raise StartupError(
                f"YAML, handler, language: expected one of {', '.join(self.languages)}, got {settings.language}"
            )
        self.language = self.languages[0] if len(self.languages) == 1 else settings.language
        self.detects_among = len(self.languages) > 1
        self.word_times = self.engine.word_times
        self.generation = {**{name: getattr(settings, name) for name in _DESCRIBED_SETTINGS}, **settings.generation}

    def check_previous_text(self, text: str) -> None:
        """Raise PromptError for a text that is too long, or has special tokens."""
        self._previous_text.tokens(text)

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks; returns one transcript for each."""
        return self.collect(self.submit(chunks))

    def submit(self, chunks: list[Chunk]) -> tuple[list[Chunk], Any]:
        """Encode chunks, and submit them to the second stage; returns a handle for `collect`."""
        return chunks, self._second_stage.submit(self.encode(one_task_each(chunks)))

    def collect(self, pending: tuple[list[Chunk], Any]) -> list[ChunkTranscript]:
        """Wait for the transcripts of submitted chunks; where the model stopped early, transcribe the remainder too.

        A transcript and its translation may stop at different times, and then have remainders of their own.
        """
        chunks, submitted = pending
        remainders = [_Remainder(i, 0, chunk) for i, chunk in enumerate(one_task_each(chunks))]
        parts: list[list[tuple[float, ChunkTranscript]]] = [[] for _ in remainders]
        while remainders:
            windows = [TranscribedWindow.from_tree(tree) for tree in self._second_stage.result(submitted)["windows"]]
            self._counters.add("tokens", sum(window.token_count for window in windows))
            next_remainders = []
            for remainder, window in zip(remainders, windows, strict=True):
                start_seconds = round_seconds(remainder.start / self.sample_rate)
                parts[remainder.chunk_index].append((start_seconds, window.transcript))
                if rest := self._rest(remainder, window):
                    next_remainders.append(rest)
            remainders = next_remainders
            if remainders:
                submitted = self._second_stage.submit(self.encode([remainder.chunk for remainder in remainders]))
        # A word at the end of a part may have the first sound of the next one.
        fitted = [
            fit_words(join_transcripts(of_chunk), chunk.samples, self.sample_rate)
            for chunk, of_chunk in zip(one_task_each(chunks), parts, strict=True)
        ]
        return with_translations(chunks, fitted)

    def _rest(self, remainder: _Remainder, window: TranscribedWindow) -> _Remainder | None:
        """Return the rest of `remainder` after `window`, which is transcribed now; None if it is too short."""
        done = round(max(window.end, MIN_PROGRESS) * self.sample_rate)
        samples, options = remainder.chunk.samples, remainder.chunk.options
        if len(samples) - done <= MIN_REMAINDER * self.sample_rate:
            return None
        options = replace(options, language=window.transcript.language)
        return _Remainder(remainder.chunk_index, remainder.start + done, Chunk(samples[done:], options))

    def encode(self, chunks: list[Chunk]) -> TensorTree:
        """Run the encoder over the first window of each chunk, once for those with the same array of samples.

        Args:
            chunks: B chunks with one task each, none longer than the model's window.

        Returns:
            {"states": the encoder's states, as its engine has them, "windows": B trees of `Window`, "rows": which of
            the states is that of each window}.
        """
        arrays = {id(chunk.samples): chunk.samples for chunk in chunks}
        numbers = {array: row for row, array in enumerate(arrays)}
        with torch.inference_mode():
            states = self.engine.encode(self._log_mel([*arrays.values()]))
        windows = [Window.of(c.samples, c.options, self.sample_rate, self._temperatures) for c in chunks]
        rows = [numbers[id(chunk.samples)] for chunk in chunks]
        return {"states": states, "windows": [window.to_tree() for window in windows], "rows": rows}


def load_whisper_decoder(settings: SpeechSettings, device: torch.device) -> StageFunction:
    """Load the second stage of a Whisper, its decoder, onto `device`.

    Returns:
        `WindowTranscriber.transcribe` with this decoder.

    Raises:
        StartupError: A setting is wrong, or the model lacks settings that every Whisper has.
    """
    engine = TorchEngine(WhisperSecondStage, settings, device)
    return WindowTranscriber(engine, _processor(settings).tokenizer, settings).transcribe


def _load_engine(settings: SpeechSettings, device: torch.device, *, whole: bool) -> WhisperEngine:
    """Load the engine of the settings, with the whole model or with the encoder only."""
    if settings.engine == "ctranslate2":
        # Only this engine needs the package ctranslate2.
        from transcripts.whisper.ctranslate2_engine import CTranslate2Engine

        return CTranslate2Engine(settings, device)
    if whole:
        return TorchEngine(WhisperForConditionalGeneration, settings, device)
    return TorchEngine(WhisperFirstStage, settings, device)


def _processor(settings: SpeechSettings) -> Any:
    return from_pretrained(AutoProcessor, settings)
