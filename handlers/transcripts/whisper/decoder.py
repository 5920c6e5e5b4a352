"""What the decoder of a Whisper writes about windows of sound that its encoder has heard.

Language detection, the probability of no speech and the average log-probability are those of openai/whisper
(decoding.py); rules about timestamps and suppressed tokens are those of transformers.
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

_OURS = frozenset(["do_sample", "temperature", "top_k", "top_p", "num_beams", "language", "task", "return_timestamps"])


class Written(NamedTuple):
    """What was written about one window."""

    tokens: list[int]
    """Text and timestamps, without the prompt and the end."""
    avg_logprob: float


class FirstLook(NamedTuple):
    """What the decoder thinks of one window before it writes."""

    language: str | None
    """The most probable; None if the model knows but one."""
    no_speech_prob: float


class WhisperDecoder:
    """The decoder of a WhisperForConditionalGeneration; `states` are (B, T, D), as `encode` makes them."""

    def __init__(self, model: Any, options: dict[str, Any], *, timestamps: bool) -> None:
        """`options` are those of `generate`. Raises StartupError for some that would be overruled."""
        if overruled := _OURS & set(options):
            raise StartupError(
                f"YAML, handler, generation: {', '.join(sorted(overruled))} cannot be set, as windows are written"
                " greedily or sampled at `temperatures`, and language and task come with requests"
            )
        config = model.generation_config
        if getattr(config, "no_timestamps_token_id", None) is None:
            raise StartupError(
                "generation_config.json: expected no_timestamps_token_id, as those of Whisper have it; copy the file"
                " from the model that this one was trained from"
            )
        config.max_length = None  # or every call warns that it also has max_new_tokens
        self._model = model
        self._options = {name: value for name, value in options.items() if name != "max_new_tokens"}
        self._most_tokens = options.get("max_new_tokens", math.inf)
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

    def encode(self, features: Tensor) -> Tensor:
        """(B, mels, frames) -> (B, T, D)."""
        states: Tensor = self._model.get_encoder()(features).last_hidden_state
        return states

    def look(self, states: Tensor) -> list[FirstLook]:
        """The language of each window, and how likely it holds no speech."""
        prompt = torch.full((len(states), 1), self._start, device=states.device)
        logits = self._model(encoder_outputs=BaseModelOutput(states), decoder_input_ids=prompt).logits[:, 0].float()
        # The token <|nospeech|> is the one before <|notimestamps|>.
        no_speech = logits.softmax(-1)[:, self._no_timestamps - 1].tolist()
        if not self._languages:
            return [FirstLook(None, probability) for probability in no_speech]
        names, numbers = list(self._languages), list(self._languages.values())
        best = logits[:, numbers].argmax(-1).tolist()
        return [FirstLook(names[i], probability) for i, probability in zip(best, no_speech, strict=True)]

    def prompt(self, language: str | None, task: str, *, timestamps: bool | None = None) -> list[int]:
        """The tokens that a window's text follows."""
        tokens = [self._start]
        if language is not None and self._languages:
            tokens += [self._languages[language], self._tasks[task]]
        timestamps = self._timestamps if timestamps is None else timestamps
        return tokens if timestamps else [*tokens, self._no_timestamps]

    def write(
        self, states: Tensor, prompts: list[list[int]], budgets: list[int], temperature: float, seeds: list[int]
    ) -> list[Written]:
        """The most probable text, token by token, or at a temperature over 0 a random one.

        `budgets` says how many tokens each window has; equal `seeds` draw equal texts, whatever the other windows are.
        """
        ids = torch.tensor(prompts, device=states.device)
        length = ids.shape[1]
        # The last position is kept for the end, which the times of words need.
        most = min(self._most_tokens, self._model.config.max_target_positions - length - 1)
        limits = [int(min(budget, most)) for budget in budgets]
        choice = _Choice(length, limits, temperature, seeds, self._end)
        rules: list[LogitsProcessor] = [choice]
        if self._timestamps:
            rules.insert(0, WhisperTimeStampLogitsProcessor(self._model.generation_config, begin_index=length))
        # Whisper's own `generate` keeps to itself what a caller must know: the probability of no speech, and which
        # temperature it was in the end. The general one is what it uses for each of its passes.
        sequences = GenerationMixin.generate(
            self._model,
            encoder_outputs=BaseModelOutput(states),
            attention_mask=torch.ones(states.shape[:2], device=states.device),
            decoder_input_ids=ids,
            logits_processor=LogitsProcessorList(rules),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max(limits),
            **self._options,
        )
        rows = sequences[:, length:].tolist()
        return [self._written(row, logprob) for row, logprob in zip(rows, choice.logprobs.tolist(), strict=True)]

    def _written(self, row: list[int], logprob: float) -> Written:
        tokens = row[: row.index(self._end)] if self._end in row else row
        # Whatever is neither text nor a timestamp has a number between them. The end counts, as in openai/whisper.
        kept = [token for token in tokens if token < self._end or token >= self.first_timestamp]
        return Written(kept, logprob / (len(tokens) + 1))


class _Choice(LogitsProcessor):
    """Makes the greedy search choose as Whisper does, and adds up the log-probabilities of what it chooses.

    A row ends when its budget is used up. At a temperature, noise of Gumbel's distribution is added to logits /
    temperature: the largest sum is a sample of their softmax (Gumbel 1954; Maddison et al. 2014, A* Sampling). Each row
    has noise of its own seed, from the CPU, so its sample depends on nothing else.
    """

    def __init__(self, begin: int, limits: list[int], temperature: float, seeds: list[int], end: int) -> None:
        self._begin, self._limits, self._temperature, self._end = begin, limits, temperature, end
        self._noise = [torch.Generator().manual_seed(seed) for seed in seeds] if temperature > 0 else []
        self._open = [True] * len(limits)
        self.logprobs = torch.zeros(len(limits), dtype=torch.float64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        written = input_ids.shape[1] - self._begin
        for row, limit in enumerate(self._limits):
            if written >= limit:
                scores[row] = -math.inf
                scores[row, self._end] = 0
        chosen_from = self._noisy(scores) if self._noise else scores
        chosen = chosen_from.argmax(-1, keepdim=True)
        gained = scores.float().log_softmax(-1).gather(-1, chosen)[:, 0].cpu()
        for row, token in enumerate(chosen[:, 0].tolist()):
            if self._open[row]:
                self.logprobs[row] += gained[row]
                self._open[row] = token != self._end
        return chosen_from

    def _noisy(self, scores: Tensor) -> Tensor:
        noise = torch.zeros(scores.shape)
        for row, generator in enumerate(self._noise):
            if self._open[row]:
                noise[row].exponential_(generator=generator).log_().neg_()
        return scores / self._temperature + noise.to(scores.device)
