"""Loads what transformers makes of a checkpoint: models, processors, tokenizers and configurations.

The files of a checkpoint can name code and weights that are elsewhere: an implementation of attention is fetched from
the hub as a program, an adapter brings the weights of another model, and a tokenizer of audio is a model of its own.
Nothing here goes there: such files are refused before transformers reads them, code beside the weights is not run, and
while it loads a folder, transformers reaches no hub at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from transformers import GenerationConfig
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_flash_attn_2_available

from reelscribe.errors import StartupError, brief
from runtime.model_settings import ModelSettings

_FILES = (
    "config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer_config.json",
)
"""The files of a checkpoint that transformers takes settings from."""

_ELSEWHERE = {
    "adapter_config.json": "weights with the adapter merged into them",
    "audio_tokenizer_config.json": "a model without a tokenizer of audio",
}
"""Files that name another model, and what is expected instead."""

_ATTENTION = {"eager", "sdpa", "flex_attention", *(["flash_attention_2"] if is_flash_attn_2_available() else [])}
"""Implementations of attention for which transformers fetches nothing."""

_IMPLEMENTATIONS = {
    "attn_implementation": _ATTENTION,
    "experts_implementation": {"eager", "grouped_mm", "batched_mm"},
}
"""The settings that name an implementation, without the underscore that some files have, and what they may be."""

_OF_TRAINING_ALONE = ".masked_spec_embed"
"""End of the name of a parameter that a wav2vec2 has for its training, and that published ones lack."""


def from_pretrained(kind: Any, settings: ModelSettings, **options: Any) -> Any:
    """Return what the `from_pretrained` of a class of transformers makes of a checkpoint.

    Args:
        kind: The class.
        settings: Which checkpoint.
        options: Further options of `from_pretrained`.

    Raises:
        StartupError: The checkpoint names code or weights that are elsewhere.
    """
    if kind is not GenerationConfig:  # which would keep it as a setting
        options["trust_remote_code"] = False
    with own_files_alone(settings.pretrained, settings.revision):
        return kind.from_pretrained(settings.pretrained, revision=settings.revision or "main", **options)


def load_pretrained(model_class: Any, settings: ModelSettings, device: torch.device) -> Any:
    """Load a model for inference.

    Args:
        model_class: A class of transformers that has `from_pretrained`.
        settings: Which weights to load, and in which dtype.
        device: Where to load them.

    Returns:
        The model in evaluation mode on `device`. It is Any, as models of different classes share no typed interface.

    Raises:
        StartupError: Some of its weights are missing, for which transformers would take random ones, or the checkpoint
            names code or weights that are elsewhere.
    """
    model, found = from_pretrained(
        model_class, settings, dtype=settings.torch_dtype(device), use_safetensors=True, output_loading_info=True
    )
    if missing := sorted(name for name in found["missing_keys"] if not name.endswith(_OF_TRAINING_ALONE)):
        raise StartupError(
            f"{settings.pretrained}: expected all weights of a {type(model).__name__}, got none for {len(missing)} of"
            f" its parameters, such as {missing[0]}; save or download the model again"
        )
    return model.to(device).eval()


def read_json(pretrained: str, revision: str | None, name: str) -> dict[str, Any]:
    """Read a JSON file of a checkpoint; empty if it has none, or one that holds no object."""
    path = cached_file(
        pretrained,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return {}
    try:
        value = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path}: expected JSON, got something else ({error}); download the model again") from None
    return value if isinstance(value, dict) else {}


@contextmanager
def own_files_alone(pretrained: str, revision: str | None = None) -> Iterator[None]:
    """Have transformers load nothing but the files of a checkpoint.

    Args:
        pretrained: A folder, during which the hub is closed, or a hub name.
        revision: Commit, branch or tag of the hub.

    Raises:
        StartupError: The checkpoint names code or weights that are elsewhere.
    """
    before = constants.HF_HUB_OFFLINE
    # Everything that asks a hub looks at this, whatever the environment was when it was imported.
    constants.HF_HUB_OFFLINE = before or Path(pretrained).is_dir()
    try:
        _check_files(pretrained, revision)
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@lru_cache(maxsize=8)  # a model is loaded in several parts
def _check_files(pretrained: str, revision: str | None) -> None:
    """Raise StartupError if the files of a checkpoint name code or weights that are elsewhere."""
    for name, expected in _ELSEWHERE.items():
        if read_json(pretrained, revision, name):
            raise StartupError(f"{pretrained}: expected {expected}, got {name}, which names another model")
    for name in _FILES:
        for setting, value in _settings_in(read_json(pretrained, revision, name)):
            allowed = _IMPLEMENTATIONS.get(setting.removeprefix("_"))
            if allowed and any(each not in allowed for each in _names_in(value)):
                raise StartupError(
                    f"{pretrained}, {name}, {setting}: expected one of {', '.join(sorted(allowed))}, for which no code"
                    f" is fetched, got {brief(value)}; remove it from the file"
                )
            if setting == "audio_tokenizer":
                raise StartupError(f"{pretrained}, {name}: expected no {setting}, which is another model; remove it")


def _settings_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of all settings, also of parts of a model."""
    if isinstance(value, dict):
        yield from value.items()
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _settings_in(part)


def _names_in(value: Any) -> list[Any]:
    """The implementations that a setting names: one, one for each part of a model, or none."""
    return [each for each in (value.values() if isinstance(value, Mapping) else [value]) if each is not None]
