"""A TorchServe handler that reads requests as the speech handler does, but whose model only sleeps.

The model transcribes `speed` seconds of audio in a second, on any machine; `speed` is a setting under `handler:` in the
YAML. The text of a transcript is the number of samples of its chunk, so that a benchmark can add up what was received.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from runtime.device_batches import DeviceBatches
from runtime.model_settings import ModelSettings
from runtime.second_stage import SecondStage
from transcripts.audio_requests import AudioLimits, AudioReader, SpeechOfFiles
from transcripts.speech_model import Chunk
from worker.handler import LoadedModel, ModelHandler
from worker.media_file import MediaFiles


@dataclass(frozen=True)
class EmulatedSettings(ModelSettings):
    """The settings under `handler:` in the YAML."""

    speed: float = 2000
    """Seconds of audio transcribed in a second."""


class EmulatedModel:
    """A model with the attributes that the reader of requests and the description need."""

    sample_rate = 16_000
    chunk_seconds = 30.0
    languages = ("en", "de")
    tasks = ("transcribe",)
    word_times = False
    beams = 1
    aligns = False
    detects_among = False
    max_chunks = 64

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self.generation: dict[str, Any] = {}
        self.model = None

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Return one segment for each chunk, after the time that a device of this speed takes."""
        lengths = [len(chunk.samples) for chunk in chunks]
        time.sleep(sum(lengths) / self.sample_rate / self._speed)
        return [self._transcript(length) for length in lengths]

    def check_previous_text(self, text: str) -> None:
        """Accept any text: what is answered does not depend on it."""

    def _transcript(self, samples: int) -> ChunkTranscript:
        text = f"{samples} samples"
        return ChunkTranscript(text, "en", (SpeechSegment(0.0, samples / self.sample_rate, text),))


class EmulatedSpeechHandler(ModelHandler[EmulatedSettings]):
    """The speech handler with the emulated model."""

    settings_class = EmulatedSettings

    def load_model(
        self,
        settings: EmulatedSettings,
        device: torch.device,
        response_seconds: float,
        _second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Return the model, its description and its reader of requests; no weights are loaded."""
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
            device_batch=settings.items_at_once(device),
            max_chunks=model.max_chunks,
            response_seconds=response_seconds,
        )

        def compute(slices: list[list[Chunk]]) -> list[ChunkTranscript]:
            return model.transcribe([chunk for part in slices for chunk in part])

        limits = AudioLimits(model.max_chunks, model.chunk_seconds)
        files = MediaFiles(SpeechOfFiles(description, model.max_chunks), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: AudioReader(limits, model, files),
            DeviceBatches(
                compute,
                settings.items_at_once(device),
                item="chunk",
                length=lambda chunk: len(chunk.samples),
            ),
        )


handle = EmulatedSpeechHandler().handle
"""TorchServe's entry point."""
