"""What all speech models but Whisper have in common: one process runs the whole model over each batch of chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from itertools import starmap
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import AutoProcessor, ParakeetFeatureExtractor

from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import PromptError, StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.metrics import Counters
from runtime.model_settings import revision_of
from runtime.pretrained import from_pretrained, load_pretrained
from transcripts.parakeet_features import ParakeetFeatures
from transcripts.speech_model import Chunk, Samples, SpeechSettings, one_task_each, with_translations

DEFAULT_CHUNK_SECONDS = 30.0
"""Longest chunk in seconds: these models take longer ones, but their attention takes memory quadratic in the length."""

MIN_SECONDS = 0.1
"""Shorter chunks are padded to this many seconds, as models need enough samples for at least one frame."""

Answer = TypeVar("Answer")
"""What the device computes for one chunk."""


class OneStageModel(ABC, Generic[Answer]):
    """A loaded model of transformers with its processor, on one device. It implements `SpeechModel`, in one stage."""

    model_class: ClassVar[Any]
    """The class of transformers that loads the weights."""

    languages: tuple[str, ...] = ()
    default_language: ClassVar[str | None] = None
    """Language of chunks where neither a request nor the settings name any; None if it is detected, or not known."""
    tasks: tuple[str, ...] = ("transcribe",)
    word_times = False
    prompt_tokens = 0
    beams = 1
    aligns = False
    detects_among = False
    generation: dict[str, Any]
    steps: CompiledSteps | None = None
    """Those of a model that generates text, if the settings ask for them."""

    def __init__(self, settings: SpeechSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the model.

        Args:
            settings: Which model, and its longest chunk.
            device: Where to load it.
            counters: Counts tokens.

        Raises:
            StartupError: The settings name a language that the model does not take.
        """
        self._counters = counters or Counters()
        self._device = device
        self._processor: Any = from_pretrained(AutoProcessor, settings)
        self.tokenizer, self._extractor = self._processor.tokenizer, self._processor.feature_extractor
        self._make_features = _features(self._extractor, device)
        self.model = load_pretrained(self.model_class, settings, device)
        self.revision = revision_of(settings, self.model)
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.sample_rate: int = self._extractor.sampling_rate
        self.chunk_seconds: float = settings.chunk_seconds or DEFAULT_CHUNK_SECONDS
        if settings.language is not None and settings.language not in self.languages:
            known = f"one of {', '.join(self.languages)}" if self.languages else "null, as it takes none"
            raise StartupError(
                f"YAML, handler, language: expected of {type(self.model).__name__} {known}, got {settings.language}"
            )
        self.language = settings.language or self.default_language

    def check_previous_text(self, text: str) -> None:  # noqa: ARG002 - no text is accepted
        """Raise PromptError: nothing in these models reads a text, unless a subclass says otherwise."""
        raise PromptError(
            f"initial_prompt, hotwords: expected none, as {type(self.model).__name__} reads no text; use a Whisper or"
            " Qwen3-ASR for them"
        )

    def transcribe(self, chunks: list[Chunk]) -> list[ChunkTranscript]:
        """Transcribe chunks; returns one transcript for each."""
        return self.collect(self.submit(chunks))

    def submit(self, chunks: list[Chunk]) -> tuple[list[Chunk], list[Answer]]:
        """Run the model over a batch of chunks. There is no second stage."""
        with torch.inference_mode():
            return chunks, self.run(one_task_each(chunks))

    def collect(self, pending: tuple[list[Chunk], list[Answer]]) -> list[ChunkTranscript]:
        """Return one transcript for each submitted chunk."""
        chunks, answers = pending
        transcripts = starmap(self.transcript, zip(one_task_each(chunks), answers, strict=True))
        return with_translations(chunks, transcripts)

    @abstractmethod
    def run(self, chunks: list[Chunk]) -> list[Answer]:
        """Run the model; returns what it answers for each chunk."""

    @abstractmethod
    def transcript(self, chunk: Chunk, answer: Answer) -> ChunkTranscript:
        """Make the transcript of a chunk of what the model answered."""

    def count_tokens(self, tokens: Iterable[Sized]) -> None:
        """Count the tokens of chunks."""
        self._counters.add("tokens", sum(map(len, tokens)))

    def language_of(self, chunk: Chunk) -> str | None:
        """Return the code of the language of a chunk, or None if no one has named it."""
        return next(iter(chunk.options.languages), self.language)  # of several, this model could not choose

    def seconds(self, chunk: Chunk) -> float:
        """Return the length of a chunk in seconds."""
        return len(chunk.samples) / self.sample_rate

    def features(self, chunks: list[Chunk]) -> dict[str, Tensor]:
        """Make the features of chunks, padded to the longest, on the model's device; short chunks are padded before."""
        shortest = round(MIN_SECONDS * self.sample_rate)
        samples = [np.pad(chunk.samples, (0, max(0, shortest - len(chunk.samples)))) for chunk in chunks]
        return self.on_device(self._make_features(samples))

    def on_device(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Move inputs to the model's device, and those that are floats to its dtype."""
        dtypes = {name: self.model.dtype if tensor.is_floating_point() else None for name, tensor in inputs.items()}
        return {name: tensor.to(self._device, dtypes[name]) for name, tensor in inputs.items()}


def _features(extractor: Any, device: torch.device) -> Callable[[list[Samples]], dict[str, Tensor]]:
    """Return what makes features of arrays of samples."""
    if isinstance(extractor, ParakeetFeatureExtractor):
        return ParakeetFeatures(extractor, device)
    return partial(extractor, sampling_rate=extractor.sampling_rate, padding=True, return_tensors="pt")
