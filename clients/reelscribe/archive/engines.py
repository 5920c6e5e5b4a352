"""The engines that a kind of handler can run a model with, and the conversion of weights that some of them need.

torch, the default, computes with the weights as they are. Other engines need weights in a format of their own: a
program beside the handlers converts them when the archive is built, and the archive holds the result in the folder
CONVERTED_FOLDER, with or without --bundle. So there is one file to copy, to replace and to remove.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from reelscribe.errors import UsageError, missing_package

TORCH = "torch"
"""The engine that needs no conversion."""

FLOAT_DTYPES = ("float32", "float16", "bfloat16")
"""The data types that torch computes in."""

CONVERTED_FOLDER = "converted"
"""The folder of converted weights in an archive."""


@dataclass(frozen=True)
class Conversion:
    """The conversion of a model's weights to those of an engine."""

    program: str
    """Module in handlers/ that converts. It is run with three arguments: the folder of the weights in safetensors
    format, the new folder to write files to, and the `dtype` of the handler's settings."""
    package: str
    """Name of the package that the engine needs, on this machine and on the server."""
    extra: str
    """The extra of reelscribe that installs the package."""
    dtypes: tuple[str, ...]
    """The data types that the engine computes in; a device may lack some."""
    architectures: tuple[str, ...]
    """The architectures that can be converted."""
    replaces_weights: bool
    """True if the handler does not need the weights in safetensors format any more; then --bundle leaves them out."""


CONVERSIONS = {
    ("speech", "ctranslate2"): Conversion(
        program="transcripts.whisper.ctranslate2_conversion",
        package="ctranslate2",
        extra="ctranslate2",
        dtypes=(*FLOAT_DTYPES, "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16"),
        architectures=("WhisperForConditionalGeneration",),
        replaces_weights=True,
    )
}
"""The conversion of each kind of handler and engine, besides torch."""


def find_conversion(kind: str, engine: str, dtype: str, stages: int) -> Conversion | None:
    """Find the conversion that an engine needs.

    Args:
        kind: The kind of handler.
        engine: Name of the engine.
        dtype: Name of the data type that it is to compute in, or "auto".
        stages: Number of processes that each worker is split over.

    Returns:
        The conversion; None for torch, which needs none.

    Raises:
        UsageError: The kind of handler has no such engine, the engine has no such data type or no two stages, or its
            package is not installed.
    """
    conversion = CONVERSIONS.get((kind, engine))
    if engine != TORCH and conversion is None:
        known = [TORCH, *(name for each, name in CONVERSIONS if each == kind)]
        raise UsageError(f"engine: expected {' or '.join(known)} for a {kind} handler, got {engine!r}")
    dtypes = conversion.dtypes if conversion else FLOAT_DTYPES
    if dtype not in ("auto", *dtypes):
        raise UsageError(f"dtype: expected auto or one of {', '.join(dtypes)} with engine {engine}, got {dtype!r}")
    if conversion is None:
        return None
    if stages != 1:
        raise UsageError(f"engine {engine}: expected one stage, got {stages}; build the archive without --stages")
    if importlib.util.find_spec(conversion.package) is None:
        raise UsageError(
            f"engine {engine}: here and on the server, {missing_package(conversion.package, conversion.extra)}"
        )
    return conversion


def check_architecture(conversion: Conversion | None, engine: str, weights: str, architecture: str | None) -> None:
    """Raise UsageError for a model that the engine cannot run.

    Args:
        conversion: The conversion of the engine; None for torch.
        engine: Name of the engine.
        weights: Hub name or directory of the weights.
        architecture: The model's class; it is known wherever there is a conversion.
    """
    if conversion and architecture not in conversion.architectures:
        raise UsageError(
            f"engine {engine}: expected a {' or '.join(conversion.architectures)}, and {weights} holds a"
            f" {architecture}; build it with --engine {TORCH}"
        )


def convert(conversion: Conversion, source: Path, target: Path, dtype: str, handlers: Path) -> list[Path]:
    """Convert weights, in a process of its own that imports torch.

    Args:
        conversion: The conversion.
        source: Folder with the weights in safetensors format and all that belongs to them.
        target: A folder that does not exist; it is made.
        dtype: The `dtype` of the handler's settings.
        handlers: The folder of the handlers, which holds the program.

    Returns:
        The files in `target`, sorted.

    Raises:
        UsageError: The program failed.
    """
    command = [sys.executable, "-P", "-m", conversion.program, str(source.resolve()), str(target.resolve()), dtype]
    folders = [str(handlers.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise UsageError(f"weights: {source} cannot be converted: {lines[-1]}")
    return sorted(path for path in target.iterdir() if path.is_file())
