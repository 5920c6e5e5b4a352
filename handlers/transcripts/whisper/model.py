"""Whisper and models like it (WhisperForConditionalGeneration): chunks of sound in, transcripts out.

What counts as doubtful, as no speech, and as the times of segments and words is as in openai/whisper: see
whisper_windows.py, whisper_decoding.py, whisper_thresholds.py, whisper_segments.py and word_alignment.py. A chunk's
transcript depends on nothing but the chunk: rounding aside, as a device may add up numbers in another order for another
batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from runtime.settings import load_pretrained
from reelscribe.errors import StartupError
from reelscribe.speech import ChunkTranscript
from transcripts.chunks import Samples, SpeechChunk, joined, seconds
from transcripts.settings import SpeechSettings
from runtime.metrics import Tally
from pipeline.remote import SecondStage, SecondStageHere, Work
from transcripts.whisper.decoder import WhisperDecoder
from pipeline.whisper import WhisperEncoder, WhisperWriter
from transcripts.whisper.windows import HeardWindow, Window, WindowWriter

LEAST_PROGRESS = 1.0
"""Seconds that a window is shortened by before it is heard again: a model that goes on in steps of 0.02 s would take
minutes for it.
"""

DECIDING = (
    *("timestamps", "temperatures", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "tokens_per_second"),
)
"""The settings that decide what is heard, beside the options of `generate`."""

SHORTEST_REST = 0.1
"""Seconds; less is not heard again."""


class _Rest(NamedTuple):
    """What is still to be heard of a chunk."""

    number: int
    """The chunk's."""
    start: int
    """In samples."""
    chunk: SpeechChunk


class WhisperModel:
    """A loaded Whisper with its processor, on one device."""

    def __init__(
        self,
        settings: SpeechSettings,
        device: torch.device,
        tally: Tally | None = None,
        second: SecondStage | None = None,
    ) -> None:
        """`tally` counts tokens. With `second`, the decoder is there, and only the encoder here."""
        self._temperatures = settings.temperatures
        self._tally = tally or Tally()
        self._device = device
        processor = _processor(settings)
        self._extractor = processor.feature_extractor
        self.model = load_pretrained(WhisperEncoder if second else AutoModelForSpeechSeq2Seq, settings, device)
        self._decoder = WhisperDecoder(self.model, settings.generation, timestamps=settings.timestamps)
        self._second = second or SecondStageHere(
            WindowWriter(self.model, self._decoder, processor.tokenizer, settings).answer
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
        self.generation = {**{name: getattr(settings, name) for name in DECIDING}, **settings.generation}

    def transcribe(self, chunks: list[SpeechChunk]) -> list[ChunkTranscript]:
        """What is heard in each chunk, whatever the others are."""
        return self.finish(self.begin(chunks))

    def begin(self, chunks: list[SpeechChunk]) -> tuple[list[_Rest], Any]:
        """Encode all chunks, and have their text written; `finish` takes what it returns."""
        waiting = [_Rest(i, 0, chunk) for i, chunk in enumerate(chunks)]
        return waiting, self._encode(waiting)

    def finish(self, begun: tuple[list[_Rest], Any]) -> list[ChunkTranscript]:
        """What is heard in each chunk; where the model stopped early, the rest is heard as well."""
        waiting, writing = begun
        parts: list[list[tuple[float, ChunkTranscript]]] = [[] for _ in waiting]
        while waiting:
            rests = []
            for (i, at, chunk), tree in zip(waiting, self._second.finish(writing)["heard"], strict=True):
                heard = HeardWindow.from_tree(tree)
                self._tally.add("tokens", heard.tokens)
                parts[i].append((seconds(at / self.sample_rate), heard.transcript))
                skipped = round(max(heard.stopped, LEAST_PROGRESS) * self.sample_rate)
                if len(chunk.samples) - skipped > SHORTEST_REST * self.sample_rate:
                    asked = replace(chunk.asked, language=heard.transcript.language)
                    rests.append(_Rest(i, at + skipped, SpeechChunk(chunk.samples[skipped:], asked)))
            waiting = rests
            writing = self._encode(waiting) if waiting else None
        return [joined(part) for part in parts]

    def features(self, samples: list[Samples]) -> Tensor:
        """The log-mel spectrograms of whole windows, (B, mels, frames), on the model's device and in its dtype."""
        inputs = self._extractor(samples, sampling_rate=self.sample_rate, return_tensors="pt", device=str(self._device))
        features: Tensor = inputs["input_features"].to(self._device, self.model.dtype)
        return features

    def _encode(self, rests: list[_Rest]) -> Any:
        """Of each, as much as a window holds, which the second stage begins to write about."""
        chunks = [rest.chunk for rest in rests]
        with torch.inference_mode():
            states = self._decoder.encode(self.features([chunk.samples for chunk in chunks]))
        windows = [Window.of(c.samples, c.asked, self.sample_rate, self._temperatures) for c in chunks]
        return self._second.begin({"states": states, "windows": [window.to_tree() for window in windows]})


def load_writer(settings: SpeechSettings, device: torch.device) -> Work:
    """The second stage of a Whisper: its decoder."""
    model = load_pretrained(WhisperWriter, settings, device)
    decoder = WhisperDecoder(model, settings.generation, timestamps=settings.timestamps)
    return WindowWriter(model, decoder, _processor(settings).tokenizer, settings).answer


def _processor(settings: SpeechSettings) -> Any:
    return AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
