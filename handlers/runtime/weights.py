"""Loading of a model's weights, and the revision that identifies them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from runtime.settings import ModelSettings


def load_pretrained(model_class: Any, settings: ModelSettings, device: torch.device) -> Any:
    """Load a model for inference.

    Args:
        model_class: A class of transformers that has `from_pretrained`.
        settings: Which weights to load, and in which dtype.
        device: Where to load them.

    Returns:
        The model in evaluation mode on `device`. It is Any, as models of different classes share no typed interface.
    """
    model = model_class.from_pretrained(
        settings.pretrained, revision=settings.revision, dtype=settings.torch_dtype(device), use_safetensors=True
    )
    return model.to(device).eval()


def revision_of(settings: ModelSettings, model: Any) -> str:
    """Identify the weights of a loaded model, so that changed weights have another revision.

    Args:
        settings: The settings that the model was loaded with.
        model: The loaded model of transformers, or another one with its configuration as `config`.

    Returns:
        The commit of the hub; "sha256:" with 16 hex digits of a digest for weights of a directory, or of what they were
        converted to; "unknown" if that directory has no *.safetensors. Weights that are bundled in the archive keep the
        commit that they came from.
    """
    commit = getattr(model.config, "_commit_hash", None) or (settings.weights and settings.revision)
    if commit:
        return str(commit)
    digest = hashlib.sha256()
    folder = Path(settings.pretrained) if settings.converted is None else settings.converted_folder
    files = sorted(folder.glob("*.safetensors" if settings.converted is None else "*"))
    if not files:
        return "unknown"
    for path in files:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"
