"""TorchServe's handler for transcription: audio comes in, transcripts go out.

The archive's YAML configures it under `handler:` (see speech.yaml). transcripts/audio_requests.py describes requests
and responses, reelscribe.wire the format of a body, reelscribe.contract.speech a transcript, and worker/handler.py what
TorchServe calls and when.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.speech import SPEECH_ARCHITECTURES, ChunkTranscript, TranscriptionOptions
from reelscribe.errors import StartupError
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.pretrained import from_pretrained
from runtime.second_stage import SecondStage, StageFunction
from transcripts.audio_requests import AudioLimits, AudioReader, SpeechOfFiles
from transcripts.canary_model import CanaryModel
from transcripts.ctc_model import CtcModel
from transcripts.one_stage_model import OneStageModel
from transcripts.qwen3_asr_model import Qwen3AsrModel
from transcripts.speech_model import Chunk, SpeechModel, SpeechSettings
from transcripts.tdt_model import TdtModel
from transcripts.whisper.model import WhisperModel, load_whisper_decoder
from worker.handler import LoadedModel, ModelHandler
from worker.media_file import MediaFiles

WHISPER = "WhisperForConditionalGeneration"

ONE_STAGE_MODELS: dict[str, type[OneStageModel[Any]]] = {
    model.model_class.__name__: model for model in (TdtModel, CanaryModel, Qwen3AsrModel)
}
"""The class for each architecture, besides Whisper and those with a CTC head."""


class SpeechHandler(ModelHandler[SpeechSettings]):
    """Transcribes audio with the speech models of transformers that `reelscribe.contract.speech` lists."""

    settings_class = SpeechSettings

    def load_model(
        self,
        settings: SpeechSettings,
        device: torch.device,
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

        limits = AudioLimits(settings.max_chunks, model.chunk_seconds)
        description = SpeechDescription(
            name=settings.model,
            revision=model.revision,
            sample_rate=model.sample_rate,
            chunk_seconds=model.chunk_seconds,
            languages=model.languages,
            tasks=model.tasks,
            language=model.language,
            word_times=model.word_times,
            prompt_tokens=model.prompt_tokens,
            beams=model.beams,
            aligns=model.aligns,
            detects_among=model.detects_among,
            generation=model.generation,
            dtype=model.dtype,
            engine=settings.engine,
            device_batch=settings.items_at_once(device),
            max_chunks=settings.max_chunks,
            response_seconds=response_seconds,
        )
        files = MediaFiles(SpeechOfFiles(description, settings.max_chunks), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: AudioReader(limits, model, files),
            DeviceBatches(
                collect,
                settings.items_at_once(device),
                submit=submit,
                item="chunk",
                length=lambda chunk: len(chunk.samples),
                counters=counters,
                in_flight=settings.in_flight if second_stage else 1,
                steps=model.steps,
            ),
            counters,
            lambda count: [silence(model, model.chunk_seconds) for _ in range(count)],
        )

    def load_second_stage(self, settings: SpeechSettings, device: torch.device) -> StageFunction:
        """Load the decoder of a Whisper."""
        architecture = _architecture(settings)
        if architecture != WHISPER:
            raise _no_two_stages(settings, architecture)
        return load_whisper_decoder(settings, device)


def load_speech_model(
    settings: SpeechSettings, device: torch.device, counters: Counters, second_stage: SecondStage | None = None
) -> SpeechModel:
    """Load a speech model with the class for its architecture, and transcribe a second of silence with it.

    Args:
        settings: Which model, and how it generates.
        device: Where to load it.
        counters: Counts tokens.
        second_stage: The decoder of a Whisper in another process. By default, this process loads the whole model.

    Returns:
        The model, ready for requests.

    Raises:
        StartupError: The architecture is not supported, or it cannot be split into two stages.
    """
    architecture = _architecture(settings)
    model: SpeechModel
    one_stage = CtcModel if architecture.endswith("ForCTC") else ONE_STAGE_MODELS.get(architecture)
    if architecture == WHISPER:
        model = WhisperModel(settings, device, counters, second_stage)
    elif settings.engine != "torch":
        raise StartupError(
            f"model {settings.model}: expected {WHISPER} where handler, engine is {settings.engine}, got"
            f" {architecture}; build the archive without --engine"
        )
    elif second_stage is not None:
        raise _no_two_stages(settings, architecture)
    elif one_stage is not None:
        model = one_stage(settings, device, counters)
    else:
        known = ", ".join(SPEECH_ARCHITECTURES)
        raise StartupError(f"model {settings.model}: expected {known} or a ...ForCTC, got {architecture}")
    # A model that cannot transcribe must not load, and no request should wait for lazy initialisation.
    model.transcribe([silence(model, 1)])
    return model


def silence(model: SpeechModel, seconds: float) -> Chunk:
    """Return a chunk of silence."""
    samples = np.zeros(round(seconds * model.sample_rate), np.float32)
    return Chunk(samples, TranscriptionOptions(word_times=model.word_times))


def _architecture(settings: SpeechSettings) -> str:
    config = from_pretrained(AutoConfig, settings)
    architectures: list[str] = config.architectures or ["nothing"]
    return architectures[0]


def _no_two_stages(settings: SpeechSettings, architecture: str) -> StartupError:
    return StartupError(
        f"model {settings.model}: expected {WHISPER} where handler, stages is 2, got {architecture}, which cannot be"
        " split into two stages; build the archive without --stages"
    )


handle = SpeechHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
