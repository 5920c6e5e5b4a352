"""Model archives for TorchServe: a handler's files, its YAML and, where asked for, the weights.

torch-model-archiver makes them; weights are added as they are. What can be known of weights without loading them is
checked here, so that it does not come out on the server: see `_files_in` and `_on_hub`.
"""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi, errors, snapshot_download
from safetensors import SafetensorError, safe_open

from reelscribe.errors import OutputError, UsageError
from reelscribe.handler_archive import pack_handler

KINDS = ("caption", "speech")
"""The kinds of handlers; `<kind>_handler.py` is the handler and `<kind>.yaml` its settings."""

BUNDLE = "weights"
"""The folder of an archive that holds bundled weights; there they cannot be mistaken for files of the handler."""

_IN_HALVES = {"caption": "Blip2ForConditionalGeneration", "speech": "WhisperForConditionalGeneration"}
"""What each kind of handler can run in two stages."""

_TWO_STAGES = {
    "parallelType": "pp",
    "torchrun": {
        "nproc-per-node": 2,
        # By default several pairs, and several servers, would meet at one port, and read pickles from it. So each
        # pair has a port of its own, but torchrun listens there on all interfaces all the same (docs/security.md).
        "rdzv-backend": "static",
        "rdzv-endpoint": "localhost:0",
    },
}
"""How TorchServe is told to start two processes for each worker."""

_JOINED = {"caption": {"batchSize": 4, "maxBatchDelay": 20}, "speech": {"batchSize": 8, "maxBatchDelay": 20}}
"""Requests that a call of two stages joins, and for how many ms it waits for them, unless the YAML says so itself.

The stages overlap within a call only, so it wants several device batches: these are four, as the client sends at most
32 frames or 8 chunks and the device batch is 32 frames or 16 chunks. If both stages take as long, n batches take
(n + 1) / 2n of the time of one process: 5/8 for four.
"""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HUB_ERRORS = (errors.HTTPError, OSError, ValueError)  # type: ignore[attr-defined]  # its HTTP library's, re-exported
_NO_SUCH = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
_BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja")


@dataclass(frozen=True)
class GpuWorkers:
    """Which GPUs the workers of a model run on. Raises UsageError for what TorchServe would ignore."""

    devices: tuple[int, ...]
    per_gpu: int = 1

    def __post_init__(self) -> None:
        if not self.devices or min(self.devices) < 0 or len(set(self.devices)) < len(self.devices):
            raise UsageError(f"GPUs: expected one or more different numbers from 0, got {list(self.devices)}")
        if self.per_gpu < 1:
            raise UsageError(f"workers per GPU: expected 1 or more, got {self.per_gpu}")

    def settings(self, stages: int) -> dict[str, Any]:
        """As the YAML says it. TorchServe gives worker k the GPU deviceIds[k mod n], or the k-th pair likewise."""
        workers = len(self.devices) // stages * self.per_gpu
        return {"minWorkers": workers, "maxWorkers": workers, "deviceIds": list(self.devices)}


@dataclass(frozen=True)
class _Weights:
    model: str
    """Hub name, or the absolute path of a directory."""
    revision: str | None
    """A commit of the hub; None for a directory, which has none."""
    files: tuple[Path, ...]
    """What a bundle holds; nothing is known of it where weights on the hub are not bundled."""
    architecture: str | None = None
    """The model's class; None where only the hub would know, and it did not answer."""


def build(
    name: str,
    kind: str,
    weights: str,
    model_store: Path,
    *,
    version: str | None = None,
    revision: str | None = None,
    bundle: bool = False,
    gpus: GpuWorkers | None = None,
    stages: int = 1,
    handlers: Path = Path("handlers"),
) -> Path:
    """Write `<model_store>/<name>.mar`, or with a version `<name>-<version>.mar`, and return its path.

    `weights` is a directory or a hub name, which the archive refers to, or holds with `bundle`. `revision` is a branch,
    tag or commit of the hub; the archive says which commit that was, or which was the newest. With 2 `stages`, each
    worker is two processes, each with half of the model, on two GPUs that are neighbours in `gpus`. The other settings
    are those of `<handlers>/<kind>.yaml`. Raises UsageError for what could not be served, and OutputError.
    """
    if kind not in KINDS:
        raise UsageError(f"handler: expected one of {', '.join(KINDS)}, got {kind!r}")
    file_name, version = (f"{name}.mar", "1.0") if version is None else (f"{name}-{version}.mar", version)
    for what, word in (("name", name), ("version", version)):
        # They become names of files and parts of URLs; TorchServe takes `all` for all versions.
        if not _NAME.fullmatch(word) or len(word) > 100 or (what, word) == ("version", "all"):
            raise UsageError(
                f"{what}: expected up to 100 letters, digits, single dots, _ and -, the first one of them a letter or"
                f" digit, and no version called all; got {word!r}"
            )
    if stages not in (1, 2):
        raise UsageError(f"stages: expected 1 or 2, got {stages}")
    settings = _settings(handlers / f"{kind}.yaml", gpus, stages)
    found = _find(weights, kind, revision, bundle=bundle)
    if stages == 2 and found.architecture not in (_IN_HALVES[kind], None):
        raise UsageError(
            f"--stages 2: expected a {_IN_HALVES[kind]}, and {weights} holds a {found.architecture}, which runs in one"
            " stage: build it without --stages"
        )
    if stages == 2:
        settings = {**_JOINED[kind], **settings, **_TWO_STAGES}
    settings["handler"].update(model=found.model, revision=found.revision, weights=BUNDLE if bundle else None)
    settings["handler"].update(stages=stages)
    try:
        model_store.mkdir(parents=True, exist_ok=True)
        # Hidden, as TorchServe takes any other folder here for a model; here, as weights may be larger than /tmp.
        with tempfile.TemporaryDirectory(dir=model_store, prefix=".building-") as directory:
            script = handlers / f"{kind}_handler.py"
            archive = pack_handler(script, handlers, Path(directory), name=name, version=version, settings=settings)
            if bundle:
                _add(found.files, archive)
            # Renamed when it is whole: a server that starts meanwhile never sees half an archive.
            return archive.replace(model_store / file_name)
    except OSError as error:
        raise OutputError(f"{model_store / file_name}: cannot be written: {error}") from None


def _settings(path: Path, gpus: GpuWorkers | None, stages: int) -> dict[str, Any]:
    """Those of a kind of handler, on `gpus`. Raises UsageError where they do not go with so many stages."""
    settings = _template(path)
    if settings["handler"].get("stages", 1) not in (1, stages):
        raise UsageError(f"{path}: stages are asked for with --stages 2, which writes all that they need; expected 1")
    settings.update(gpus.settings(stages) if gpus else {})
    devices = settings.get("deviceIds", [])
    if len(devices) % stages:
        raise UsageError(
            f"GPUs: each worker has {stages} stages with a GPU each; expected a multiple of {stages} GPUs, got"
            f" {devices}; name as many as that"
        )
    return settings


def _template(path: Path) -> dict[str, Any]:
    """The settings of a kind of handler. Raises UsageError."""
    try:
        settings = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; build archives in the project's own folder") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: expected YAML that can be read: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("handler"), dict):
        raise UsageError(f"{path}: expected settings, and `handler:` with more of them below it; mend it")
    return settings


def _add(files: tuple[Path, ...], archive: Path) -> None:
    """Copied once and not compressed, as numbers hardly get smaller; torch-model-archiver copies twice and tries."""
    with zipfile.ZipFile(archive, "a", strict_timestamps=False) as mar:
        for path in files:
            mar.write(path, f"{BUNDLE}/{path.name}")


def _find(weights: str, kind: str, revision: str | None, *, bundle: bool) -> _Weights:
    directory = Path(weights)
    if directory.is_dir():
        if revision is not None:
            raise UsageError(f"revision: only weights on the hub have any, and {weights} is a directory; leave it out")
        return _Weights(str(directory.resolve()), None, *_files_in(directory, weights, kind))
    if weights.count("/") == 1 and not weights.startswith((".", "/")):
        return _on_hub(weights, kind, revision, bundle=bundle)
    raise UsageError(f"weights: {weights} is neither a directory nor a hub name like Salesforce/blip2-opt-2.7b")


def _on_hub(name: str, kind: str, revision: str | None, *, bundle: bool) -> _Weights:
    """Asks the hub; where it does not answer, its cache on this machine."""
    why_not: Exception | None = None
    try:
        files = {file.rfilename for file in HfApi().model_info(name, revision=revision).siblings or ()}
        if not files & {_SINGLE, _INDEX}:
            raise _no_safetensors(name)
    except _HUB_ERRORS as error:
        why_not = error
    patterns = [_SINGLE, "model-*.safetensors", *_BESIDE_WEIGHTS] if bundle else ["config.json"]
    try:
        snapshot = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns="*/*",  # such as the same model for other frameworks
                local_files_only=why_not is not None,
            )
        )
    except _HUB_ERRORS as error:
        unreachable = isinstance(error, errors.LocalEntryNotFoundError) and not isinstance(why_not, _NO_SUCH)
        if unreachable and _COMMIT.fullmatch(revision or "") and not bundle:
            return _Weights(name, revision, ())  # it says all that is needed; the server will see whether it is true
        raise UsageError(
            f"weights: {name}, revision {revision or 'main'}: found neither on the hub nor in its cache here"
            f" ({type(why_not or error).__name__}); check the name, the network, and whether you may read it; all 40"
            " digits of a commit as --revision need no network, but with --bundle"
        ) from None
    if bundle:
        return _Weights(name, snapshot.name, *_files_in(snapshot, name, kind))
    return _Weights(name, snapshot.name, (), _check_class(snapshot / "config.json", name, kind))


def _files_in(directory: Path, weights: str, kind: str) -> tuple[tuple[Path, ...], str]:
    """The weights that transformers would load, opened as a check, with what it needs beside them; and the class."""
    shards = _shards(directory, weights)
    for path in shards:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"weights: {path} is missing, damaged or cut short ({error}); copy or download it again"
            ) from None
    architecture = _check_class(directory / "config.json", weights, kind)
    beside = sorted(path for pattern in _BESIDE_WEIGHTS for path in directory.glob(pattern) if path.is_file())
    return (*shards, *beside), architecture


def _shards(directory: Path, weights: str) -> list[Path]:
    if (directory / _SINGLE).exists():
        return [directory / _SINGLE]
    index = directory / _INDEX
    if not index.exists():
        raise _no_safetensors(weights)
    try:
        return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"weights: {index} is damaged ({error!r}); copy or download it again") from None


def _check_class(config: Path, weights: str, kind: str) -> str:
    """The model's class, which is one for this kind of handler."""
    try:
        architecture = (json.loads(config.read_text()).get("architectures") or ["nothing"])[0]
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"weights: {weights}: expected a config.json of transformers ({error})") from None
    speech = architecture == "WhisperForConditionalGeneration" or architecture.endswith("ForCTC")
    if speech != (kind == "speech"):
        raise UsageError(
            f"weights: {weights} holds a {architecture}, which is not for --handler {kind}: speech is for"
            " WhisperForConditionalGeneration and ...ForCTC, caption for models that caption images"
        )
    return str(architecture)


def _no_safetensors(weights: str) -> UsageError:
    return UsageError(
        f"weights: {weights} holds no {_SINGLE} and no {_INDEX}; other formats can run code and are not loaded"
    )
