"""What speech models have in common that generate a text after a prompt, which names language and task.

A chunk is one segment, and its words have no times. Its inputs are made of it alone and then padded, so that it does
not matter which others are in its batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions
from reelscribe.errors import StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.generation import LimitedTokens, end_tokens, generate
from runtime.metrics import Counters
from transcripts.one_stage_model import OneStageModel
from transcripts.speech_model import Chunk, SpeechSettings, round_seconds

_RESERVED_OPTIONS = frozenset(["do_sample", "num_beams", "return_dict_in_generate", "output_scores"])
"""Options of `generate` that this module sets itself."""


class GeneratedText(NamedTuple):
    """What a model generated for one chunk."""

    tokens: list[int]
    """The IDs of its tokens, without the prompt and without the end."""
    avg_logprob: float
    """The average log-probability of these tokens and their end."""


class PromptedModel(OneStageModel[GeneratedText]):
    """A loaded model with its processor, on one device. It implements `SpeechModel`, in one stage."""

    prompt_input: ClassVar[str]
    """Name of the input that holds the prompt: the first tokens of what the model generates."""
    left_padded: ClassVar[Collection[str]] = ()
    """Names of the inputs that are padded at their start; others are padded at their end."""

    def __init__(self, settings: SpeechSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the model.

        Args:
            settings: Which model, and how it generates.
            device: Where to load it.
            counters: Counts tokens.

        Raises:
            StartupError: A language is unknown, an option of `generate` is one that this class sets itself, or the
                longest chunk has no room in the model.
        """
        super().__init__(settings, device, counters)
        if reserved := _RESERVED_OPTIONS & set(settings.generation):
            raise StartupError(
                f"YAML, handler, generation: {', '.join(sorted(reserved))} cannot be set, as this model decodes"
                " greedily; leave it out"
            )
        self._settings = settings
        self._options = {"do_sample": False, "num_beams": 1, **settings.generation}
        self._ends = end_tokens(self.model.generation_config, self._options)
        self.model.generation_config.max_length = None  # or each call would warn that max_new_tokens is given as well
        self.generation = {"tokens_per_second": settings.tokens_per_second, **settings.generation}
        needed = self._check_positions()
        if settings.compile:
            # With the longest prompt, and without one, as most chunks are.
            lengths = (needed - self.prompt_tokens, needed)
            self.steps = CompiledSteps(self.model, lengths, self._encoder_length())

    @abstractmethod
    def inputs(self, chunk: Chunk) -> dict[str, Tensor]:
        """Make the model's inputs of one chunk, each (1, ...)."""

    @abstractmethod
    def text(self, chunk: Chunk, tokens: list[int]) -> tuple[str, str | None]:
        """Return the text of a chunk, and the code of its language; None if that is not known."""

    def run(self, chunks: list[Chunk]) -> list[GeneratedText]:
        """Generate the text of each chunk."""
        inputs = self.on_device(_pad([self.inputs(chunk) for chunk in chunks], self.left_padded))
        prompt = inputs[self.prompt_input].shape[1]
        limits = [self._token_limit(self.seconds(chunk)) for chunk in chunks]
        output = generate(
            self.model,
            # With the end, so that it counts in the average of a text that is cut off, whatever the other limits are.
            {**self._options, "max_new_tokens": max(limits) + 1},
            inputs,
            ends=self._ends,
            processors=[LimitedTokens(prompt, limits, self._ends[0], self._device)],
        )
        texts = [list(takewhile(lambda token: token not in self._ends, row[prompt:])) for row in output["tokens"]]
        self.count_tokens(texts)
        return [GeneratedText(*each) for each in zip(texts, output["avg_logprobs"], strict=True)]

    def transcript(self, chunk: Chunk, answer: GeneratedText) -> ChunkTranscript:
        """Make one segment of the text of a chunk, or none if it is empty."""
        text, language = self.text(chunk, answer.tokens)
        average = round_confidence(answer.avg_logprob)
        segment = SpeechSegment(0.0, round_seconds(self.seconds(chunk)), text, None, average)
        return ChunkTranscript(text, language, (segment,) if text else (), avg_logprob=average)

    def _token_limit(self, seconds: float) -> int:
        limit = self._settings.token_limit(seconds)
        return min(limit, int(self._settings.generation.get("max_new_tokens", limit)))

    def _encoder_length(self) -> int | None:
        """The number of states that an encoder makes of the longest chunk; None if the model has no such part."""
        if not self.model.config.is_encoder_decoder:
            return None
        inputs = self.on_device(self.inputs(self._longest_chunk()))
        with torch.inference_mode():
            states = self.model.get_encoder()(inputs[self.model.main_input_name]).last_hidden_state
        return int(states.shape[1])

    def _longest_chunk(self) -> Chunk:
        silence = np.zeros(round(self.chunk_seconds * self.sample_rate), np.float32)
        return Chunk(silence, TranscriptionOptions())

    def _check_positions(self) -> int:
        """Return how many positions the longest chunk needs with the longest prompt; StartupError if it has no room."""
        positions: int = self.model.config.get_text_config().max_position_embeddings
        prompt = self.inputs(self._longest_chunk())[self.prompt_input].shape[1]
        needed = prompt + self.prompt_tokens + self._token_limit(self.chunk_seconds) + 1
        if needed > positions:
            raise StartupError(
                f"YAML, handler, chunk_seconds: expected chunks with room in the {positions} positions of"
                f" {type(self.model).__name__}, got {self.chunk_seconds:g}, for which it needs {needed}; give less"
            )
        return int(needed)


def _pad(parts: Sequence[dict[str, Tensor]], left_padded: Collection[str]) -> dict[str, Tensor]:
    """Join inputs (1, ...) of chunks to those of a batch, (B, ...), padded with zeros to the largest."""
    batch = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
        padded = []
        for tensor in tensors:
            missing = [size - own for size, own in zip(largest, tensor.shape, strict=True)][::-1]
            padded.append(F.pad(tensor, [n for m in missing for n in ((m, 0) if name in left_padded else (0, m))]))
        batch[name] = torch.cat(padded)
    return batch
