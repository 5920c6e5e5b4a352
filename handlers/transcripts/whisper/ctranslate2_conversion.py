"""Converts a Whisper for the engine CTranslate2; `reelscribe archive --engine ctranslate2` runs this as a program.

In float types, torch encodes windows in less time than CTranslate2, so the encoder stays with torch, in a file of its
own beside the decoder. With int8, CTranslate2 gets the whole model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ctranslate2.converters import TransformersConverter
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
from safetensors.torch import save_file
from transformers import WhisperForConditionalGeneration

from reelscribe.errors import StartupError
from runtime.pretrained import own_files_alone
from transcripts.whisper.ctranslate2_engine import ENCODER_FILE

_FLOATS = ("auto", "float32", "float16", "bfloat16")


def convert(weights: str, target: str, dtype: str) -> None:
    """Convert a Whisper to CTranslate2's format.

    The files of the processor and of transformers' configuration stay with the weights, as they are read as for any
    other engine.

    Args:
        weights: Folder with the weights in safetensors format.
        target: The new folder for the converted weights.
        dtype: A type of CTranslate2, which the files then have; "auto" keeps that of the weights.

    Raises:
        StartupError: CTranslate2 has no such type, or the weights name code or weights that are elsewhere.
    """
    with own_files_alone(weights):
        _convert(weights, target, dtype)


def _convert(weights: str, target: str, dtype: str) -> None:
    if dtype not in ("auto", *ACCEPTED_MODEL_TYPES):
        raise StartupError(f"dtype: expected auto or one of {', '.join(ACCEPTED_MODEL_TYPES)}, got {dtype!r}")
    converter = _DecoderConverter(weights) if dtype in _FLOATS else TransformersConverter(weights)
    converter.convert(target, quantization=None if dtype == "auto" else dtype)
    if dtype in _FLOATS:
        encoder = WhisperForConditionalGeneration.from_pretrained(
            weights, dtype=dtype, use_safetensors=True
        ).get_encoder()
        tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
        save_file(tensors, Path(target, ENCODER_FILE), metadata={"format": "pt"})


class _DecoderConverter(TransformersConverter):  # type: ignore[misc]  # ctranslate2 has no types
    """Leaves out the layers of the encoder but for the first, without which CTranslate2 loads no Whisper."""

    def _load(self) -> Any:
        spec = super()._load()
        del spec.encoder.layer[1:]
        return spec


if __name__ == "__main__":
    convert(*sys.argv[1:])
