"""What every model's YAML says of it under `handler:`, and the weights that this stands for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from reelscribe.errors import StartupError

Settings = TypeVar("Settings", bound="ModelSettings")


@dataclass(frozen=True)
class ModelSettings:
    """What stands under `handler:` in the YAML; each handler adds its own."""

    model: str
    """Hub name, or a directory of weights and processor files in safetensors format."""
    revision: str | None = None
    dtype: str = "auto"
    """A torch dtype by name; auto is bfloat16 (or float16) on a GPU and float32 on a CPU."""
    device_batch: int = 32
    """Items that run through the model at once."""
    cpu_threads: int = 1
    """Threads that a worker computes with on the CPU: its cores belong to all workers, and to what decodes there."""
    weights: str | None = None
    """A folder of the archive that the weights lie in; `model` and `revision` then tell where they came from."""

    @classmethod
    def from_yaml(cls: type[Settings], config: Any) -> Settings:
        """Raises StartupError for a missing or unknown name."""
        known = [f.name for f in fields(cls)]
        options = (config or {}).get("handler")
        if not isinstance(options, dict) or "model" not in options or not set(options) <= set(known):
            raise StartupError(f"YAML, handler: expected model and optionally {', '.join(known[1:])}, got {options}")
        return cls(**options)

    @property
    def pretrained(self) -> str:
        """What transformers' `from_pretrained` is told to load."""
        # Beside this file, which lies in the archive too: nobody says that a worker's directory is always the archive.
        return self.model if self.weights is None else str(Path(__file__).parent / self.weights)

    def torch_dtype(self, device: torch.device) -> torch.dtype:
        """The dtype that `dtype` stands for on this device."""
        if self.dtype != "auto":
            dtype = getattr(torch, self.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise StartupError(f"YAML, handler, dtype: expected auto or a torch dtype, got {self.dtype!r}")
            return dtype
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def revision_of(settings: ModelSettings, model: Any) -> str:
    """The hub's commit, or for a directory a digest of its weights: changed weights are another revision.

    Weights in the archive have the revision that they had where they came from. `model` is the loaded one.
    """
    commit = getattr(model.config, "_commit_hash", None) or (settings.weights and settings.revision)
    if commit:
        return str(commit)
    digest = hashlib.sha256()
    files = sorted(Path(settings.pretrained).glob("*.safetensors"))
    if not files:
        return "unknown"
    for path in files:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"
