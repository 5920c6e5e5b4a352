"""The settings that every model has under `handler:` in its archive's YAML, and where its weights are."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch

from reelscribe.errors import StartupError

Settings = TypeVar("Settings", bound="ModelSettings")

READ_THREADS_VARIABLE = "REELSCRIBE_READ_THREADS"
"""The environment variable that overrides the setting `read_threads` of all models of a server."""

MOST_READ_THREADS = 2
"""The most threads that decode requests by default: with more, they wait for each other (bench/log.md)."""

BFLOAT16_CAPABILITY = 8
"""The smallest compute capability (Ampere) of GPUs that compute in bfloat16; a T4 has 7.5, and a V100 has 7.0."""

ARCHIVE_FOLDER = Path(__file__).parents[1]
"""The folder that holds the handler: the unpacked archive, or handlers/ where nothing is packed."""


@dataclass(frozen=True)
class ModelSettings:
    """The settings under `handler:` in the YAML that all handlers share; each handler adds its own.

    Raises:
        StartupError: A value is out of range, or `model` is a folder that does not exist.
    """

    engines: ClassVar[tuple[str, ...]] = ("torch",)
    """The engines that this kind of handler has."""
    device_batches: ClassVar[tuple[int, int]] = (32, 512)
    """The default of `device_batch` on a CPU, or in two stages, and on a GPU."""

    model: str
    """Hub name, or a directory that holds weights in safetensors format and the processor's files."""
    revision: str | None = None
    """Commit, branch or tag of the hub; None for a directory, or for the default branch."""
    dtype: str = "auto"
    """Name of a torch dtype. "auto" is bfloat16 on a GPU, float16 on one before Ampere, and float32 on a CPU."""
    engine: str = "torch"
    """One of `engines`, to run the model. Others than torch need weights that `reelscribe archive` has converted."""
    converted: str | None = None
    """Folder of the archive that holds the converted weights; None with the engine torch."""
    device_batch: int | None = None
    """Items (frames, chunks, clips or windows) that run through the model at once. None is one of `device_batches`: few
    on a CPU, whose caches hold few; many on a GPU, which waits for the start of each kernel, however small it is. Two
    stages overlap only if a call has several batches."""
    cpu_threads: int = 1
    """Threads that a worker computes with on the CPU. All workers and decode processes share the machine's cores: with
    a thread for each core, torch's default, a request of 32 frames took 1 s instead of 0.1 s on two busy cores."""
    read_threads: int | None = None
    """Threads that decode the files of a call and scale its frames, while the device computes what they have finished.
    With 0, the worker reads everything before it computes. None is the number of cores, but at most 2."""
    weights: str | None = None
    """Folder of the archive that holds bundled weights; `model` and `revision` then say where they came from."""
    stages: int = 1
    """1, or 2: encoder and language model run in processes of their own, with one GPU each (pipeline/)."""
    in_flight: int = 3
    """With 2 stages: limit for the device batches that are encoded and whose results have not arrived yet."""
    stage_seconds: float = 30.0
    """With 2 stages: both restart if a transfer between them takes more seconds, or if one is stopped for longer."""

    compile: bool = False
    """Whether the steps that generate tokens are compiled (runtime/compiled_steps.py). This is for models that generate
    text, in one stage and with the engine torch."""

    def __post_init__(self) -> None:
        if self.weights is None:
            check_folder("model", self.model)
        if self.engine not in self.engines:
            raise StartupError(
                f"YAML, handler, engine: expected {' or '.join(self.engines)} for this handler, got {self.engine!r}"
            )
        if self.engine != "torch" and (self.converted is None or self.stages != 1):
            raise StartupError(
                f"YAML, handler, engine {self.engine}: expected converted weights in `converted` and one stage, got"
                f" {self.converted} and {self.stages}; build the archive with --engine {self.engine}, without --stages"
            )
        self._check_compile()
        if self.device_batch is not None and (type(self.device_batch) is not int or self.device_batch < 1):
            raise StartupError(f"YAML, handler, device_batch: expected null, 1 or more, got {self.device_batch!r}")
        for name in ("cpu_threads", "in_flight"):
            if type(count := getattr(self, name)) is not int or count < 1:
                raise StartupError(f"YAML, handler, {name}: expected a whole number of 1 or more, got {count!r}")
        if self.read_threads is not None and (type(self.read_threads) is not int or self.read_threads < 0):
            raise StartupError(f"YAML, handler, read_threads: expected null, 0 or more, got {self.read_threads!r}")
        if type(self.stages) is not int or self.stages not in (1, 2):
            raise StartupError(f"YAML, handler, stages: expected 1 or 2, got {self.stages!r}")
        if type(self.stage_seconds) not in (int, float) or not 0 < self.stage_seconds < math.inf:
            raise StartupError(
                f"YAML, handler, stage_seconds: expected a finite number over 0, got {self.stage_seconds!r}"
            )

    def _check_compile(self) -> None:
        if type(self.compile) is not bool or (self.compile and (self.engine, self.stages) != ("torch", 1)):
            raise StartupError(
                f"YAML, handler, compile: expected true or false, and with true the engine torch and one stage, got"
                f" {self.compile!r}, {self.engine} and {self.stages}; build the archive without --compile"
            )

    @classmethod
    def from_yaml(cls, config: Any) -> Self:
        """Read the settings of a handler.

        Args:
            config: The archive's whole YAML as parsed: a dict with a dict under "handler".

        Returns:
            The settings; options that the YAML leaves out have their defaults.

        Raises:
            StartupError: `handler:` or its `model` is missing, an option is unknown, or a value is out of range.
        """
        known = [f.name for f in fields(cls)]
        options = (config or {}).get("handler")
        if not isinstance(options, dict) or "model" not in options:
            raise StartupError(f"YAML, handler: expected model and optionally {', '.join(known[1:])}, got {options}")
        if unknown := [str(name) for name in options if name not in known]:
            near = difflib.get_close_matches(unknown[0], known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
            raise StartupError(f"YAML, handler: {', '.join(unknown)} is no option of this handler; {hint}")
        return cls(**options)

    def threads_that_read(self) -> int:
        """The number of threads that decode requests: that of the environment, or of the YAML, or the default.

        Raises:
            StartupError: The environment variable is not a whole number of 0 or more.
        """
        variable = os.environ.get(READ_THREADS_VARIABLE, "")
        if variable:
            if not (variable.isascii() and variable.isdigit()):
                raise StartupError(f"{READ_THREADS_VARIABLE}: expected a whole number of 0 or more, got {variable!r}")
            return int(variable)
        if self.read_threads is not None:
            return self.read_threads
        return min(len(os.sched_getaffinity(0)), MOST_READ_THREADS)

    def items_at_once(self, device: torch.device) -> int:
        """Return how many items run through the model at once on `device`."""
        few, many = self.device_batches
        return self.device_batch or (few if device.type == "cpu" or self.stages > 1 else many)

    @property
    def converted_folder(self) -> Path:
        """The folder of the converted weights; only for engines other than torch."""
        assert self.converted is not None, "an engine that needs converted weights"
        return ARCHIVE_FOLDER / self.converted

    @property
    def pretrained(self) -> str:
        """Hub name or directory for `from_pretrained` of transformers."""
        # An absolute path, as TorchServe does not promise that a worker runs in the folder of the unpacked archive.
        return self.model if self.weights is None else str(ARCHIVE_FOLDER / self.weights)

    def torch_dtype(self, device: torch.device) -> torch.dtype:
        """The torch dtype that `dtype` stands for on `device`.

        Raises:
            StartupError: torch has no dtype of that name.
        """
        if self.dtype != "auto":
            dtype = getattr(torch, self.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise StartupError(f"YAML, handler, dtype: expected auto or a torch dtype, got {self.dtype!r}")
            return dtype
        if device.type == "cpu":
            return torch.float32
        # torch.cuda.is_bf16_supported() asks the first GPU, and says yes to those that emulate bfloat16 slowly.
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= BFLOAT16_CAPABILITY else torch.float16


def check_folder(setting: str, model: str) -> None:
    """Raise StartupError if the value of a setting, a hub name or a directory, is a directory that does not exist."""
    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        raise StartupError(
            f"YAML, handler, {setting}: the folder {model} is gone; put it back, or build the archive again"
        )


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
    folder = Path(settings.pretrained) if settings.converted is None else settings.converted_folder
    files = sorted(folder.glob("*.safetensors" if settings.converted is None else "*"))
    return digest_of(files) if files else "unknown"


def digest_of(files: Sequence[Path]) -> str:
    """Return "sha256:" with 16 hex digits of the digest of the bytes of files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"
