"""TorchServe's handler for transcription: audio comes in, transcripts go out.

The archive's YAML configures it under `handler:` (see speech.yaml). transcripts/audio_requests.py describes requests
and responses, reelscribe.wire the format of a body, reelscribe.contract.speech a transcript, and worker/handler.py what
TorchServe calls and when.
"""

from __future__ import annotations

from typing import Any

import torch

from reelscribe.contract.speech import ChunkTranscript
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage, StageFunction
from transcripts.audio_requests import AudioLimits, AudioReader
from transcripts.chunks import Chunk
from transcripts.models import describe, load_second_stage, load_speech_model
from transcripts.settings import SpeechSettings
from worker.handler import LoadedModel, ModelHandler


class SpeechHandler(ModelHandler[SpeechSettings]):
    """Transcribes audio with Whisper and with CTC models of transformers."""

    settings_class = SpeechSettings

    def load_model(
        self,
        settings: SpeechSettings,
        device: torch.device,
        workers: int,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the speech model, or with a `second_stage` only its encoder."""
        counters = Counters()
        model = load_speech_model(settings, device, counters, second_stage)

        def submit(slices: list[list[Chunk]]) -> tuple[list[Chunk], Any]:
            chunks = [chunk for part in slices for chunk in part]
            return chunks, model.submit(chunks)

        def collect(submitted: tuple[list[Chunk], Any]) -> list[ChunkTranscript]:
            chunks, pending = submitted
            transcripts = model.collect(pending)
            counters.add("audio_seconds", sum(len(chunk.samples) for chunk in chunks) / model.sample_rate)
            return transcripts

        limits = AudioLimits(settings.max_chunks, model.chunk_seconds, settings.max_file_seconds)
        return LoadedModel(
            describe(model, settings, workers, response_seconds).to_json(),
            lambda: AudioReader(limits, model),
            DeviceBatches(
                collect,
                settings.device_batch,
                submit=submit,
                item="chunk",
                length=lambda chunk: len(chunk.samples),
                counters=counters,
                in_flight=settings.in_flight if second_stage else 1,
            ),
            counters,
        )

    def load_second_stage(self, settings: SpeechSettings, device: torch.device) -> StageFunction:
        """Load the decoder of a Whisper."""
        return load_second_stage(settings, device)


handle = SpeechHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
