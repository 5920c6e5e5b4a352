"""Makes a checkpoint of transformers from an English-only Whisper of CTranslate2.

The folder of CTranslate2 has all that is needed: weights, tokenizer, and the settings for generation. Sizes are read
from the weights. What the published checkpoints of OpenAI have in common is written here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.utils.logging import disable_progress_bar

from real.ctranslate2_model import read_variables

TIMESTAMPS = 1501
"""Timestamp tokens from <|0.00|> to <|30.00|>, 0.02 s apart."""

MAX_INITIAL_TIMESTAMP = 50
"""Number of the last timestamp token that a window may begin with: 1.00 s."""

_PARTS = {
    "conv1": "conv1",
    "conv2": "conv2",
    "layer_norm": "layer_norm",
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_0": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.k_proj encoder_attn.v_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
"""The names of transformers for each part of a layer; several names share the rows of one matrix."""

_TENSORS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "encodings": "weight"}


def convert(source: Path, target: Path) -> None:
    """Write a checkpoint in float32.

    Args:
        source: The folder of CTranslate2, with model.bin, config.json and tokenizer.json.
        target: The new folder of transformers.

    Raises:
        ValueError: model.bin is no such model.
    """
    target.mkdir()
    disable_progress_bar()
    variables = read_variables(source / "model.bin", "WhisperSpec")
    settings = json.loads((source / "config.json").read_text())
    tokenizer = _tokenizer(source / "tokenizer.json", target)
    config = _config(variables, tokenizer)
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict(state_dict(variables))
    model.generation_config = _generation_config(settings, tokenizer)
    model.save_pretrained(target)
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    WhisperProcessor(extractor, tokenizer).save_pretrained(target)
    # transformers 5 writes processor_config.json; published checkpoints have this file, which other libraries read.
    extractor.save_pretrained(target)


def state_dict(variables: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Return the weights under the names of transformers, in float32."""
    tensors = {}
    for name, value in variables.items():
        stack, _, rest = name.partition("/")
        place, _, kind = rest.rpartition("/")
        layer, part = "", place
        if place.startswith("layer_") and place != "layer_norm":
            number, _, part = place.removeprefix("layer_").partition("/")
            layer = f"layers.{number}."
        if value.ndim == 0 or part not in _PARTS:
            continue  # settings, and the projection, which is an alias of the embeddings
        names = _PARTS[part].split()
        for each, rows in zip(names, np.split(value, len(names)), strict=True):
            # Whisper has no bias for keys; CTranslate2 has zeros.
            if not (each.endswith("k_proj") and kind == "bias"):
                key = f"model.{stack}.{layer}{each}.{_TENSORS[kind]}"
                tensors[key] = torch.from_numpy(rows.astype(np.float32))
    return {**tensors, "proj_out.weight": tensors["model.decoder.embed_tokens.weight"]}


def _config(variables: dict[str, NDArray[Any]], tokenizer: Any) -> WhisperConfig:
    """The sizes of a model, which its weights tell."""
    vocab_size, width = variables["decoder/embeddings/weight"].shape
    sizes: dict[str, Any] = {
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "max_source_positions": len(variables["encoder/position_encodings/encodings"]),
        "max_target_positions": len(variables["decoder/position_encodings/encodings"]),
    }
    for stack in ("encoder", "decoder"):
        sizes[f"{stack}_layers"] = sum(name.endswith("/ffn/linear_0/bias") for name in variables if stack in name)
        sizes[f"{stack}_attention_heads"] = int(variables[f"{stack}/num_heads"])
        sizes[f"{stack}_ffn_dim"] = len(variables[f"{stack}/layer_0/ffn/linear_0/bias"])
    return WhisperConfig(vocab_size=vocab_size, d_model=width, **sizes, **_special_tokens(tokenizer))


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    end: int = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    start: int = tokenizer.convert_tokens_to_ids("<|startoftranscript|>")
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}


def _generation_config(settings: dict[str, Any], tokenizer: Any) -> GenerationConfig:
    return GenerationConfig(
        **_special_tokens(tokenizer),
        is_multilingual=False,
        no_timestamps_token_id=tokenizer.convert_tokens_to_ids("<|notimestamps|>"),
        prev_sot_token_id=tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP,
        return_timestamps=False,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
    )


def _tokenizer(source: Path, target: Path) -> Any:
    """The tokenizer of the file `source` with its timestamp tokens; `target` has the files that it is loaded from."""
    content = json.loads(source.read_text())
    first = max(token["id"] for token in content["added_tokens"]) + 1
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"] += [{"id": first + k, "content": f"<|{k / 50:.2f}|>", **plain} for k in range(TIMESTAMPS)]
    (target / "tokenizer.json").write_text(json.dumps(content))
    ends: dict[str, Any] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    return WhisperTokenizer.from_pretrained(str(target), **ends)
