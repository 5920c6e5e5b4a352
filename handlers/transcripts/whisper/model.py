"""A loaded Whisper: chunks of audio come in, transcripts go out.

It works in two stages: the encoder runs in `submit`; the decoder is the second stage (transcriber.py), which may run in
another process. The transcript of a chunk depends on nothing but the chunk, except for rounding, as a device may add up
numbers in another order for another batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import StartupError
from runtime.metrics import Counters
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree
from runtime.weights import load_pretrained
from transcripts.chunks import Chunk, Samples, join_transcripts, round_seconds
from transcripts.settings import SpeechSettings
from transcripts.whisper.decoder import WhisperDecoder
from transcripts.whisper.transcriber import WindowTranscriber
from transcripts.whisper.windows import TranscribedWindow, Window

MIN_PROGRESS = 1.0
"""Seconds by which each pass over a chunk advances at least. A model that advances in steps of 0.02 s would take
minutes for a chunk."""

MIN_REMAINDER = 0.1
"""Remainders of a chunk up to this many seconds are not transcribed."""

DECIDING_SETTINGS = (
    *("timestamps", "temperatures", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "tokens_per_second"),
)
"""The settings that decide the transcripts, besides the options of `generate`."""


class _Remainder(NamedTuple):
    """The part of a chunk that is still to be transcribed."""

    number: int
    """Index of the chunk in its batch."""
    start: int
    """Start of this part in the chunk, in samples."""
    chunk: Chunk
    """The part itself."""


class WhisperModel:
    """A loaded Whisper with its processor, on one device. It implements `SpeechModel`."""

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
            second_stage: The decoder in another process, which is then not loaded here.

        Raises:
            StartupError: The settings do not fit the model.
        """
        self._temperatures = settings.temperatures
        self._counters = counters or Counters()
        self._device = device
        processor = _processor(settings)
        self._extractor = processor.feature_extractor
        self.model = load_pretrained(_model_class(first_stage=second_stage is not None), settings, device)
        self._decoder = WhisperDecoder(self.model, settings.generation, timestamps=settings.timestamps)
        self._second_stage = second_stage or LocalSecondStage(
            WindowTranscriber(self.model, self._decoder, processor.tokenizer, settings).transcribe
        )
        self.sample_rate: int = self._extractor.sampling_rate
        window_seconds = self._extractor.n_samples / self.sample_rate
        self.chunk_seconds: float = settings.chunk_seconds or window_seconds
        if self.chunk_seconds > window_seconds:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected at most {window_seconds:g}, the model's window, got"
                f" {self.chunk_seconds}"
            )
        self.languages, self.tasks = self._decoder.languages, self._decoder.tasks
        if settings.language is not None and settings.language not in self.languages:
            raise StartupError(
                f"YAML, handler, language: expected one of {', '.join(self.languages)}, got {settings.language}"
            )
        self.word_times = bool(getattr(self.model.generation_config, "alignment_heads", None))
        self.generation = {**{name: getattr(settings, name) for name in DECIDING_SETTINGS}, **settings.generation}

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks."""
        return self.collect(self.submit(chunks))

    def submit(self, chunks: list[Chunk]) -> tuple[list[_Remainder], Any]:
        """Encode chunks, and submit them to the second stage; returns a handle for `collect`."""
        remainders = [_Remainder(i, 0, chunk) for i, chunk in enumerate(chunks)]
        return remainders, self._second_stage.submit(self.encode(chunks))

    def collect(self, pending: tuple[list[_Remainder], Any]) -> list[ChunkTranscript]:
        """Wait for the transcripts of submitted chunks; where the model stopped early, transcribe the remainder too."""
        remainders, submitted = pending
        parts: list[list[tuple[float, ChunkTranscript]]] = [[] for _ in remainders]
        while remainders:
            next_remainders = []
            trees = self._second_stage.result(submitted)["windows"]
            for (i, start, chunk), tree in zip(remainders, trees, strict=True):
                window = TranscribedWindow.from_tree(tree)
                self._counters.add("tokens", window.tokens)
                parts[i].append((round_seconds(start / self.sample_rate), window.transcript))
                done = round(max(window.end, MIN_PROGRESS) * self.sample_rate)
                if len(chunk.samples) - done > MIN_REMAINDER * self.sample_rate:
                    options = replace(chunk.options, language=window.transcript.language)
                    next_remainders.append(_Remainder(i, start + done, Chunk(chunk.samples[done:], options)))
            remainders = next_remainders
            if remainders:
                submitted = self._second_stage.submit(self.encode([remainder.chunk for remainder in remainders]))
        return [join_transcripts(part) for part in parts]

    def encode(self, chunks: list[Chunk]) -> TensorTree:
        """Run the encoder over the first window of each chunk.

        Returns:
            {"states": the encoder's states, (B, T, D), "windows": B trees of `Window`}.
        """
        with torch.inference_mode():
            states = self._decoder.encode(self.features([chunk.samples for chunk in chunks]))
        windows = [Window.of(c.samples, c.options, self.sample_rate, self._temperatures) for c in chunks]
        return {"states": states, "windows": [window.to_tree() for window in windows]}

    def features(self, samples: list[Samples]) -> Tensor:
        """Make the log-mel spectrograms of windows, padded to the model's window.

        Args:
            samples: Arrays (N,) at the model's sample rate.

        Returns:
            (B, mels, frames) on the model's device and in its dtype.
        """
        inputs = self._extractor(samples, sampling_rate=self.sample_rate, return_tensors="pt", device=str(self._device))
        features: Tensor = inputs["input_features"].to(self._device, self.model.dtype)
        return features


def load_whisper_decoder(settings: SpeechSettings, device: torch.device) -> StageFunction:
    """Load the second stage of a Whisper, its decoder, onto `device`."""
    # Only models in two stages need this package.
    from pipeline.whisper import WhisperSecondStage

    model = load_pretrained(WhisperSecondStage, settings, device)
    decoder = WhisperDecoder(model, settings.generation, timestamps=settings.timestamps)
    return WindowTranscriber(model, decoder, _processor(settings).tokenizer, settings).transcribe


def _model_class(*, first_stage: bool) -> Any:
    """The class of the whole model, or of the first of its two stages."""
    if not first_stage:
        return AutoModelForSpeechSeq2Seq
    # Only models in two stages need this package.
    from pipeline.whisper import WhisperFirstStage

    return WhisperFirstStage


def _processor(settings: SpeechSettings) -> Any:
    return AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
