"""TorchServe handler: sound in, transcripts out, with Whisper and with CTC models of transformers.

Everything about the model stands under `handler:` in the archive's YAML (see speech.yaml). Requests and responses:
speech_requests.py; the body: reelscribe.wire; a transcript: reelscribe.speech.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoConfig

from ctc_model import CtcModel
from device_batches import DeviceBatches
from model_handler import ModelHandler, Served
from model_settings import revision_of
from reelscribe.errors import StartupError
from reelscribe.speech import Asked, ChunkTranscript, SpeechDescription
from speech_chunks import SpeechChunk
from speech_requests import SpeechLimits, SpeechReader
from speech_settings import SpeechModel, SpeechSettings
from tally import Tally
from whisper_model import WhisperModel


def load_model(settings: SpeechSettings, device: torch.device, tally: Tally) -> SpeechModel:
    """The model of the settings, which has transcribed a second of silence. Raises StartupError for an unknown kind."""
    config = AutoConfig.from_pretrained(settings.pretrained, revision=settings.revision)
    kind = (config.architectures or ["nothing"])[0]
    model: SpeechModel
    if kind == "WhisperForConditionalGeneration":
        model = WhisperModel(settings, device, tally)
    elif kind.endswith("ForCTC"):
        model = CtcModel(settings, device, tally)
    else:
        raise StartupError(
            f"model {settings.model}: expected WhisperForConditionalGeneration or a ...ForCTC, got {kind}"
        )
    # A model that cannot transcribe should not load, and no request should pay for what starts lazily.
    silence = np.zeros(model.sample_rate, np.float32)
    model.transcribe([SpeechChunk(silence, Asked(word_times=model.word_times))])
    return model


def describe(model: SpeechModel, settings: SpeechSettings, workers: int, response_seconds: float) -> SpeechDescription:
    """What clients need to know, with what TorchServe was told of the model."""
    return SpeechDescription(
        name=settings.model,
        revision=revision_of(settings, model.model),
        sample_rate=model.sample_rate,
        chunk_seconds=model.chunk_seconds,
        languages=model.languages,
        tasks=model.tasks,
        language=settings.language,
        word_times=model.word_times,
        generation=model.generation,
        dtype=str(model.model.dtype).removeprefix("torch."),
        device_batch=settings.device_batch,
        max_chunks=settings.max_chunks,
        workers=workers,
        response_seconds=response_seconds,
    )


class SpeechHandler(ModelHandler[SpeechSettings]):
    """Transcribes sound."""

    settings = SpeechSettings

    def serve(self, settings: SpeechSettings, device: torch.device, workers: int, response_seconds: float) -> Served:
        """Load the speech model."""
        tally = Tally()
        model = load_model(settings, device, tally)

        def transcribe(pieces: list[list[SpeechChunk]]) -> list[ChunkTranscript]:
            chunks = [chunk for piece in pieces for chunk in piece]
            transcripts = model.transcribe(chunks)
            tally.add("audio_seconds", sum(len(chunk.samples) for chunk in chunks) / model.sample_rate)
            return transcripts

        limits = SpeechLimits(settings.max_chunks, model.chunk_seconds, settings.max_file_seconds)
        return Served(
            describe(model, settings, workers, response_seconds).to_json(),
            lambda: SpeechReader(limits, model),
            DeviceBatches(
                transcribe,
                settings.device_batch,
                item="chunk",
                length=lambda chunk: len(chunk.samples),
                tally=tally,
            ),
            tally,
        )


handle = SpeechHandler().handle
"""TorchServe's entry point."""
