"""Converts a Whisper to CTranslate2's format: `python -m transcripts.whisper.convert WEIGHTS TARGET DTYPE`.

`reelscribe archive --engine ctranslate2` runs it. The files of the processor and of transformers' configuration stay
with the weights, as the handler reads them as for any other engine.
"""

from __future__ import annotations

import sys

from ctranslate2.converters import TransformersConverter
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

from reelscribe.errors import StartupError


def convert(weights: str, target: str, dtype: str) -> None:
    """Convert a Whisper.

    Args:
        weights: Folder with the weights in safetensors format.
        target: The new folder for the converted weights.
        dtype: A type of CTranslate2, which the file then has; "auto" keeps that of the weights.

    Raises:
        StartupError: CTranslate2 has no such type.
    """
    if dtype not in ("auto", *ACCEPTED_MODEL_TYPES):
        raise StartupError(f"dtype: expected auto or one of {', '.join(ACCEPTED_MODEL_TYPES)}, got {dtype!r}")
    TransformersConverter(weights).convert(target, quantization=None if dtype == "auto" else dtype)


if __name__ == "__main__":
    convert(*sys.argv[1:])
