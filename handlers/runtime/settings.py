"""What every model's YAML says of it under `handler:`, and the weights that this stands for."""

from __future__ import annotations

import difflib
import hashlib
import math
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
    stages: int = 1
    """1, or 2: encoder and language model in processes of their own, with a GPU each. See stage_pair.py."""
    in_flight: int = 3
    """Device batches at most that the first of two stages has encoded and the second has not yet answered."""
    stage_seconds: float = 30.0
    """That one of two stages may take to hand a batch over, or be stopped, before both start again."""

    def __post_init__(self) -> None:
        """Raises StartupError for values that mean nothing, and for a directory that is not there."""
        if self.weights is None and self.model.startswith(("/", ".", "~")) and not Path(self.model).is_dir():
            raise StartupError(
                f"YAML, handler, model: the folder {self.model} is gone; put it back, or build the archive again"
            )
        for name in ("device_batch", "cpu_threads", "in_flight"):
            if type(count := getattr(self, name)) is not int or count < 1:
                raise StartupError(f"YAML, handler, {name}: expected a whole number of 1 or more, got {count!r}")
        if type(self.stages) is not int or self.stages not in (1, 2):
            raise StartupError(f"YAML, handler, stages: expected 1 or 2, got {self.stages!r}")
        if type(self.stage_seconds) not in (int, float) or not 0 < self.stage_seconds < math.inf:
            raise StartupError(
                f"YAML, handler, stage_seconds: expected a finite number over 0, got {self.stage_seconds!r}"
            )

    @classmethod
    def from_yaml(cls: type[Settings], config: Any) -> Settings:
        """Raises StartupError for a missing or unknown name."""
        known = [f.name for f in fields(cls)]
        options = (config or {}).get("handler")
        if not isinstance(options, dict) or "model" not in options:
            raise StartupError(f"YAML, handler: expected model and optionally {', '.join(known[1:])}, got {options}")
        if unknown := [str(name) for name in options if name not in known]:
            near = difflib.get_close_matches(unknown[0], known, 1)
            hint = f"is {near[0]} meant?" if near else f"known are {', '.join(known)}"
            raise StartupError(f"YAML, handler: {', '.join(unknown)} means nothing here; {hint}")
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


def load_pretrained(family: Any, settings: ModelSettings, device: torch.device) -> Any:
    """A model of this class of transformers, with the weights and in the dtype of the settings, on `device`.

    Any: each family has a class of its own, and what they have in common is not typed.
    """
    model = family.from_pretrained(
        settings.pretrained, revision=settings.revision, dtype=settings.torch_dtype(device), use_safetensors=True
    )
    return model.to(device).eval()


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
