"""Builds model archives for TorchServe: a handler with its settings and, on request, the weights.

handler_files.py packs the handler, and engines.py converts weights for engines other than torch; this module adds the
weights. It checks everything about weights that can be known without loading them, so that errors appear here and not
on the server: see `_check_files` and `_find_on_hub`.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi, errors, snapshot_download
from safetensors import SafetensorError, safe_open

from reelscribe._files import read_small_file, regular_file
from reelscribe.archive.engines import CONVERTED_FOLDER, TORCH, Conversion, check_architecture, convert, find_conversion
from reelscribe.archive.handler_files import default_handlers, pack_handler
from reelscribe.archive.model_store import JOIN_MILLISECONDS, joined_requests
from reelscribe.contract.shots import WEIGHTS_SUFFIXES, weights_in
from reelscribe.contract.speech import SPEECH_ARCHITECTURES, is_speech_architecture
from reelscribe.errors import MALFORMED, OutputError, UsageError

KINDS = ("caption", "speech", "clip", "shot", "speaker")
"""The kinds of handlers: `<kind>_handler.py` is the handler, and `<kind>.yaml` its settings."""

WEIGHTS_FOLDER = "weights"
"""The folder of bundled weights in an archive, which keeps them apart from the files of the handler."""

_TWO_STAGE_ARCHITECTURES = {
    "caption": "Blip2ForConditionalGeneration",
    "speech": "WhisperForConditionalGeneration",
    "clip": "Qwen3VLForConditionalGeneration",
}
"""The architecture that each kind of handler can run in two stages."""

_NETWORKS = {"shot": "TransNetV2", "speaker": "GE2E voice encoder"}
"""The network of each kind of handler whose weights are a state dict, and not a model of transformers."""

_TWO_PROCESSES = {"parallelType": "pp", "torchrun": {"nproc-per-node": 2}}
"""Settings that make TorchServe start two processes for each worker."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OLD_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of what torch saved before 2020, such as the weights of Resemblyzer: a number, pickled."""
_FLOAT32 = 4
"""Bytes of a parameter in a state dict."""
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HUB_ERRORS = (errors.HTTPError, OSError, ValueError)  # type: ignore[attr-defined]  # re-exported, of its HTTP library
_NOT_FOUND = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
_BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja")


@dataclass(frozen=True)
class GpuWorkers:
    """The GPUs that the workers of a model run on.

    Raises:
        UsageError: A value is invalid; TorchServe would silently ignore it.
    """

    devices: tuple[int, ...] | None = None
    """The numbers of the GPUs, from 0, each once; None for all that the server sees when it starts."""
    per_gpu: int | None = None
    """Number of workers on each GPU; None leaves it to the server's start, and is 1 if there are `devices`."""

    def __post_init__(self) -> None:
        numbers = (0,) if self.devices is None else self.devices
        if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
            raise UsageError(f"GPUs: expected one or more different numbers from 0, got {list(numbers)}")
        if self.per_gpu is not None and self.per_gpu < 1:
            raise UsageError(f"workers per GPU: expected 1 or more, got {self.per_gpu}")

    def settings(self, stages: int) -> dict[str, Any]:
        """Return the settings for the archive's YAML.

        With n GPUs, TorchServe assigns deviceIds[k mod n] to worker k; with two stages, it assigns pairs of GPUs.

        Args:
            stages: Number of processes that each worker is split over: 1 or 2.

        Raises:
            UsageError: TorchServe would not run as many workers.
        """
        if stages > 1 and (self.per_gpu or 1) > 1:
            raise UsageError(
                f"workers per GPU: expected 1 with {stages} stages, got {self.per_gpu}: TorchServe runs one worker on"
                " each pair of GPUs"
            )
        if self.devices is None:
            return {"workersPerGpu": self.per_gpu} if self.per_gpu else {}
        workers = len(self.devices) // stages * (self.per_gpu or 1)
        return {"minWorkers": workers, "maxWorkers": workers, "deviceIds": list(self.devices)}


@dataclass(frozen=True)
class _Weights:
    """Weights that have been found and checked."""

    model: str
    """Hub name, or the absolute path of a directory."""
    revision: str | None
    """Commit on the hub; None for a directory."""
    files: tuple[Path, ...]
    """The files to bundle, all in one folder; empty for weights on the hub that need not be downloaded."""
    architecture: str | None = None
    """The model's class; None if only the hub knows it and cannot be reached."""
    parameters: int | None = None
    """The number of its parameters; None if only the hub knows it and cannot be reached, or does not say it."""

    @property
    def folder(self) -> Path:
        """The folder that holds the files."""
        return self.files[0].parent

    def needed_with(self, conversion: Conversion | None) -> list[Path]:
        """Return the files that a handler needs besides what `conversion` makes of them."""
        replaces = conversion is not None and conversion.replaces_weights
        return [
            path for path in self.files if not (replaces and (path.suffix == ".safetensors" or path.name == _INDEX))
        ]


def build(
    name: str,
    kind: str,
    weights: str,
    model_store: Path,
    *,
    version: str | None = None,
    revision: str | None = None,
    bundle: bool = False,
    gpus: GpuWorkers = GpuWorkers(),
    stages: int = 1,
    engine: str | None = None,
    dtype: str | None = None,
    compiled: bool = False,
    handlers: Path | None = None,
) -> Path:
    """Build the archive of a model; an archive of that name and version is replaced.

    Args:
        name: The model's name.
        kind: The kind of handler, one of KINDS.
        weights: A directory with weights in safetensors format, or a hub name. For shots and speakers, a file with
            the state dict of a TransNetV2 or of a GE2E voice encoder, or its directory.
        model_store: Where to write the archive; created if necessary.
        version: The model's version; by default 1.0, and then it is not part of the file name.
        revision: Branch, tag or commit on the hub; by default the newest commit. The archive records the commit.
        bundle: Whether the archive holds the weights; otherwise it refers to them.
        gpus: The GPUs of the workers; by default all that the server sees, unless the YAML says something else.
        stages: 1, or 2 to split each worker over two processes, each with half of the model and a GPU of its own. They
            get successive GPUs of `gpus`.
        engine: What runs the model: "torch", or one of CONVERSIONS for this kind; by default that in the YAML.
        dtype: Name of a dtype, or "auto"; by default that in the YAML.
        compiled: Whether the steps that generate tokens are compiled while the model loads; otherwise the YAML decides.
        handlers: The folder of the handlers, and of `<kind>.yaml` with all other settings; by default `handlers` in the
            current folder if it has this kind, or else in the package.

    Returns:
        The archive's path: `<model_store>/<name>.mar`, or with a version `<name>-<version>.mar`.

    Raises:
        UsageError: An argument is invalid, or the model could not be served with these arguments.
        OutputError: The archive cannot be written.
        StartupError: The handler cannot be packed.
    """
    if kind not in KINDS:
        raise UsageError(f"handler: expected one of {', '.join(KINDS)}, got {kind!r}")
    file_name, version = (f"{name}.mar", "1.0") if version is None else (f"{name}-{version}.mar", version)
    _check_names(name, version)
    if stages not in (1, 2):
        raise UsageError(f"stages: expected 1 or 2, got {stages}")
    if stages == 2 and kind not in _TWO_STAGE_ARCHITECTURES:
        raise UsageError(f"stages: expected 1 for a {kind} handler, whose models run on one GPU, got 2")
    handlers = handlers or default_handlers(kind)
    settings = _settings(handlers, kind, gpus, stages)
    engine = engine or settings["handler"].get("engine", TORCH)
    dtype = dtype or settings["handler"].get("dtype", "auto")
    conversion = find_conversion(kind, engine, dtype, stages)
    found = _find_weights(weights, kind, revision, download=bundle or conversion is not None)
    check_architecture(conversion, engine, weights, found.architecture)
    if stages == 2:
        _check_two_stages(found, kind, weights)
        settings |= _TWO_PROCESSES
    settings["parameters"] = found.parameters
    settings["handler"].update(
        model=found.model,
        revision=found.revision,
        weights=WEIGHTS_FOLDER if bundle else None,
        dtype=dtype,
        stages=stages,
        **_compiled(kind, stages, engine) if compiled else {},
    )
    if conversion or "engine" in settings["handler"]:
        settings["handler"]["engine"] = engine
    if conversion:
        settings["handler"]["converted"] = CONVERTED_FOLDER
    try:
        model_store.mkdir(parents=True, exist_ok=True)
        # In the model store, because weights may not fit into /tmp; hidden, because TorchServe takes other folders
        # there for models.
        with tempfile.TemporaryDirectory(dir=model_store, prefix=".building-") as directory:
            script = handlers / f"{kind}_handler.py"
            archive = pack_handler(script, handlers, Path(directory), name=name, version=version, settings=settings)
            if bundle:
                _add_files(found.needed_with(conversion), archive, WEIGHTS_FOLDER)
            if conversion:
                converted = convert(conversion, found.folder, Path(directory) / CONVERTED_FOLDER, dtype, handlers)
                _add_files(converted, archive, CONVERTED_FOLDER)
            # Renamed when it is complete, so that a server that starts meanwhile never finds half an archive.
            return archive.replace(model_store / file_name)
    except OSError as error:
        raise OutputError(f"{model_store / file_name}: cannot be written: {error}") from None


def _compiled(kind: str, stages: int, engine: str) -> dict[str, Any]:
    """Return the setting for compiled steps. Raises UsageError for what does not generate text with torch alone."""
    if (kind in _NETWORKS, stages, engine) != (False, 1, TORCH):
        raise UsageError(
            f"--compile: expected a model that generates text, in one stage and with the engine {TORCH}, got a {kind}"
            f" handler, --stages {stages} and the engine {engine}; build it without --compile"
        )
    return {"compile": True}


def _check_names(name: str, version: str) -> None:
    """Raise UsageError for a name or a version that cannot be part of file names and URLs."""
    for what, word in (("name", name), ("version", version)):
        # TorchServe takes the version `all` for all versions.
        if not _NAME.fullmatch(word) or len(word) > 100 or (what, word) == ("version", "all"):
            raise UsageError(
                f"{what}: expected up to 100 letters, digits, single dots, _ and -, the first one of them a letter or"
                f" digit, and no version called all; got {word!r}"
            )


def _check_two_stages(found: _Weights, kind: str, weights: str) -> None:
    """Raise UsageError for a model that is known not to run in two stages."""
    expected = _TWO_STAGE_ARCHITECTURES[kind]
    if found.architecture not in (expected, None):
        raise UsageError(
            f"--stages 2: expected a {expected}, and {weights} holds a {found.architecture}, which runs in one stage:"
            " build it without --stages"
        )


def _settings(handlers: Path, kind: str, gpus: GpuWorkers, stages: int) -> dict[str, Any]:
    """Return the settings of a kind, for `gpus`. Raises UsageError if they do not fit the number of stages.

    An archive that is certain to run on GPUs or in two stages says how many requests a call takes. For others, the
    start of a server does. A GPU waits for Python to start its kernels, which takes as long for few items as for many,
    and two stages overlap only within a call, so a call needs several device batches.
    """
    path = handlers / f"{kind}.yaml"
    settings = _read_settings(path)
    stages_in_yaml = settings["handler"].get("stages", 1)
    if stages_in_yaml not in (1, stages):
        raise UsageError(
            f"{path}, handler, stages: expected 1, got {stages_in_yaml}; use --stages 2, which writes all settings of"
            " two stages"
        )
    settings.update(gpus.settings(stages))
    devices = settings.get("deviceIds", [])
    if len(devices) % stages:
        raise UsageError(
            f"GPUs: each worker has {stages} stages with a GPU each; expected a multiple of {stages} GPUs, got"
            f" {devices}; add or leave out a GPU"
        )
    if not devices and stages == 1:
        return settings
    return {"batchSize": joined_requests(settings["handler"]), "maxBatchDelay": JOIN_MILLISECONDS, **settings}


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file with settings for TorchServe and the handler. Raises UsageError for any other file."""
    try:
        settings = yaml.safe_load(read_small_file(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; expected the settings of a handler") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: expected YAML that can be read: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("handler"), dict):
        raise UsageError(
            f"{path}: expected settings, and `handler:` with those of the handler below it; correct the file"
        )
    return settings


def _check_link(path: Path) -> None:
    """Raise UsageError for a link that leads out of its folder, to what an archive would give away.

    In the hub's cache, links lead from `snapshots/<commit>` to `blobs`.
    """
    folder, target = path.parent.resolve(), path.resolve()
    allowed = [folder, folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else [folder]
    if not any(target.is_relative_to(each) for each in allowed):
        raise UsageError(
            f"weights: {path}: expected only files of its own folder, as they go into the archive, got a link to"
            f" {target}; put a copy in its place, or build without --bundle"
        )


def _add_files(files: Sequence[Path], archive: Path, folder: str) -> None:
    """Add weights to a folder of an archive, without compression, which would hardly make them smaller.

    torch-model-archiver would copy them twice, and compress them.
    """
    with zipfile.ZipFile(archive, "a", strict_timestamps=False) as mar:
        for path in files:
            _check_link(path)
            mar.write(path, f"{folder}/{path.name}")


def _find_weights(weights: str, kind: str, revision: str | None, *, download: bool) -> _Weights:
    directory = Path(weights)
    if kind in _NETWORKS:
        return _find_state_dict(directory, revision, kind)
    if directory.is_dir():
        if revision is not None:
            raise UsageError(f"revision: only weights on the hub have any, and {weights} is a directory; leave it out")
        return _Weights(str(directory.resolve()), None, *_check_files(directory, weights, kind))
    if weights.count("/") == 1 and not weights.startswith((".", "/")):
        return _find_on_hub(weights, kind, revision, download=download)
    raise UsageError(f"weights: {weights} is neither a directory nor a hub name like Salesforce/blip2-opt-2.7b")


def _find_state_dict(path: Path, revision: str | None, kind: str) -> _Weights:
    """Find a state dict: the only file of weights in a folder, or that file itself."""
    if revision is not None:
        raise UsageError(f"revision: the weights of a {kind} model have none; leave it out")
    folder = path if path.is_dir() else path.parent
    found = weights_in(folder)
    if len(found) != 1 or path not in (folder, found[0]):
        got = ", ".join(each.name for each in found) or "none"
        raise UsageError(
            f"weights: expected a file of a {_NETWORKS[kind]} ({', '.join(WEIGHTS_SUFFIXES)}) that is the only one in"
            f" its folder, or that folder, got {path}, and in {folder} {got}; put it into a folder of its own"
        )
    _check_state_dict(found[0])
    return _Weights(str(folder.resolve()), None, (found[0],), parameters=found[0].stat().st_size // _FLOAT32)


def _check_state_dict(path: Path) -> None:
    """Raise UsageError for a file of weights that cannot be opened."""
    try:
        with open(path, "rb", opener=regular_file) as file:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="numpy"):
                    return
            if file.read(len(_OLD_TORCH)) != _OLD_TORCH:
                zipfile.ZipFile(path).close()  # as torch saves them since 2020
    except (OSError, SafetensorError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"weights: {path} is damaged, cut short or of an old format ({error}); download it again, or save it with"
            " torch"
        ) from None


def _find_on_hub(name: str, kind: str, revision: str | None, *, download: bool) -> _Weights:
    """Find weights on the hub, or in its cache on this machine if the hub cannot be reached."""
    hub_error: Exception | None = None
    parameters: int | None = None
    try:
        info = HfApi().model_info(name, revision=revision)
        files = {file.rfilename for file in info.siblings or ()}
        parameters = getattr(info.safetensors, "total", None)
        if not files & {_SINGLE, _INDEX}:
            raise _no_safetensors(name)
    except _HUB_ERRORS as error:
        hub_error = error
    patterns = [_SINGLE, "model-*.safetensors", *_BESIDE_WEIGHTS] if download else ["config.json"]
    try:
        snapshot = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns="*/*",  # folders hold, for example, the same model for other frameworks
                local_files_only=hub_error is not None,
            )
        )
    except _HUB_ERRORS as error:
        unreachable = isinstance(error, errors.LocalEntryNotFoundError) and not isinstance(hub_error, _NOT_FOUND)
        if unreachable and _COMMIT.fullmatch(revision or "") and not download:
            return _Weights(name, revision, ())  # nothing needs to be looked up; the server checks that it exists
        raise UsageError(
            f"weights: {name}, revision {revision or 'main'}: found neither on the hub nor in its cache here"
            f" ({type(hub_error or error).__name__}); check the name, the network, and whether you may read it; all 40"
            " digits of a commit as --revision need no network, unless the weights go into the archive"
        ) from None
    if download:
        return _Weights(name, snapshot.name, *_check_files(snapshot, name, kind))
    return _Weights(name, snapshot.name, (), _architecture(snapshot / "config.json", name, kind), parameters)


def _check_files(directory: Path, weights: str, kind: str) -> tuple[tuple[Path, ...], str, int]:
    """Find the files that transformers would load from a directory, and check that the weights can be opened.

    Returns:
        The files, weights first, then configuration and tokenizer files; the model's class; and the number of its
        parameters.
    """
    shards, parameters = _shards(directory, weights), 0
    for path in shards:
        try:
            os.close(regular_file(path, os.O_RDONLY))  # `safe_open` would wait for the other end of a pipe
            with safe_open(path, framework="numpy") as tensors:
                parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.offset_keys())
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"weights: {path} is missing, damaged or cut short ({error}); copy or download it again"
            ) from None
    architecture = _architecture(directory / "config.json", weights, kind)
    beside = sorted(path for pattern in _BESIDE_WEIGHTS for path in directory.glob(pattern) if path.is_file())
    return (*shards, *beside), architecture, parameters


def _shards(directory: Path, weights: str) -> list[Path]:
    if (directory / _SINGLE).exists():
        return [directory / _SINGLE]
    index = directory / _INDEX
    if not index.exists():
        raise _no_safetensors(weights)
    try:
        names = sorted(set(json.loads(read_small_file(index))["weight_map"].values()))
        if others := [name for name in names if os.path.basename(name) != name]:
            raise ValueError(f"expected names of files beside it, got {others[0]!r}")
        return [directory / name for name in names]
    except (OSError, *MALFORMED) as error:
        raise UsageError(f"weights: {index} is damaged ({error!r}); copy or download it again") from None


def _architecture(config: Path, weights: str, kind: str) -> str:
    """Read the model's class from its config.json. Raises UsageError if this kind of handler cannot serve it."""
    try:
        architecture = (json.loads(read_small_file(config)).get("architectures") or ["nothing"])[0]
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"weights: {weights}: expected a config.json of transformers ({error})") from None
    if is_speech_architecture(architecture) != (kind == "speech"):
        raise UsageError(
            f"weights: {weights} holds a {architecture}, which is not for --handler {kind}: speech is for"
            f" {', '.join(SPEECH_ARCHITECTURES)} and ...ForCTC, caption for models that caption images"
        )
    return str(architecture)


def _no_safetensors(weights: str) -> UsageError:
    return UsageError(
        f"weights: {weights} holds no {_SINGLE} and no {_INDEX}; other formats can run code and are not loaded"
    )
