"""A TorchServe handler with an emulated speech model: all of the speech handler but the model, which sleeps instead.

It hears `speed` seconds of sound in a second, whatever the machine. In the YAML, under `handler:`, stands that speed. A
transcript says how many samples its chunk had, so that whoever adds them up knows what arrived.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from device_batches import DeviceBatches
from model_handler import ModelHandler, Served
from model_settings import ModelSettings
from speech_chunks import SpeechChunk
from speech_requests import SpeechLimits, SpeechReader
from two_stages import SecondStage

from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment


@dataclass(frozen=True)
class EmulatedSettings(ModelSettings):
    """What stands under `handler:` in the YAML."""

    speed: float = 2000
    """Seconds of sound in a second."""


class EmulatedModel:
    """What the reader of requests and the description want of a speech model."""

    sample_rate = 16_000
    chunk_seconds = 30.0
    languages = ("en", "de")
    tasks = ("transcribe",)
    word_times = False
    max_chunks = 64
    max_file_seconds = 600

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self.generation: dict[str, Any] = {}
        self.model = None

    def transcribe(self, chunks: list[SpeechChunk]) -> list[ChunkTranscript]:
        """One segment for each chunk, when a device of this speed has had the time for it."""
        lengths = [len(chunk.samples) for chunk in chunks]
        time.sleep(sum(lengths) / self.sample_rate / self._speed)
        return [self._transcript(length) for length in lengths]

    def _transcript(self, samples: int) -> ChunkTranscript:
        text = f"{samples} samples"
        return ChunkTranscript(text, "en", (SpeechSegment(0.0, samples / self.sample_rate, text),))


class EmulatedSpeechHandler(ModelHandler[EmulatedSettings]):
    """Transcribes nothing."""

    settings = EmulatedSettings

    def serve(
        self,
        settings: EmulatedSettings,
        _device: torch.device,
        workers: int,
        response_seconds: float,
        _second: SecondStage | None = None,
    ) -> Served:
        """Load nothing."""
        model = EmulatedModel(settings.speed)
        description = SpeechDescription(
            name=settings.model,
            revision="1",
            sample_rate=model.sample_rate,
            chunk_seconds=model.chunk_seconds,
            languages=model.languages,
            tasks=model.tasks,
            language=None,
            word_times=model.word_times,
            generation=model.generation,
            dtype="float32",
            device_batch=settings.device_batch,
            max_chunks=model.max_chunks,
            workers=workers,
            response_seconds=response_seconds,
        )
        limits = SpeechLimits(model.max_chunks, model.chunk_seconds, model.max_file_seconds)
        return Served(
            description.to_json(),
            lambda: SpeechReader(limits, model),
            DeviceBatches(
                lambda pieces: model.transcribe([chunk for piece in pieces for chunk in piece]),
                settings.device_batch,
                item="chunk",
                length=lambda chunk: len(chunk.samples),
            ),
        )


handle = EmulatedSpeechHandler().handle
"""TorchServe's entry point."""
