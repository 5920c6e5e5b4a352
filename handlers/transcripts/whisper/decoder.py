"""The decoder of Whisper: turns the encoder's states of windows into languages and tokens.

Language detection, the probability of no speech and the average log-probability are those of openai/whisper
(decoding.py). The rules for timestamps and suppressed tokens are those of transformers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from reelscribe.errors import StartupError

_RESERVED_OPTIONS = frozenset(
    ["do_sample", "temperature", "top_k", "top_p", "num_beams", "language", "task", "return_timestamps"]
)
"""Options of `generate` that this module sets itself."""


class DecodedTokens(NamedTuple):
    """The tokens that were generated for one window."""

    tokens: list[int]
    """IDs of text and timestamp tokens, without the prompt and the end token."""
    avg_logprob: float
    """Average log-probability of the tokens and the end token."""
    text_probability: float
    """Mean probability of the text tokens, without timestamps, from 0 to 1; 1 if there are none. A token that repeats
    the one before it counts half, as a model that guesses finds repetitions probable."""


class LanguageDetection(NamedTuple):
    """What the first step of the decoder predicts for one window."""

    language: str | None
    """Code of the most probable language; None for models of a single language."""
    no_speech_prob: float
    """Probability from 0 to 1 that the window holds no speech."""


class WhisperDecoder:
    """The decoder of a WhisperForConditionalGeneration.

    Attributes:
        languages: Codes of the supported languages; empty for models of a single language.
        tasks: The supported tasks, of "transcribe" and "translate".
        first_timestamp: The ID of the timestamp token of 0.00 s; text tokens have lower IDs.
    """

    def __init__(self, model: Any, options: dict[str, Any], *, timestamps: bool) -> None:
        """Read a model's settings for generation.

        Args:
            model: A loaded Whisper; its encoder is not used. A `WhisperFirstStage` has no decoder: only the attributes
                may be used then.
            options: Options of transformers' `generate`.
            timestamps: Whether to generate the times of segments.

        Raises:
            StartupError: `options` has one that this class sets itself, or the model lacks Whisper's settings.
        """
        if reserved := _RESERVED_OPTIONS & set(options):
            raise StartupError(
                f"YAML, handler, generation: {', '.join(sorted(reserved))} cannot be set, as windows are decoded"
                " greedily or sampled at `temperatures`, and requests name language and task; leave it out"
            )
        config = model.generation_config
        if getattr(config, "no_timestamps_token_id", None) is None:
            raise StartupError(
                "generation_config.json: expected no_timestamps_token_id, which every Whisper has; copy the file from"
                " the model that this one was trained from"
            )
        config.max_length = None  # or each call would warn that max_new_tokens is given as well
        self._model = model
        self._options = {name: value for name, value in options.items() if name != "max_new_tokens"}
        self._max_new_tokens = options.get("max_new_tokens", math.inf)
        self._timestamps = timestamps
        self._start, self._end = config.decoder_start_token_id, model.config.eos_token_id
        self._no_timestamps = config.no_timestamps_token_id
        self._languages = {
            name.strip("<|>"): token for name, token in (getattr(config, "lang_to_id", None) or {}).items()
        }
        self._tasks: dict[str, int] = getattr(config, "task_to_id", None) or {}
        multilingual = getattr(config, "is_multilingual", bool(self._languages))
        if not multilingual:
            self._languages, self._tasks = {}, {}
        self.languages, self.tasks = tuple(self._languages), tuple(self._tasks) or ("transcribe",)
        self.first_timestamp = self._no_timestamps + 1

    def detect_language(self, states: Tensor) -> list[LanguageDetection]:
        """Detect the language of each window, and the probability that it holds no speech.

        Args:
            states: The encoder's states, (B, T, D).

        Returns:
            One detection for each window.
        """
        prompt = torch.full((len(states), 1), self._start, device=states.device)
        logits = self._model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=prompt).logits[:, 0].float()
        # The token <|nospeech|> is the one before <|notimestamps|>.
        no_speech = logits.softmax(-1)[:, self._no_timestamps - 1].tolist()
        if not self._languages:
            return [LanguageDetection(None, probability) for probability in no_speech]
        codes, ids = list(self._languages), list(self._languages.values())
        best = logits[:, ids].argmax(-1).tolist()
        return [LanguageDetection(codes[i], probability) for i, probability in zip(best, no_speech, strict=True)]

    def prompt(self, language: str | None, task: str, *, timestamps: bool | None = None) -> list[int]:
        """Make the tokens that precede the text of a window.

        Args:
            language: Code of the language; None for models of a single language.
            task: "transcribe" or "translate".
            timestamps: Whether to ask for timestamps; by default, what `__init__` was given.

        Returns:
            Token IDs: <|startoftranscript|>, language and task of multilingual models, and perhaps <|notimestamps|>.
        """
        tokens = [self._start]
        if language is not None and self._languages:
            tokens += [self._languages[language], self._tasks[task]]
        timestamps = self._timestamps if timestamps is None else timestamps
        return tokens if timestamps else [*tokens, self._no_timestamps]

    def generate(
        self, states: Tensor, prompts: list[list[int]], limits: list[int], temperature: float, seeds: list[int]
    ) -> list[DecodedTokens]:
        """Generate tokens for each window: the most probable ones, or at a temperature over 0 random ones.

        Args:
            states: The encoder's states, (B, T, D).
            prompts: The prompt of each window; all of the same length.
            limits: The most tokens of each window. The options and the model's positions may limit them further.
            temperature: 0 for greedy decoding; higher values sample more evenly.
            seeds: A seed for each window. Equal seeds draw equal samples, whatever the other windows are.

        Returns:
            The tokens of each window.
        """
        ids = torch.tensor(prompts, device=states.device)
        length = ids.shape[1]
        # The last position is left for the end token, which the alignment of words needs.
        longest = min(self._max_new_tokens, self._model.config.max_target_positions - length - 1)
        limits = [int(min(limit, longest)) for limit in limits]
        selector = _TokenSelector(length, limits, temperature, seeds, self._end)
        processors: list[LogitsProcessor] = [selector]
        if self._timestamps:
            processors.insert(0, WhisperTimeStampLogitsProcessor(self._model.generation_config, begin_index=length))
        # Whisper's own `generate` does not return the probability of no speech, nor the temperature of the result.
        # It calls this general `generate` for each temperature, too.
        sequences = GenerationMixin.generate(
            self._model,
            encoder_outputs=BaseModelOutput(states),
            attention_mask=torch.ones(states.shape[:2], device=states.device),
            decoder_input_ids=ids,
            logits_processor=LogitsProcessorList(processors),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max(limits),
            **self._options,
        )
        rows = sequences[:, length:].tolist()
        sums = zip(rows, selector.logprobs.tolist(), selector.text_probabilities.tolist(), strict=True)
        return [self._without_end(*row) for row in sums]

    def _without_end(self, row: list[int], logprob: float, text_probability: float) -> DecodedTokens:
        tokens = row[: row.index(self._end)] if self._end in row else row
        # The IDs of special tokens are between those of text and of timestamps.
        kept = [token for token in tokens if token < self._end or token >= self.first_timestamp]
        text_count = sum(token < self._end for token in tokens)
        # As in openai/whisper, the average includes the end token.
        return DecodedTokens(kept, logprob / (len(tokens) + 1), text_probability / text_count if text_count else 1.0)


class _TokenSelector(LogitsProcessor):
    """Makes the greedy search of transformers select tokens as Whisper does, and adds up how probable they are.

    A row ends at its limit of tokens. At a temperature over 0, Gumbel noise is added to logits / temperature: the
    largest sum is a sample of their softmax (Gumbel 1954; Maddison et al. 2014, A* Sampling). The noise of each row
    comes from a generator on the CPU with the row's own seed, so a sample depends on nothing else.
    """

    def __init__(self, prompt_length: int, limits: list[int], temperature: float, seeds: list[int], end: int) -> None:
        self._prompt_length, self._limits, self._temperature, self._end = prompt_length, limits, temperature, end
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds] if temperature > 0 else []
        self._open = [True] * len(limits)
        self.logprobs = torch.zeros(len(limits), dtype=torch.float64)
        """The sum of the log-probabilities of each row's tokens."""
        self.text_probabilities = torch.zeros(len(limits), dtype=torch.float64)
        """The sum of the probabilities of each row's text tokens, whose IDs are below that of the end token; of
        repetitions, it has the half."""
        self._before = [end] * len(limits)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        generated = input_ids.shape[1] - self._prompt_length
        for row, limit in enumerate(self._limits):
            if generated >= limit:
                scores[row] = -math.inf
                scores[row, self._end] = 0
        selected_from = self._with_noise(scores) if self._generators else scores
        selected = selected_from.argmax(-1, keepdim=True)
        gained = scores.float().log_softmax(-1).gather(-1, selected)[:, 0].cpu()
        for row, token in enumerate(selected[:, 0].tolist()):
            if self._open[row]:
                self.logprobs[row] += gained[row]
                if token < self._end:
                    self.text_probabilities[row] += gained[row].exp() * (0.5 if token == self._before[row] else 1.0)
                    self._before[row] = token
                self._open[row] = token != self._end
        return selected_from

    def _with_noise(self, scores: Tensor) -> Tensor:
        noise = torch.zeros(scores.shape)
        for row, generator in enumerate(self._generators):
            if self._open[row]:
                noise[row].exponential_(generator=generator).log_().neg_()
        return scores / self._temperature + noise.to(scores.device)
