"""The engine torch: a Whisper of transformers.

The logits of languages, the probability of no speech and the average log-probability are those of openai/whisper
(decoding.py). The rules for timestamps and suppressed tokens are those of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList, WhisperForConditionalGeneration
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from reelscribe.errors import StartupError
from runtime.compiled_steps import CompiledSteps, generate_tokens
from runtime.generation import LimitedTokens
from runtime.model_settings import revision_of
from runtime.pretrained import load_pretrained
from transcripts.speech_model import SpeechSettings
from transcripts.whisper.engine_interface import AlignedTokens, DecodedTokens, average_logprob, token_limits
from transcripts.whisper.tokens import TokenSegment, WhisperTokens
from transcripts.whisper.word_alignment import align_tokens

_RESERVED_OPTIONS = frozenset(
    [
        *("do_sample", "temperature", "top_k", "top_p", "num_beams", "early_stopping"),
        *("language", "task", "return_timestamps", "return_dict_in_generate"),
    ]
)
"""Options of `generate` that this module sets itself."""

_ENCODED_ON_CPU = 2
"""Windows that a CPU encodes at once: what more of them need does not fit its caches."""


class TorchEngine:
    """A WhisperForConditionalGeneration, or one of its two halves. It implements `WhisperEngine`.

    Attributes:
        model: The model of transformers. Without a decoder, only `encode` and the attributes may be used; without an
            encoder, all but `encode`.
        options: Options of transformers' `generate`, without max_new_tokens.
        max_new_tokens: Limit for the tokens of a window.
        steps: The compiled steps of the decoder, if the settings ask for them.
    """

    def __init__(self, model_class: Any, settings: SpeechSettings, device: torch.device) -> None:
        """Load the model.

        Args:
            model_class: The class of the whole model, or of one half.
            settings: Which model, and how it generates.
            device: Where to load it.

        Raises:
            StartupError: `generation` has an option that this class sets itself, or the model lacks Whisper's settings.
        """
        options = settings.generation
        if reserved := _RESERVED_OPTIONS & set(options):
            raise StartupError(
                f"YAML, handler, generation: {', '.join(sorted(reserved))} cannot be set, as windows are decoded"
                " greedily or sampled at `temperatures`, and requests name language and task; leave it out"
            )
        self.model = load_pretrained(model_class, settings, device)
        config = self.model.generation_config
        self.tokens = WhisperTokens(config, self.model.config.eos_token_id, timestamps=settings.timestamps)
        config.max_length = None  # or each call would warn that max_new_tokens is given as well
        self.options = {name: value for name, value in options.items() if name != "max_new_tokens"}
        self.max_new_tokens = options.get("max_new_tokens", math.inf)
        self.word_times = bool(getattr(config, "alignment_heads", None))
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.revision = revision_of(settings, self.model)
        self.positions: int = self.model.config.max_target_positions
        self.steps = CompiledSteps(self.model, [self.positions]) if settings.compile else None

    def encode(self, features: Tensor) -> Tensor:
        """Return the encoder's states, (B, T, D)."""
        return encode_windows(self.model.get_encoder(), features)

    def batch(self, states: Tensor) -> TorchBatch:
        """Return windows with the encoder's states (B, T, D)."""
        return TorchBatch(self, states)


def encode_windows(encoder: Any, features: Tensor) -> Tensor:
    """Run an encoder of transformers over windows: over all at once on a GPU, over few at a time on a CPU.

    Args:
        encoder: The encoder.
        features: Log-mel spectrograms of B windows, (B, mels, frames).

    Returns:
        The encoder's states, (B, T, D), in its type.
    """
    features = features.to(encoder.device, encoder.dtype)
    groups = features.split(_ENCODED_ON_CPU if features.device.type == "cpu" else len(features))
    return torch.cat([encoder(group).last_hidden_state for group in groups])


class TorchBatch:
    """Encoded windows. It implements `WindowBatch`."""

    def __init__(self, engine: TorchEngine, states: Tensor, first_logits: Tensor | None = None) -> None:
        """Take the states of windows.

        Args:
            engine: The engine.
            states: The encoder's states, (B, T, D).
            first_logits: The logits of the decoder's first step, (B, V), where they are known.
        """
        self._engine, self._states = engine, states
        if first_logits is not None:
            self._first_logits = first_logits

    def __len__(self) -> int:
        return len(self._states)

    def select(self, rows: Sequence[int]) -> TorchBatch:
        """Return some of the windows."""
        rows = list(rows)
        return TorchBatch(self._engine, self._states[rows], self._first_logits[rows])

    @cached_property
    def _first_logits(self) -> Tensor:
        """The logits of the decoder's first step, (B, V), float32."""
        prompt = torch.full((len(self), 1), self._engine.tokens.start, device=self._states.device)
        output = self._engine.model(encoder_outputs=BaseModelOutput(self._states), decoder_input_ids=prompt)
        logits: Tensor = output.logits[:, 0].float()
        return logits

    def language_logits(self) -> Tensor:
        """Return the logits of the languages in each window; see `WindowBatch`."""
        return self._first_logits[:, list(self._engine.tokens.language_ids.values())].cpu()

    def generate(
        self, prompts: list[list[int]], limits: list[int], temperature: float, seeds: list[int], beams: int = 1
    ) -> list[DecodedTokens]:
        """Generate tokens for each window; see `WindowBatch`."""
        model, tokens = self._engine.model, self._engine.tokens
        ids = torch.tensor(prompts, device=self._states.device)
        length = ids.shape[1]
        limits = token_limits(limits, prompts[0], self._engine.max_new_tokens, self._engine.positions)
        selector: _TokenSelector | _BeamScores
        if beams > 1 and temperature == 0:
            selector = _BeamScores(length, limits, beams, tokens.end, self._states.device)
        else:
            selector = _TokenSelector(length, limits, temperature, seeds, tokens.end, self._states.device)
        processors: list[LogitsProcessor] = [selector]
        if tokens.timestamps:
            processors.insert(0, WhisperTimeStampLogitsProcessor(model.generation_config, begin_index=length))
        inputs: dict[str, Any] = {"encoder_outputs": BaseModelOutput(self._states), "decoder_input_ids": ids}
        inputs["attention_mask"] = torch.ones(self._states.shape[:2], device=self._states.device)
        options: dict[str, Any] = {"do_sample": False, "num_beams": selector.beams, "max_new_tokens": max(limits)}
        options |= self._engine.options
        # Whisper's own `generate` does not return the probability of no speech, nor the temperature of the result.
        # It calls this general `generate` for each temperature, too.
        search: Any = partial(GenerationMixin.generate, model)
        if isinstance(selector, _BeamScores):
            # As in openai/whisper, it stops as soon as so many texts have ended.
            options |= {"early_stopping": True, "return_dict_in_generate": True}
            output: Any = search(**inputs, **options, logits_processor=LogitsProcessorList(processors))
            sequences, scored = output.sequences, selector.logprobs(output)
        else:
            sequences = generate_tokens(model, inputs, options, processors, search)
            scored = selector.logprobs()
        rows, logprobs = sequences[:, length:].tolist(), scored.tolist()
        no_speech = self._first_logits.softmax(-1)[:, tokens.no_speech].tolist()
        return [self._decoded(*each) for each in zip(rows, logprobs, no_speech, strict=True)]

    def _decoded(self, row: list[int], logprobs: list[float], no_speech_prob: float) -> DecodedTokens:
        tokens = self._engine.tokens
        count = row.index(tokens.end) if tokens.end in row else len(row)
        average = average_logprob(sum(logprobs[: count + 1]), count)
        return DecodedTokens(tokens.text_and_timestamps(row[:count]), average, no_speech_prob)

    def align(self, prompt: list[int], segments: Sequence[TokenSegment], duration: float) -> list[AlignedTokens]:
        """Align the text tokens of a window with its audio; see `WindowBatch`."""
        return align_tokens(self._engine.model, self._states, prompt, segments, duration)


class _TokenSelector(LimitedTokens):
    """Makes the greedy search of transformers select tokens as Whisper does, and keeps how probable they are.

    At a temperature over 0, Gumbel noise is added to logits / temperature: the largest sum is a sample of their softmax
    (Gumbel 1954; Maddison et al. 2014, A* Sampling). The noise of each row comes from a generator on the CPU with the
    row's own seed, so a sample depends on nothing else.
    """

    beams = 1

    def __init__(
        self,
        prompt_length: int,
        limits: list[int],
        temperature: float,
        seeds: list[int],
        end: int,
        device: torch.device,
    ) -> None:
        super().__init__(prompt_length, limits, end, device)
        self._temperature = temperature
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds] if temperature > 0 else []
        self._logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = super().__call__(input_ids, scores)
        selected_from = self._with_noise(scores) if self._generators else scores
        selected = selected_from.argmax(-1, keepdim=True)
        self._logprobs.append(scores.float().log_softmax(-1).gather(-1, selected)[:, 0])
        return selected_from

    def logprobs(self) -> Tensor:
        """The log-probability of each token, (B, steps); it means nothing after a row has ended."""
        return torch.stack(self._logprobs, 1)

    def _with_noise(self, scores: Tensor) -> Tensor:
        noise = torch.empty(scores.shape)
        for row, generator in zip(noise, self._generators, strict=True):
            row.exponential_(generator=generator).log_().neg_()
        return scores / self._temperature + noise.to(scores.device)


class _BeamScores(LimitedTokens):
    """Makes log-probabilities of the scores of a beam search, and keeps those that it can select.

    transformers tells the score of a text only if it may keep the scores of all tokens of all steps, which takes
    gigabytes. A step continues the texts of a window with no more than its 2 * beams most probable tokens, so no row
    has more of them to keep.
    """

    def __init__(self, prompt_length: int, limits: list[int], beams: int, end: int, device: torch.device) -> None:
        super().__init__(prompt_length, [limit for limit in limits for _ in range(beams)], end, device)
        self.beams = beams
        self._steps: list[tuple[Tensor, Tensor]] = []
        """The log-probabilities and IDs of tokens that can be selected, (B * beams, 2 * beams), for each step."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logprobs = super().__call__(input_ids, scores).float().log_softmax(-1)
        top = logprobs.topk(2 * self.beams)
        self._steps.append((top.values, top.indices))
        return logprobs

    def logprobs(self, output: Any) -> Tensor:
        """The log-probability of each token, (B, steps), of the output of `generate`; 0 after a row has ended."""
        tokens = output.sequences[:, self._prompt_length :]
        columns = []
        for step, beam in enumerate(output.beam_indices.unbind(1)):
            values, ids = (part[beam.clamp(min=0)] for part in self._steps[step])
            columns.append(torch.where(ids == tokens[:, step, None], values, 0).sum(1).masked_fill(beam < 0, 0))
        return torch.stack(columns, 1)


class WhisperFirstStage(WhisperForConditionalGeneration):
    """A Whisper that loads only the weights of its encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("decoder", None)
        self.register_module("proj_out", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.decoder\.", r"^proj_out\."}
        self.all_tied_weights_keys = {}  # only the decoder has tied weights


class WhisperSecondStage(WhisperForConditionalGeneration):
    """A Whisper that loads all weights but those of its encoder; `generate` and `forward` need `encoder_outputs`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("encoder", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.encoder\."}
