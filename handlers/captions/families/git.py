"""GIT: it continues its prompt, which has no end token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captions.families.family import Family
from reelscribe.contract.frames import InputSize


class Git(Family):
    """The family of `GitForCausalLM`."""

    def encode_prompt(self, processor: Any, prompt: str, size: InputSize) -> dict[str, Tensor]:  # noqa: ARG002
        """Make "input_ids" (1, T) of a prompt, without the end token that the processor would add."""
        ids = processor.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return {"input_ids": torch.tensor([[processor.tokenizer.cls_token_id, *ids]])}
