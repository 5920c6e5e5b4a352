"""Weights that are no model of transformers: one file, in safetensors format or as torch saves a state dict.

torch reads the latter without running any code that it may hold.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reelscribe.contract.shots import WEIGHTS_SUFFIXES, weights_in
from reelscribe.errors import StartupError

Weights = Mapping[str, Tensor]
"""Published weights by their names."""

_OF_TRAINING = "model_state"
"""Name under which a checkpoint of a training has the state dict, beside that of the optimizer."""


def weights_file(folder: Path) -> Path:
    """Return the only file of weights in a folder. Raises StartupError if there is none, or several."""
    found = weights_in(folder)
    if len(found) != 1:
        got = ", ".join(path.name for path in found) or "none"
        raise StartupError(f"{folder}: expected one file of weights ({', '.join(WEIGHTS_SUFFIXES)}), got {got}")
    return found[0]


def load_weights(path: Path) -> Weights:
    """Load a state dict onto the CPU, in float32. Raises StartupError if the file holds anything else."""
    try:
        weights = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise StartupError(f"{path}: expected weights, got a file that cannot be read as such ({error})") from None
    if isinstance(weights, dict):
        weights = weights.get(_OF_TRAINING, weights)
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise StartupError(f"{path}: expected a state dict of tensors by their names, got something else")
    return {str(name): value.float() for name, value in weights.items()}
