"""Reads from archives which models and versions a model store holds, and with which settings."""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from reelscribe.decode_pool.commands import (
    MAX_CHUNKS_PER_REQUEST,
    MAX_CLIPS_PER_REQUEST,
    MAX_FRAMES_PER_REQUEST,
    MAX_WINDOWS_PER_REQUEST,
)
from reelscribe.errors import MALFORMED, StartupError
from reelscribe.management.model_version import version_sort_key

JOIN_MILLISECONDS = 5
"""How long TorchServe waits for requests to join a call, which takes a GPU much longer."""

_DAMAGED = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, *MALFORMED)
"""What reading a damaged archive raises; RuntimeError is for a member that is encrypted or packed in an unknown way."""

_MANIFEST = "MAR-INF/MANIFEST.json"

_ITEMS = {
    "max_clips": MAX_CLIPS_PER_REQUEST,
    "max_chunks": MAX_CHUNKS_PER_REQUEST,
    "max_windows": MAX_WINDOWS_PER_REQUEST,
    "max_frames": MAX_FRAMES_PER_REQUEST,
}
"""The limit of a call in the settings of each kind of handler, and the items of our largest request. `max_frames` is
the last one, because clips have a setting of that name, too."""


@dataclass(frozen=True)
class StoredModel:
    """A version of a model, and the archive that holds it."""

    name: str
    version: str
    path: Path
    """Path of the archive."""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Its YAML; empty if it has none that can be read, which TorchServe reports."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def joined_requests(handler: Mapping[str, Any]) -> int:
    """Return how many of our largest requests a call of a handler takes.

    TorchServe may join more for it, but the handler would refuse what exceeds its limit, with CallFull.

    Args:
        handler: The settings under `handler:` in the YAML.

    Returns:
        The number of requests to join; 1 if the settings limit no call.
    """
    for limit, items in _ITEMS.items():
        most = handler.get(limit)
        if type(most) is int and most > 0:
            return math.ceil(most / items)
    return 1


def stored_models(model_store: Path, load_models: str) -> list[StoredModel]:
    """Read the archives that TorchServe's setting `load_models` selects.

    Args:
        model_store: Folder of archives.
        load_models: "all", or file names of archives, separated by commas.

    Returns:
        The models by name, with the newest version of each first, because TorchServe makes the version that it loads
        first the default.

    Raises:
        StartupError: There is no archive, a file is not an archive, or two archives hold the same version.
    """
    wanted = [name.strip() for name in load_models.split(",") if name.strip()]
    everything = [name.lower() for name in wanted] == ["all"]
    paths = sorted(model_store.glob("*.mar")) if everything else [model_store / name for name in wanted]
    if not paths:
        raise StartupError(f"{model_store}: no archive to serve; build one with scripts/build")
    models: dict[tuple[str, str], StoredModel] = {}
    for model in map(_read, paths):
        first = models.setdefault((model.name, model.version), model)
        if first is not model:
            raise StartupError(
                f"{first.path} and {model.path} are both {model}; remove one, or build it with another --version"
            )
    newest_first = sorted(models.values(), key=lambda model: version_sort_key(model.version), reverse=True)
    return sorted(newest_first, key=lambda model: model.name)


def _read(path: Path) -> StoredModel:
    """Read an archive's manifest. Raises StartupError, as TorchServe would skip a broken archive and never be ready."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
        model = manifest.get("model") or {}
        # TorchServe's own defaults if the manifest lacks a name or version.
        name = model.get("modelName") or re.sub(r"\W|^_", "_", path.stem, flags=re.ASCII)
        version = model.get("modelVersion") or "1.0"
        settings = _settings(path, model.get("configFile"))
    except _DAMAGED as error:
        raise StartupError(f"{path}: not a model archive, or a damaged one ({error}); build it again") from None
    return StoredModel(str(name), str(version), path, settings)


def _settings(path: Path, file: object) -> dict[str, Any]:
    """Read the YAML `file` of an archive. What TorchServe cannot read either is left to its message."""
    try:
        with zipfile.ZipFile(path) as archive:
            settings = yaml.safe_load(archive.read(str(file))) if file else None
    except (KeyError, ValueError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}
