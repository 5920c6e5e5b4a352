"""Generates the tokens of captions, descriptions and transcripts, and tells how probable the model found them.

The average log-probability of a caption includes the token that ends it, as in openai/whisper. With greedy search and
sampling, it is recorded step by step, so that no logits of earlier steps are kept. Beam search computes it itself, and
keeps the scores of all steps for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from runtime.compiled_steps import generate_tokens
from runtime.second_stage import TensorTree


def generate(
    model: Any,
    options: dict[str, Any],
    inputs: TensorTree,
    *,
    config: Any = None,
    ends: list[int] | None = None,
    processors: Sequence[LogitsProcessor] = (),
) -> TensorTree:
    """Generate tokens with transformers.

    Args:
        model: A model of transformers that generates.
        options: Options of its `generate`.
        inputs: Its other arguments, with a row for each item.
        config: The settings that `generate` uses; by default those of `model`.
        ends: The IDs of the tokens that end a text; by default those of `options` or `config`.
        processors: What changes the scores of the next token, without beams.

    Returns:
        {"tokens": a list of token IDs for each row, "avg_logprobs": the average log-probability of each text}.
    """
    config = config or model.generation_config
    ends = end_tokens(config, options) if ends is None else ends
    beams = (options.get("num_beams") or config.num_beams or 1) > 1
    with torch.inference_mode():
        if beams:
            output = model.generate(**inputs, **options, return_dict_in_generate=True, output_scores=True)
            penalty = options.get("length_penalty", config.length_penalty)
            tokens, averages = output.sequences, _beam_averages(output, 1.0 if penalty is None else penalty)
        else:
            recorder = _LogprobRecorder()
            tokens = generate_tokens(model, inputs, options, [*processors, recorder])
            averages = recorder.averages(tokens, ends)
        # Lists, not tensors: the CPU decodes them, and a short list fits the first transfer of its message to the first
        # stage (pipeline/stage_link.py).
        return {"tokens": tokens.tolist(), "avg_logprobs": averages.tolist()}


class LimitedTokens(LogitsProcessor):
    """Ends each row of a search at its limit of tokens, so that no row depends on the limits of the others."""

    def __init__(self, prompt_length: int, limits: list[int], end: int, device: torch.device) -> None:
        """Take the limits.

        Args:
            prompt_length: Tokens before the text, in every row.
            limits: The most tokens of each row.
            end: The ID of the token that ends a text.
            device: Where the search runs.
        """
        self._prompt_length, self._end = prompt_length, end
        self._limits, self._shortest = torch.tensor(limits, device=device)[:, None], min(limits)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores; those of rows at their limit leave the end token alone."""
        generated = input_ids.shape[1] - self._prompt_length
        if generated >= self._shortest:
            ended = self._limits <= generated
            scores = scores.masked_fill(ended, -math.inf)
            scores[:, self._end :][:, :1].masked_fill_(ended, 0)
        return scores


class _LogprobRecorder(LogitsProcessor):
    """Records the log-probability of each token that `generate` appends, and changes no scores.

    Processors of the caller run after those that forbid or force tokens, and before those that reshape the distribution
    to sample from it.
    """

    def __init__(self) -> None:
        self._recorded: list[Tensor] = []  # (B,) for each token but the last
        self._next: Tensor | None = None  # (B, V) for the token that comes next

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._next is not None:
            self._recorded.append(_at(self._next, input_ids[:, -1]))
        self._next = scores.float().log_softmax(-1)
        return scores

    def averages(self, sequences: Tensor, ends: list[int]) -> Tensor:
        """Return the average log-probability of each sequence, (B,), up to its first token of `ends`."""
        assert self._next is not None, "generate appends at least one token"
        logprobs = torch.stack([*self._recorded, _at(self._next, sequences[:, -1])], 1)
        generated = sequences[:, -logprobs.shape[1] :]
        ended = torch.isin(generated, torch.tensor(ends, device=generated.device)).long()
        counted = ended.cumsum(1) - ended == 0  # what follows the first end is padding
        return logprobs.where(counted, 0.0).sum(1) / counted.sum(1)


def _at(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token in each row: (B, V), (B,) -> (B,)."""
    return logprobs.gather(1, tokens[:, None])[:, 0]


def _beam_averages(output: Any, length_penalty: float) -> Tensor:
    """The average log-probabilities, (B,), of what beam search found."""
    # The score of a sequence is the sum of its log-probabilities / length ** length_penalty.
    lengths = (output.beam_indices >= 0).sum(1)
    averages: Tensor = output.sequences_scores * lengths.float() ** (length_penalty - 1)
    return averages


def end_tokens(config: Any, options: dict[str, Any]) -> list[int]:
    """Return the IDs of the tokens that end a text, by the options of `generate` or else by a generation_config."""
    ends = options.get("eos_token_id", config.eos_token_id)
    return ends if isinstance(ends, list) else [] if ends is None else [ends]
