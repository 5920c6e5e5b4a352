"""What a server needs on its machine: workers and joined requests for each model, queue, memory and threads of Java.

An archive says nothing of the machine, unless it was built for certain GPUs. So a start counts the GPUs, and adds what
follows from their number to TorchServe's settings. What config.properties or the YAML of an archive says takes
precedence, as in TorchServe itself.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reelscribe.archive.model_store import JOIN_MILLISECONDS, StoredModel, joined_requests
from reelscribe.decode_pool.commands import MAX_REQUEST_BYTES
from reelscribe.errors import MALFORMED, StartupError
from reelscribe.management.model_version import ModelVersion, version_sort_key
from reelscribe.server.config_properties import Settings

SMALLEST_QUEUE = 16
"""Requests that may wait for a model whose workers take one at a time."""

SMALLEST_THREADS = 4
"""Threads of Java that receive requests. One feeds more than one GPU: it takes 0.64 s of a core for 1,000 frames."""

LARGEST_ON_HEAP, LARGEST_ARRIVING = 60, 80
"""How many requests of `max_request_size` the heap and the direct buffers of Java have room for, whatever the model."""

JAVA_SHARE = 0.5
"""Fraction of the machine's memory that Java may take. Workers need the rest, while they load weights above all."""

WORKER_BYTES = 2 * 10**9
"""What a worker takes besides its weights, of its GPU and of the machine's memory: mostly libraries."""

MODELS_SHARE = 0.5
"""Fraction of a GPU's free memory that models may take where it gets a second worker. Calls need the rest."""

SMI_SECONDS = 60
"""Timeout of nvidia-smi, in seconds: it wakes up the GPUs."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The memory of a container in bytes, or "max"."""
_DEFAULT_REQUEST_SIZE = 6_553_500
"""TorchServe's default for `max_request_size`, in bytes."""


def visible_gpus(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Find the GPUs that a server with this environment sees, by their numbers.

    TorchServe numbers them from 0 in this order. It believes CUDA_VISIBLE_DEVICES, and otherwise asks nvidia-smi.

    Raises:
        StartupError: CUDA_VISIBLE_DEVICES holds something else than numbers, with which TorchServe would not start, or
            nvidia-smi does not answer.
    """
    visible = environment.get(_VISIBLE)
    if visible in ("", "-1"):  # as CUDA understands it; TorchServe would see GPUs that its workers cannot use
        return ()
    if visible is None:
        return _ask_nvidia_smi(environment, "--query-gpu=index")
    if not re.fullmatch(r"\d+(,\d+)*", visible):
        raise StartupError(
            f"{_VISIBLE}: expected numbers of GPUs, separated by commas, because TorchServe reads no others, got"
            f" {visible!r}; `nvidia-smi --list-gpus` shows the numbers"
        )
    return tuple(map(int, visible.split(",")))


def _ask_nvidia_smi(environment: Mapping[str, str], *query: str) -> tuple[int, ...]:
    """Ask for a number of each GPU; return none if there is no answer of numbers."""
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        )
        return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
    except (FileNotFoundError, ValueError):
        return ()
    except subprocess.TimeoutExpired:
        raise StartupError(f"nvidia-smi: expected an answer within {SMI_SECONDS} s, got none; is a GPU lost?") from None


def model_sizes(
    model: StoredModel, gpus: int, named: Mapping[str, Any] | None = None, per_gpu: int = 1
) -> dict[str, int]:
    """Choose the workers of a model and how many requests a call of one takes.

    Args:
        model: The model, with the YAML of its archive, which takes precedence.
        gpus: Number of GPUs that TorchServe sees.
        named: What config.properties says of the model, which takes precedence over what follows from the GPUs.
        per_gpu: Number of workers on each GPU, for a model in one stage whose archive leaves it to the start.

    Returns:
        `minWorkers`, `maxWorkers`, `batchSize` and `maxBatchDelay`, as the setting `models=` of TorchServe has them.
    """
    yaml, handler = model.settings, _handler(model)
    on_gpus = gpus > 0 and yaml.get("deviceType") != "cpu"
    stages = _stages(model)
    each = _count(yaml, "workersPerGpu", per_gpu if stages == 1 else 1)
    workers = max(1, gpus // stages * each) if on_gpus else 1
    joined = joined_requests(handler) if on_gpus or stages > 1 else 1
    sizes = {"minWorkers": workers, "maxWorkers": workers, "batchSize": joined, "maxBatchDelay": JOIN_MILLISECONDS}
    own = {name: _count(yaml, name, 0) for name in sizes}
    if own["minWorkers"] > own["maxWorkers"]:  # TorchServe ignores both then
        own["minWorkers"] = own["maxWorkers"] = 0
    return {name: own[name] or _count(named or {}, name, chosen) for name, chosen in sizes.items()}


def complete_sizes(
    settings: Settings, models: Sequence[StoredModel], environment: Mapping[str, str]
) -> tuple[Settings, list[str]]:
    """Add what the machine and the models decide to TorchServe's settings; what is there remains.

    Args:
        settings: Completed settings.
        models: The models that are going to be served.
        environment: The variables that the server gets.

    Returns:
        The settings with `models`, `number_of_gpu`, `job_queue_size`, `number_of_netty_threads`, and the limits of
        Java's memory in `vmargs`; and lines that say what was chosen, and why.

    Raises:
        StartupError: A setting or a variable is not what TorchServe expects, or a model does not fit the GPUs.
    """
    visible = visible_gpus(environment)
    gpus = min(len(visible), _number(settings, "number_of_gpu", len(visible)))
    lines: list[str] = []
    entries = _entries(settings, models, visible[:gpus])
    if (more := _entries(settings, models, visible[:gpus], per_gpu=2)) != entries:
        why_not = _why_no_second_worker(models, more, visible[:gpus], environment)
        entries = entries if why_not else more
        lines.append(
            f"no GPU has a second worker: {why_not}"
            if why_not
            else "each GPU has a second worker, as it has room: one computes while the requests of the other one arrive"
        )
    sizes = [entries[model.name][model.version] for model in models]
    at_once = [size["minWorkers"] * size["batchSize"] for size in sizes]
    completed = {
        "job_queue_size": str(max(SMALLEST_QUEUE, 2 * max(at_once))),
        "number_of_netty_threads": str(max(SMALLEST_THREADS, min(gpus, len(os.sched_getaffinity(0))))),
        **settings,
        "number_of_gpu": str(gpus),
        "models": json.dumps(entries),
    }
    completed["vmargs"], lack = _java_arguments(completed, at_once)
    chosen = (
        f"{model} has {_counted(size['minWorkers'], 'worker')}, and a call takes"
        f" {_counted(size['batchSize'], 'request')}"
        for model, size in zip(models, sizes, strict=True)
    )
    java = re.findall(r"-(?:Xmx|XX:MaxDirectMemorySize=)\S+", completed["vmargs"])
    return completed, [
        f"{_counted(gpus, 'GPU') if gpus else 'no GPU'}: {'; '.join(chosen)}",
        *lines,
        f"room for {completed['job_queue_size']} waiting requests of each model; Java gets {' '.join(java)} and"
        f" {completed['number_of_netty_threads']} threads",
        *lack,
    ]


def _entries(
    settings: Settings, models: Sequence[StoredModel], visible: Sequence[int], *, per_gpu: int = 1
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the setting `models=`, with the sizes of each model, for these GPUs."""
    named = _named_sizes(settings)
    entries = {name: {**versions} for name, versions in named.items()}
    for model in models:
        if visible and _stages(model) > 1:
            _check_pairs(model, visible)
        said = named.get(model.name, {})
        # A version that is not named is as the newest one that is.
        known = said.get(model.version) or said.get(max(said, key=version_sort_key, default=""), {})
        sizes = model_sizes(model, len(visible), {**_default_workers(settings), **known}, per_gpu)
        entries.setdefault(model.name, {})[model.version] = {**known, **sizes}
    return entries


def _why_no_second_worker(
    models: Sequence[StoredModel],
    entries: Mapping[str, Mapping[str, Mapping[str, Any]]],
    visible: Sequence[int],
    environment: Mapping[str, str],
) -> str | None:
    """Say why the workers in `entries`, two on each GPU where a model leaves that to the start, are too many.

    What a worker takes follows from what the archive says of its model, and not from what models take once they are
    loaded: then, requests that take more may have come already, and a restart would choose something else each time.
    """
    memory = _ask_nvidia_smi(environment, "-i", ",".join(map(str, visible)), "--query-gpu=memory.free")
    if not memory:
        return "nvidia-smi does not say how much of their memory is free"
    on_each, in_all = 0, 0
    for model in models:
        yaml, handler = model.settings, _handler(model)
        parameters, compiled = _count(yaml, "parameters", 0), handler.get("compile") is True
        if not parameters or compiled:
            return (
                f"how much memory {model} takes is not known, as its"
                f" {'steps are compiled' if compiled else 'archive does not say it'}; if a GPU holds it twice, build it"
                " with --workers-per-gpu 2"
            )
        worker = parameters * (4 if handler.get("dtype") == "float32" else 2) + WORKER_BYTES
        workers, devices = entries[model.name][model.version]["minWorkers"], yaml.get("deviceIds")
        on_each += worker * math.ceil(workers / len(devices if isinstance(devices, list) and devices else visible))
        in_all += worker * workers
    for took, there, whose in (
        (on_each, min(memory) << 20, "is free on each GPU"),
        (in_all, _memory(), "the machine has"),
    ):
        if took > there * MODELS_SHARE:
            return (
                f"with a second one, models would take {took / 1e9:.1f} GB, more than half of the {there / 1e9:.1f} GB"
                f" that {whose}"
            )
    return None


def idle_gpus(gpus: int, versions: Iterable[ModelVersion]) -> str | None:
    """Warn of GPUs on which no worker of any model runs.

    Args:
        gpus: The number of GPUs that the server sees: its setting `number_of_gpu`.
        versions: All versions of all models.

    Returns:
        What to tell the operator; None if every GPU has a worker.
    """
    busy: set[int] = set()
    for version in versions if gpus else ():
        for k, worker in enumerate(version.workers):
            # Where the server does not say which GPU it is, workers have been dealt to the GPUs one after the other.
            dealt = version.device_ids or range(gpus)
            first = k * version.stages
            busy.update(
                version.gpus_of(worker) or [dealt[i % len(dealt)] for i in range(first, first + version.stages)]
            )
    if not (idle := sorted({*range(gpus)} - busy)):
        return None
    return (
        f"no model uses {'GPU' if len(idle) == 1 else 'GPUs'} {', '.join(map(str, idle))}: build its archive without"
        " --gpus, --devices and minWorkers, which gives each GPU a worker, and restart; or `reelscribe models scale`"
    )


def _java_arguments(settings: Settings, at_once: Sequence[int]) -> tuple[str, list[str]]:
    """Return `vmargs` with limits for Java's heap and its direct buffers, unless it has them; and what they lack.

    Requests of our size that wait, or that workers compute, are on the heap. Those that arrive are in direct buffers,
    and so are those on their way to a worker, twice while its buffer grows. Both have room for larger ones, too.
    """
    largest = _number(settings, "max_request_size", _DEFAULT_REQUEST_SIZE)
    body, queue = min(MAX_REQUEST_BYTES, largest), _number(settings, "job_queue_size", 0)
    heap = LARGEST_ON_HEAP * largest + sum(queue + count for count in at_once) * body
    direct = LARGEST_ARRIVING * largest + sum(3 * count for count in at_once) * body
    most, wanted = int(_memory() * JAVA_SHARE), {"-Xmx": heap, "-XX:MaxDirectMemorySize=": direct}
    arguments = settings.get("vmargs", "")
    missing = [option for option in wanted if option not in arguments]
    lack: list[str] = []
    if missing and heap + direct > most:
        lack.append(
            f"Java should have {(heap + direct) / 1e9:.1f} GB for the requests of these models, and gets"
            f" {most / 1e9:.1f}, half of the machine's memory: when it is full, requests are refused with status 507"
            " and sent again"
        )
        wanted = {option: size * most // (heap + direct) for option, size in wanted.items()}
    return " ".join([*arguments.split(), *(f"{option}{wanted[option] >> 20}m" for option in missing)]), lack


def _memory() -> int:
    """Return the bytes of memory of the machine, or of the container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(machine, int(_MEMORY_LIMIT.read_text()))
    return machine


def _check_pairs(model: StoredModel, visible: Sequence[int]) -> None:
    """Raise StartupError for two stages that would not get two of the GPUs that the server sees."""
    if len(visible) < 2:
        raise StartupError(
            f"{model}: expected two GPUs or more, one for each of its stages, got one; build it without --stages"
        )
    if {*visible} != {*range(len(visible))}:
        raise StartupError(
            f"{_VISIBLE}: expected the numbers from 0 on for {model}, got {','.join(map(str, visible))}: TorchServe"
            " gives the stages of a model other GPUs than these; unset it, and build the archive with --devices"
        )


def _named_sizes(settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the setting `models=`: settings by model and version."""
    try:
        named = json.loads(settings.get("models", "{}"))
        return {
            str(name): {version: {**sizes} for version, sizes in versions.items()} for name, versions in named.items()
        }
    except MALFORMED as error:
        raise StartupError(
            f"models=: expected JSON of settings by model and version, got {settings['models']} ({error})"
        ) from None


def _default_workers(settings: Settings) -> dict[str, int]:
    count = _number(settings, "default_workers_per_model", 0)
    return {"minWorkers": count, "maxWorkers": count} if count else {}


def _stages(model: StoredModel) -> int:
    return _count(_handler(model), "stages", 1)


def _handler(model: StoredModel) -> Mapping[str, Any]:
    handler = model.settings.get("handler")
    return handler if isinstance(handler, dict) else {}


def _count(values: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of 1 or more, or the default for any other value, as TorchServe does."""
    value = values.get(name)
    return value if type(value) is int and value > 0 else default


def _number(settings: Settings, name: str, default: int) -> int:
    value = settings.get(name, str(default))
    if not (value.isascii() and value.isdigit()):
        raise StartupError(f"{name}=: expected a whole number of 0 or more, got {value!r}; correct config.properties")
    return int(value)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
