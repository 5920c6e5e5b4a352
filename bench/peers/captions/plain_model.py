"""A captioner as in transformers' documentation: its processor computes the pixels, `generate` the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText, AutoProcessor

NEW_TOKENS = 30
"""The limit of caption.yaml."""


class PlainCaptioner:
    """A loaded model with its processor, on a GPU in half precision, or on one thread of the CPU."""

    def __init__(self, weights: str, generation: dict[str, Any] | None = None) -> None:
        torch.set_num_threads(1)
        self._processor = AutoProcessor.from_pretrained(weights)
        self._generation = generation or {"max_new_tokens": NEW_TOKENS}
        on_gpu = torch.cuda.is_available()
        family: Any = AutoModelForImageTextToText
        model = family.from_pretrained(weights, dtype=torch.bfloat16 if on_gpu else torch.float32)
        self._model = model.to("cuda" if on_gpu else "cpu").eval()

    def caption(self, frames: Sequence[NDArray[np.uint8]]) -> list[str]:
        """Return the caption of each RGB frame, (H, W, 3), of any size."""
        inputs = self._processor(images=[*frames], return_tensors="pt").to(self._model.device, self._model.dtype)
        with torch.inference_mode():
            tokens = self._model.generate(**inputs, **self._generation)
        return [text.strip() for text in self._processor.batch_decode(tokens, skip_special_tokens=True)]
