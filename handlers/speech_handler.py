"""TorchServe handler: sound in, transcripts out, with Whisper and with CTC models of transformers.

Everything about the model stands under `handler:` in the archive's YAML (see speech.yaml). Requests and responses:
speech_requests.py; the body: reelscribe.wire; a transcript: reelscribe.speech.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from transcripts.ctc_model import CtcModel
from runtime.device_batches import DeviceBatches
from worker.handler import ModelHandler, Served
from runtime.settings import revision_of
from reelscribe.errors import StartupError
from reelscribe.speech import Asked, ChunkTranscript, SpeechDescription
from transcripts.chunks import SpeechChunk
from transcripts.audio_requests import SpeechLimits, SpeechReader
from transcripts.settings import SpeechModel, SpeechSettings
from runtime.metrics import Tally
from pipeline.remote import SecondStage, Work
from transcripts.whisper.model import WhisperModel, load_writer

WHISPER = "WhisperForConditionalGeneration"


def load_model(
    settings: SpeechSettings, device: torch.device, tally: Tally, second: SecondStage | None = None
) -> SpeechModel:
    """The model of the settings, which has transcribed a second of silence. Raises StartupError for an unknown kind.

    With `second`, only what comes before that is loaded.
    """
    kind = _kind(settings)
    model: SpeechModel
    if kind == WHISPER:
        model = WhisperModel(settings, device, tally, second)
    elif kind.endswith("ForCTC") and second is None:
        model = CtcModel(settings, device, tally)
    elif second is None:
        raise StartupError(f"model {settings.model}: expected {WHISPER} or a ...ForCTC, got {kind}")
    else:
        raise _indivisible(settings, kind)
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

    def serve(
        self,
        settings: SpeechSettings,
        device: torch.device,
        workers: int,
        response_seconds: float,
        second: SecondStage | None = None,
    ) -> Served:
        """Load the speech model, or what of it comes before `second`."""
        tally = Tally()
        model = load_model(settings, device, tally, second)

        def begin(pieces: list[list[SpeechChunk]]) -> Any:
            chunks = [chunk for piece in pieces for chunk in piece]
            return chunks, model.begin(chunks)

        def finish(begun: Any) -> list[ChunkTranscript]:
            chunks, writing = begun
            transcripts = model.finish(writing)
            tally.add("audio_seconds", sum(len(chunk.samples) for chunk in chunks) / model.sample_rate)
            return transcripts

        limits = SpeechLimits(settings.max_chunks, model.chunk_seconds, settings.max_file_seconds)
        return Served(
            describe(model, settings, workers, response_seconds).to_json(),
            lambda: SpeechReader(limits, model),
            DeviceBatches(
                finish,
                settings.device_batch,
                item="chunk",
                length=lambda chunk: len(chunk.samples),
                tally=tally,
                begin=begin,
                in_flight=settings.in_flight if second else 1,
            ),
            tally,
        )

    def second_stage(self, settings: SpeechSettings, device: torch.device) -> Work:
        """Load the decoder of a Whisper."""
        kind = _kind(settings)
        if kind != WHISPER:
            raise _indivisible(settings, kind)
        return load_writer(settings, device)


def _kind(settings: SpeechSettings) -> str:
    config = AutoConfig.from_pretrained(settings.pretrained, revision=settings.revision)
    architectures: list[str] = config.architectures or ["nothing"]
    return architectures[0]


def _indivisible(settings: SpeechSettings, kind: str) -> StartupError:
    return StartupError(
        f"model {settings.model}: expected {WHISPER} where handler, stages is 2, got {kind}, which is not known to have"
        " two halves; build the archive without --stages"
    )


handle = SpeechHandler().handle
"""TorchServe's entry point."""
