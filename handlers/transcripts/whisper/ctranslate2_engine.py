"""The engine CTranslate2: a Whisper that ctranslate2_conversion.py has converted. torch encodes in float types.

Greedy decoding, its log-probabilities and the probability of no speech are those of the engine torch, but for rounding.
Three things differ. At a temperature over 0, other random numbers are drawn; a seed still draws the same ones. The
average by which beams are compared does not count the end token. And words get their times from one path through the
attention for all text of a window, as CTranslate2 does not return attention; here, the path is confined to the
segments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, GenerationConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from reelscribe.errors import StartupError, missing_package
from runtime.compiled_steps import CompiledSteps
from runtime.model_settings import revision_of
from runtime.pretrained import from_pretrained
from transcripts.speech_model import SpeechSettings
from transcripts.whisper.engine_interface import (
    AlignedTokens,
    DecodedTokens,
    average_logprob,
    token_limits,
)
from transcripts.whisper.tokens import TokenSegment, WhisperTokens
from transcripts.whisper.torch_engine import encode_windows
from transcripts.whisper.word_alignment import align_segments, state_count

try:
    import ctranslate2
except ImportError:
    raise StartupError(f"YAML, handler, engine ctranslate2: {missing_package('ctranslate2', 'ctranslate2')}") from None

ENCODER_FILE = "model.safetensors"
"""Name of the file with the weights of an encoder that torch runs."""

FRAMES_PER_STATE = 2
"""Frames of the spectrogram for each state of the encoder."""

_OPTIONS = ("max_new_tokens",)
"""The options of transformers' `generate` that this engine has too."""


class CTranslate2Engine:
    """A converted Whisper. It implements `WhisperEngine`."""

    def __init__(self, settings: SpeechSettings, device: torch.device) -> None:
        """Load the model.

        Args:
            settings: Which model, and how it generates.
            device: Where to load it.

        Raises:
            StartupError: A setting is one that this engine does not have, or the model lacks Whisper's settings.
        """
        if unknown := settings.generation.keys() - set(_OPTIONS):
            raise StartupError(
                f"YAML, handler, generation: engine ctranslate2 has {', '.join(_OPTIONS)} alone, got"
                f" {', '.join(sorted(unknown))}; leave it out, or build the archive without --engine"
            )
        self.config = config = from_pretrained(AutoConfig, settings)
        generation = from_pretrained(GenerationConfig, settings)
        self.tokens = WhisperTokens(generation, config.eos_token_id, timestamps=settings.timestamps)
        self.word_times = bool(getattr(generation, "alignment_heads", None))
        self.max_new_tokens = settings.generation.get("max_new_tokens", math.inf)
        self.options = {
            "return_scores": True,
            "return_no_speech_prob": True,
            "max_initial_timestamp_index": getattr(generation, "max_initial_timestamp_index", None)
            or config.max_source_positions,
        }
        self._load = partial(
            ctranslate2.models.Whisper,
            str(settings.converted_folder),
            device=device.type,
            device_index=device.index or 0,
            compute_type=_compute_type(settings, device),
            intra_threads=settings.cpu_threads,
        )
        self.model = self._load()
        self.dtype: str = self.model.compute_type
        self.revision = revision_of(settings, self)
        self.positions: int = config.max_target_positions
        self.steps: CompiledSteps | None = None
        self._encoder = None
        if (settings.converted_folder / ENCODER_FILE).exists():
            folder, dtype = str(settings.converted_folder), _float_type(self.dtype)
            encoder: Any = WhisperEncoder.from_pretrained(folder, config=config, dtype=dtype, use_safetensors=True)
            self._encoder = encoder.to(device).eval()

    def encode(self, features: Tensor) -> Tensor:
        """Return the encoder's states, (B, T, D)."""
        if self._encoder is not None:
            return encode_windows(self._encoder, features)
        # What one window needs fits the caches of a CPU; what many need does not.
        arrays = features.float().cpu().numpy()
        views = map(
            ctranslate2.StorageView.from_array, np.split(arrays, len(arrays) if self.model.device == "cpu" else 1)
        )
        return torch.from_numpy(np.concatenate([_array(self.model.encode(view)) for view in views]))

    def batch(self, states: Tensor) -> CTranslate2Batch:
        """Return windows with the encoder's states (B, T, D)."""
        return CTranslate2Batch(self, states)

    def load_with_seed(self, seed: int) -> Any:
        """Return the model, loaded again, with a generator of random numbers that starts at `seed`.

        CTranslate2 seeds a generator only when a thread first uses it, and each loaded model has threads of its own.
        """
        ctranslate2.set_random_seed(seed % 2**32)
        return self._load()


class CTranslate2Batch:
    """Encoded windows. It implements `WindowBatch`."""

    def __init__(self, engine: CTranslate2Engine, states: Tensor) -> None:
        """Take the states of windows, (B, T, D)."""
        self._engine, self._states = engine, states

    def __len__(self) -> int:
        return len(self._states)

    def select(self, rows: Sequence[int]) -> CTranslate2Batch:
        """Return some of the windows."""
        return CTranslate2Batch(self._engine, self._states[list(rows)])

    @cached_property
    def _view(self) -> Any:
        """The states for CTranslate2, which converts them to its type."""
        # bfloat16 is no type that the two libraries exchange.
        states = self._states.float().contiguous()
        if states.is_cuda:
            torch.cuda.current_stream(states.device).synchronize()  # CTranslate2 has a stream of its own
        return ctranslate2.StorageView.from_array(states if states.is_cuda else states.numpy())

    @cached_property
    def _first_steps(self) -> Any:
        """The result of the decoder's first step for each window, with its logits and the probability of no speech."""
        # As the start is followed by a token of text, CTranslate2 does not apply its rules for timestamps to logits.
        return self._engine.model.generate(
            self._view,
            [[self._engine.tokens.start, 0]] * len(self),
            beam_size=1,
            max_length=2,
            return_logits_vocab=True,
            return_no_speech_prob=True,
            suppress_blank=False,
            suppress_tokens=[],
        )

    def language_logits(self) -> Tensor:
        """Return the logits of the languages in each window; see `WindowBatch`."""
        ids = list(self._engine.tokens.language_ids.values())
        # CTranslate2's own detection is only for models with the vocabulary of OpenAI.
        return torch.from_numpy(np.stack([_array(step.logits[0][0]).ravel()[ids] for step in self._first_steps]))

    def generate(
        self, prompts: list[list[int]], limits: list[int], temperature: float, seeds: list[int], beams: int = 1
    ) -> list[DecodedTokens]:
        """Generate tokens for each window; see `WindowBatch`."""
        engine = self._engine
        limits = token_limits(limits, prompts[0], engine.max_new_tokens, engine.positions)
        if temperature > 0:
            return [
                self.select([row])._sampled(prompt, limit, temperature, seed)
                for row, (prompt, limit, seed) in enumerate(zip(prompts, limits, seeds, strict=True))
            ]
        # The score of a single beam is the sum of the log-probabilities, with that of the end token. Beams are compared
        # by the average, for which CTranslate2 divides by the number of tokens before the end.
        options = {"beam_size": beams, "length_penalty": 0 if beams == 1 else 1}
        # CTranslate2 takes one limit for all windows; one that has reached its own is generated again, up to there.
        results = self._run(engine.model, prompts, max(limits), **options)
        for row, limit in enumerate(limits):
            if limit < max(limits) and len(results[row].sequences_ids[0]) >= limit:
                (results[row],) = self.select([row])._run(engine.model, [prompts[row]], limit, **options)
        averaged = [1 if beams == 1 else max(1, len(result.sequences_ids[0])) for result in results]
        no_speech = self._no_speech(prompts[0], results)
        return [
            self._decoded(result, count * result.scores[0], silent)
            for result, count, silent in zip(results, averaged, no_speech, strict=True)
        ]

    def _no_speech(self, prompt: list[int], results: Any) -> list[float]:
        """The probability of no speech of each window, which CTranslate2 computes with what was said before."""
        told = prompt[0] != self._engine.tokens.start
        return [result.no_speech_prob for result in (self._first_steps if told else results)]

    def _sampled(self, prompt: list[int], limit: int, temperature: float, seed: int) -> DecodedTokens:
        """Sample the tokens of the only window."""
        model, tokens = self._engine.load_with_seed(seed), self._engine.tokens
        sampling = {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": temperature}
        (result,) = self._run(model, [prompt], limit, return_logits_vocab=True, **sampling)
        # The score is that of the temperature; log-probabilities are without one.
        (generated,), (steps,) = result.sequences_ids, result.logits
        selected = torch.tensor([*generated, tokens.end][: len(steps)])
        logits = torch.from_numpy(np.stack([_array(step).ravel() for step in steps[: len(selected)]]))
        logprobs = logits.gather(1, selected[:, None])[:, 0] - logits.logsumexp(1)
        return self._decoded(result, float(logprobs.sum()), *self._no_speech(prompt, [result]))

    def _run(self, model: Any, prompts: list[list[int]], limit: int, **options: Any) -> Any:
        """Generate up to `limit` tokens for each window."""
        # CTranslate2 stops at half of max_length, and at max_length with the prompt.
        length = max(2 * limit, limit + len(prompts[0]))
        return model.generate(self._view, prompts, max_length=length, **self._engine.options, **options)

    def _decoded(self, result: Any, logprob: float, no_speech_prob: float) -> DecodedTokens:
        """The tokens of a window, with the sum of the log-probabilities of them and their end."""
        (tokens,) = result.sequences_ids
        kept = self._engine.tokens.text_and_timestamps(tokens)
        return DecodedTokens(kept, average_logprob(logprob, len(tokens)), no_speech_prob)

    def align(self, prompt: list[int], segments: Sequence[TokenSegment], duration: float) -> list[AlignedTokens]:
        """Align the text tokens of a window with its audio; see `WindowBatch`."""
        tokens = [token for segment in segments for token in segment.tokens]
        length = state_count(self._states.shape[1], duration)
        (result,) = self._engine.model.align(
            self._view,
            prompt[:-1],  # CTranslate2 adds <|notimestamps|> itself
            [tokens],
            length * FRAMES_PER_STATE,
            median_filter_width=self._engine.config.median_filter_width,
        )
        path = np.array(result.alignments)
        starts = path[np.searchsorted(path[:, 0], np.arange(len(tokens))), 1]
        return align_segments(
            segments,
            length,
            duration,
            list(result.text_token_probs),
            lambda rows, first, stop: _confined(starts[rows] - first, stop - first),
        )


def _confined(starts: NDArray[np.intp], length: int) -> NDArray[np.intp]:
    """Move starts into a range of `length` states, so that the first is 0 and each token lasts for a state at least."""
    rows = np.arange(len(starts))
    starts = np.append(0, starts[1:])
    starts = np.maximum.accumulate(starts - rows) + rows
    confined: NDArray[np.intp] = np.minimum(starts, length - len(starts) + rows)
    return confined


def _compute_type(settings: SpeechSettings, device: torch.device) -> str:
    """The type that CTranslate2 computes in. Raises StartupError if the device does not have it."""
    # On a GPU float16, as CTranslate2 has bfloat16 on newer ones only, and this type everywhere.
    wanted = ("float32" if device.type == "cpu" else "float16") if settings.dtype == "auto" else settings.dtype
    supported = sorted(ctranslate2.get_supported_compute_types(device.type, device.index or 0))
    if wanted not in supported:
        raise StartupError(
            f"YAML, handler, dtype: expected auto or one of {', '.join(supported)} with engine ctranslate2 on"
            f" {device.type}, got {settings.dtype!r}"
        )
    return wanted


def _float_type(compute_type: str) -> torch.dtype:
    """The type that CTranslate2 computes in where it does not compute with integers."""
    name = compute_type.rpartition("_")[2]
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(name, torch.float32)


def _array(view: Any) -> NDArray[np.float32]:
    """The numbers of a StorageView, not copied if they are float32 on the CPU."""
    if view.device != "cpu":
        view = view.to_device(ctranslate2.Device.cpu)
    return np.asarray(view if view.dtype == ctranslate2.DataType.float32 else view.to(ctranslate2.DataType.float32))
