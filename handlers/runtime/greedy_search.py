"""Greedy search of our own, for language models whose next token we can compute faster than transformers' `generate`.

`generate` serves hundreds of models and dozens of options, so each token takes more time in Python than a small model
takes to compute it. A `GreedySearch` exists only for options with which `generate` would give the same tokens, but for
rounding in half precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from runtime.generation import average_logprobs, end_tokens

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "use_cache": (True,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
}
"""Options of `generate`, and the values with which they change nothing in greedy search."""

_KNOWN = {"max_new_tokens", "min_new_tokens", "repetition_penalty", "eos_token_id", "pad_token_id", "bos_token_id"}
_KNOWN |= {"transformers_version"}
"""Options that may have any value."""

_FOR_SAMPLING = {"temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
"""Options that may have any value, too, as they concern sampling alone. Checkpoints say them in their files."""


class GreedySearch:
    """Chooses the most probable next token until all texts have ended.

    Attributes:
        most: The most tokens of a text.
    """

    def __init__(self, model: Any, settings: Any) -> None:
        """Take what matters of the settings.

        Args:
            model: The language model of transformers, on its device.
            settings: Its generation configuration, with the options of the caller in it.
        """
        self.most, self._least = settings.max_new_tokens, settings.min_new_tokens or 0
        self._penalty = settings.repetition_penalty or 1.0
        ends = end_tokens(model, {"eos_token_id": settings.eos_token_id})
        self._ends = torch.tensor(ends, device=model.device, dtype=torch.long)
        self._padding = settings.pad_token_id if settings.pad_token_id is not None else ends[0] if ends else 0

    @classmethod
    def of(cls, model: Any, options: dict[str, Any]) -> GreedySearch | None:
        """Return the greedy search that options ask for, or None if only `generate` does what they ask.

        Args:
            model: A model of transformers that generates, with its own generation configuration.
            options: Options of transformers' `generate`.
        """
        settings = copy.deepcopy(model.generation_config)
        unknown = settings.update(**options)
        if unknown or settings.max_new_tokens is None:
            return None
        for name, value in settings.to_diff_dict().items():
            harmless = name.startswith("_") or name in _KNOWN | _FOR_SAMPLING
            if not harmless and value not in (None, *_NEUTRAL.get(name, ())):
                return None
        return cls(model, settings)

    def __call__(
        self, prompts: Tensor, logits: Tensor, next_logits: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Generate until each text has ended, or has the most tokens.

        Args:
            prompts: The token IDs before the first token, (B, T); a penalty for repetition applies to them, too.
            logits: The scores of the first token, (B, V) float32. They may be changed.
            next_logits: Returns the scores of the token after the tokens (B,) that were chosen last. It is not called
                for tokens that are not needed.

        Returns:
            The tokens, (B, at most `most`), with padding after the end; and the average log-probability of those up to
            and including the end, (B,).
        """
        ended = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        said = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, prompts, True) if self._penalty != 1 else None
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        while True:
            if said is not None:
                punished = torch.where(logits < 0, logits * self._penalty, logits / self._penalty)
                logits = torch.where(said, punished, logits)
            if len(tokens) < self._least:
                logits[:, self._ends] = -torch.inf
            best, chosen = logits.max(-1)
            logprobs.append(best - logits.logsumexp(-1))
            tokens.append(chosen.masked_fill(ended, self._padding))
            ended |= torch.isin(chosen, self._ends)
            if said is not None:
                said.scatter_(1, tokens[-1][:, None], True)
            if len(tokens) == self.most or ended.all():
                break
            logits = next_logits(tokens[-1])
        generated = torch.stack(tokens, 1)
        return generated, average_logprobs(torch.stack(logprobs, 1), torch.isin(generated, self._ends))


def join_parameters(parameters: list[nn.Parameter]) -> Tensor:
    """Concatenate parameters, so that one product does what several did.

    Args:
        parameters: Weights or biases, (rows, ...) each. They become views of the result, so no memory is added.

    Returns:
        (all rows, ...).
    """
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter, rows in zip(parameters, joined.split([len(each) for each in parameters]), strict=True):
        parameter.data = rows
    return joined
