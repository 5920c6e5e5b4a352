"""The interface of speech models, and loading one with the class for the architecture in its config.json."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from transformers import AutoConfig

from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions
from reelscribe.errors import StartupError
from runtime.metrics import Counters
from runtime.second_stage import SecondStage, StageFunction
from transcripts.chunks import Chunk
from transcripts.ctc_model import CtcModel
from transcripts.settings import SpeechSettings
from transcripts.whisper.model import WhisperModel, load_whisper_decoder

WHISPER = "WhisperForConditionalGeneration"


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
    tasks: tuple[str, ...]
    """The supported tasks, of "transcribe" and "translate"."""
    word_times: bool
    """Whether the model can give the times of words."""
    generation: dict[str, Any]
    """All other settings that influence transcripts; they are part of the description."""
    revision: str
    """Commit or digest of the weights."""
    dtype: str
    """Name of the data type that the model computes in."""

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks; returns one transcript for each. It is `collect` of `submit`."""

    def submit(self, chunks: list[Chunk]) -> Any:
        """Run the first stage of a model with two stages, or the whole model; returns a handle for `collect`."""

    def collect(self, pending: Any) -> list[ChunkTranscript]:
        """Wait for the second stage, if there is one; returns one transcript for each submitted chunk."""


def load_speech_model(
    settings: SpeechSettings, device: torch.device, counters: Counters, second_stage: SecondStage | None = None
) -> SpeechModel:
    """Load a speech model, and transcribe a second of silence with it.

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
    if architecture == WHISPER:
        model = WhisperModel(settings, device, counters, second_stage)
    elif settings.engine != "torch":
        raise StartupError(
            f"model {settings.model}: expected {WHISPER} where handler, engine is {settings.engine}, got"
            f" {architecture}; build the archive without --engine"
        )
    elif second_stage is not None:
        raise _no_two_stages(settings, architecture)
    elif architecture.endswith("ForCTC"):
        model = CtcModel(settings, device, counters)
    else:
        raise StartupError(f"model {settings.model}: expected {WHISPER} or a ...ForCTC, got {architecture}")
    # A model that cannot transcribe must not load, and no request should wait for lazy initialisation.
    silence = np.zeros(model.sample_rate, np.float32)
    model.transcribe([Chunk(silence, TranscriptionOptions(word_times=model.word_times))])
    return model


def load_second_stage(settings: SpeechSettings, device: torch.device) -> StageFunction:
    """Load the decoder of a Whisper onto `device`.

    Returns:
        The function that transcribes what the encoder returned.

    Raises:
        StartupError: The model is not a Whisper.
    """
    architecture = _architecture(settings)
    if architecture != WHISPER:
        raise _no_two_stages(settings, architecture)
    return load_whisper_decoder(settings, device)


def describe(model: SpeechModel, settings: SpeechSettings, workers: int, response_seconds: float) -> SpeechDescription:
    """Describe a loaded model to clients.

    Args:
        model: The loaded model.
        settings: The settings that it was loaded with.
        workers: How many workers TorchServe starts for it.
        response_seconds: TorchServe's timeout for a call, in seconds.
    """
    return SpeechDescription(
        name=settings.model,
        revision=model.revision,
        sample_rate=model.sample_rate,
        chunk_seconds=model.chunk_seconds,
        languages=model.languages,
        tasks=model.tasks,
        language=model.languages[0] if len(model.languages) == 1 else settings.language,
        word_times=model.word_times,
        generation=model.generation,
        dtype=model.dtype,
        engine=settings.engine,
        device_batch=settings.device_batch,
        max_chunks=settings.max_chunks,
        workers=workers,
        response_seconds=response_seconds,
    )


def _architecture(settings: SpeechSettings) -> str:
    config = AutoConfig.from_pretrained(settings.pretrained, revision=settings.revision)
    architectures: list[str] = config.architectures or ["nothing"]
    return architectures[0]


def _no_two_stages(settings: SpeechSettings, architecture: str) -> StartupError:
    return StartupError(
        f"model {settings.model}: expected {WHISPER} where handler, stages is 2, got {architecture}, which cannot be"
        " split into two stages; build the archive without --stages"
    )
