"""What a server needs on its machine: workers and joined requests for each model, queue, memory and threads of Java.

An archive says nothing of the machine, unless it was built for certain GPUs. So a start counts the GPUs, and adds what
follows from their number to TorchServe's settings. What config.properties or the YAML of an archive says takes
precedence, as in TorchServe itself.
"""

from __future__ import annotations

import json
import logging
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

LARGE_REQUESTS = 50
"""Connections that may send requests of `max_request_size` at once if the memory suffices, whatever the model."""

_ROOM = {"-Xmx": 1.2, "-XX:MaxDirectMemorySize=": 1.6}
"""Bytes that the heap and the direct buffers of Java need for a byte of a large request."""

JAVA_SHARE = 0.5
"""Fraction of the machine's memory that Java may take, or of what is left of it if `vmargs` gives Java some. Workers
need the rest, while they load weights above all."""

WORKER_BYTES = 2 * 10**9
"""What a worker takes besides its weights, of its GPU and of the machine's memory: mostly libraries."""

MODELS_SHARE = 0.5
"""Fraction of a GPU's free memory that models may take where it gets a second worker. Calls need the rest."""

SMI_SECONDS = 60
"""Timeout of nvidia-smi, in seconds: it wakes up the GPUs."""

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SIZE = re.compile(r"(\d+)([kmgt]?)", re.IGNORECASE)
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The memory of a container in bytes, or "max"."""
_DEFAULT_REQUEST_SIZE = 6_553_500
"""TorchServe's default for `max_request_size`, in bytes."""


_log = logging.getLogger(__name__)


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
        return _listed_gpus(environment)
    if not re.fullmatch(r"\d+(,\d+)*", visible):
        raise StartupError(
            f"{_VISIBLE}: expected numbers of GPUs, separated by commas, because TorchServe reads no others, got"
            f" {visible!r}; `nvidia-smi --list-gpus` shows the numbers"
        )
    return tuple(map(int, visible.split(",")))


def _listed_gpus(environment: Mapping[str, str]) -> tuple[int, ...]:
    done = _ask_nvidia_smi(environment, "--query-gpu=index")
    if done is None:  # there is no such program
        return ()
    numbers = _numbers(done)
    if not numbers:
        said = f"{done.stdout}\n{done.stderr}".strip().partition("\n")[0] or f"status {done.returncode}"
        _log.warning("nvidia-smi lists no GPU, so models run on the CPU: %s", said)
    return numbers


def _ask_nvidia_smi(environment: Mapping[str, str], *query: str) -> subprocess.CompletedProcess[str] | None:
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise StartupError(f"nvidia-smi: expected an answer within {SMI_SECONDS} s, got none; is a GPU lost?") from None


def _numbers(done: subprocess.CompletedProcess[str] | None) -> tuple[int, ...]:
    """Return the number for each GPU in an answer of nvidia-smi; none if it has other words."""
    with suppress(ValueError):
        if done is not None and done.returncode == 0:
            return tuple(map(int, done.stdout.split()))
    return ()


def model_sizes(model: StoredModel, gpus: int, settings: Settings, per_gpu: int = 1) -> dict[str, Any]:
    """Choose the workers of a model and how many requests a call of one takes.

    Args:
        model: The model, with the YAML of its archive, which takes precedence.
        gpus: Number of GPUs that TorchServe sees.
        settings: What the operator set, which takes precedence over what follows from the GPUs.
        per_gpu: Number of workers on each GPU, for a model in one stage whose archive leaves it to the start.

    Returns:
        `minWorkers`, `maxWorkers`, `batchSize` and `maxBatchDelay`, beside what else `models=` says of the model.

    Raises:
        StartupError: A setting is not what TorchServe expects.
    """
    yaml, handler, said = model.settings, _handler(model), _named_sizes(settings).get(model.name, {})
    # A version that is not named is as the newest one that is.
    named = said.get(model.version) or said.get(max(said, key=version_sort_key, default=""), {})
    on_gpus = gpus > 0 and yaml.get("deviceType") != "cpu"
    own_gpus, stages, takes = len(_device_ids(yaml, gpus)) or gpus, _stages(model), joined_requests(handler)
    each = _count(yaml, "workersPerGpu", per_gpu if stages == 1 else 1)
    workers = max(1, own_gpus // stages * each) if on_gpus else 1
    default = _number(settings, "default_workers_per_model", 0) or workers
    low, high = _bounds(yaml) or _bounds(named) or (default, default)
    chosen = {"batchSize": takes if on_gpus or stages > 1 else 1, "maxBatchDelay": JOIN_MILLISECONDS}
    calls = {name: _count(yaml, name, 0) or _count(named, name, number) for name, number in chosen.items()}
    if _joins_too_many(model):
        calls["batchSize"] = takes
    return {**named, "minWorkers": low, "maxWorkers": high, **calls}


def _joins_too_many(model: StoredModel) -> bool:
    """Return whether an archive has TorchServe join more requests of our size than its handler takes in a call."""
    return 1 < joined_requests(_handler(model)) < _count(model.settings, "batchSize", 0)


def _bounds(values: Mapping[str, Any]) -> tuple[int, int] | None:
    """Read the smallest and the largest number of workers, of which one alone is both.

    Returns:
        None if there is neither, or if they contradict each other, as TorchServe ignores both then.
    """
    low, high = (_count(values, name, 0) for name in ("minWorkers", "maxWorkers"))
    low, high = low or high, high or low
    return (low, high) if 0 < low <= high else None


def _device_ids(yaml: Mapping[str, Any], gpus: int) -> set[int]:
    """Return the GPUs that an archive names; none if the server lacks one of them, as TorchServe ignores all then."""
    named = yaml.get("deviceIds")
    numbers = {*named} if isinstance(named, list) and all(type(number) is int for number in named) else set()
    return numbers if numbers <= {*range(gpus)} else set()


def complete_sizes(
    settings: Settings, models: Sequence[StoredModel], environment: Mapping[str, str]
) -> tuple[Settings, list[str], list[str]]:
    """Add what the machine and the models decide to TorchServe's settings; what is there remains.

    Args:
        settings: Completed settings.
        models: The models that are going to be served.
        environment: The variables that the server gets.

    Returns:
        The settings with `models`, `number_of_gpu`, `job_queue_size`, `number_of_netty_threads`, and the limits of
        Java's memory in `vmargs`; lines that say what was chosen, and why; and warnings.

    Raises:
        StartupError: A setting or a variable is not what TorchServe expects, or a model does not fit the GPUs.
    """
    visible = visible_gpus(environment)
    visible = visible[: _number(settings, "number_of_gpu", len(visible))]
    entries, why = _entries(settings, models, visible), []
    if (more := _entries(settings, models, visible, per_gpu=2)) != entries:
        why_not = _why_no_second_worker(models, more, visible, environment)
        entries = entries if why_not else more
        why.append(
            f"no GPU has a second worker: {why_not}"
            if why_not
            else "each GPU has a second worker, as it has room: one computes while the requests of the other one arrive"
        )
    sizes = [entries[model.name][model.version] for model in models]
    at_once = [size["minWorkers"] * size["batchSize"] for size in sizes]
    completed = {
        "job_queue_size": str(max(SMALLEST_QUEUE, 2 * max(at_once))),
        "number_of_netty_threads": str(max(SMALLEST_THREADS, min(len(visible), len(os.sched_getaffinity(0))))),
        **settings,
        "number_of_gpu": str(len(visible)),
        "models": json.dumps(entries),
    }
    completed["vmargs"], lacks = _java_arguments(completed, at_once)
    chosen = (
        f"{model} has {_counted(size['minWorkers'], 'worker')}, and a call takes"
        f" {_counted(size['batchSize'], 'request')}"
        for model, size in zip(models, sizes, strict=True)
    )
    java = re.findall(r"-(?:Xmx|XX:MaxDirectMemorySize=)\S+", completed["vmargs"])
    lines = [
        f"{_counted(len(visible), 'GPU') if visible else 'no GPU'}: {'; '.join(chosen)}",
        *why,
        f"room for {completed['job_queue_size']} waiting requests of each model; Java gets {' '.join(java)} and"
        f" {completed['number_of_netty_threads']} threads",
    ]
    return completed, lines, [*_of_other_versions(completed, models, max(at_once)), *lacks]


def _entries(
    settings: Settings, models: Sequence[StoredModel], visible: Sequence[int], *, per_gpu: int = 1
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the setting `models=`, with the sizes of each model, for these GPUs."""
    entries = _named_sizes(settings)
    for model in models:
        if visible and _stages(model) > 1:
            _check_pairs(model, visible)
        entries.setdefault(model.name, {})[model.version] = model_sizes(model, len(visible), settings, per_gpu)
    return entries


def _of_other_versions(settings: Settings, models: Sequence[StoredModel], at_once: int) -> list[str]:
    """Warn of what archives and settings for earlier versions say, and of what is no longer right."""
    warnings = [
        f"{model}: its archive joins {model.settings['batchSize']} requests for a call, which takes"
        f" {joined_requests(_handler(model))} of our largest, so the others are refused and sent again: build it again,"
        " without batchSize in its YAML (config-single.properties is for clients that send single frames)"
        for model in models
        if _joins_too_many(model)
    ]
    if (queue := _number(settings, "job_queue_size", 0)) < at_once:
        warnings.append(
            f"job_queue_size={queue}: expected at least {at_once}, a call of each worker of a model; otherwise requests"
            " are refused and sent again while GPUs wait: remove the line from config.properties, and the start"
            " computes it"
        )
    return warnings


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
    query = "-i", ",".join(map(str, visible)), "--query-gpu=memory.free"
    memory = _numbers(_ask_nvidia_smi(environment, *query))
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
        workers = entries[model.name][model.version]["minWorkers"]
        on_each += worker * math.ceil(workers / len(_device_ids(yaml, len(visible)) or visible))
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
        f"no model uses {'GPU' if len(idle) == 1 else 'GPUs'} {', '.join(map(str, idle))}: `reelscribe models scale"
        f" MODEL {gpus}` gives each GPU a worker, and so does a restart if the archive was built without --gpus,"
        " --devices and minWorkers"
    )


def _java_arguments(settings: Settings, at_once: Sequence[int]) -> tuple[str, list[str]]:
    """Return `vmargs` with limits for Java's heap and its direct buffers, unless it has them; and what they lack.

    Requests of our size that wait, or that workers compute, are on the heap. Those that arrive are in direct buffers,
    and so are those on their way to a worker, twice while its buffer grows. What is left is for larger requests.
    """
    largest = _number(settings, "max_request_size", _DEFAULT_REQUEST_SIZE)
    body, queue = min(MAX_REQUEST_BYTES, largest), _number(settings, "job_queue_size", 0)
    ours = dict(zip(_ROOM, (body * sum(queue + count for count in at_once), body * 3 * sum(at_once)), strict=True))
    arguments = settings.get("vmargs", "").split()
    given = {option: _given(option, arguments) for option in _ROOM}
    missing = [option for option, size in given.items() if size is None]
    most = max(0, int((_memory() - sum(filter(None, given.values()))) * JAVA_SHARE))
    needed = sum(ours[option] for option in missing)
    lacks = [
        f"Java should have {needed / 1e9:.1f} GB for requests to these models, and gets {most / 1e9:.1f}, half of the"
        " machine's memory: when it is full, requests are refused with status 507 and sent again"
    ] * (needed > most)
    large = {option: LARGE_REQUESTS * largest * _ROOM[option] for option in missing}
    share = min(1, most / max(1, needed))
    rest = min(1, max(0, most - needed) / max(1, sum(large.values())))
    sizes = {option: max(largest, ours[option] * share + large[option] * rest) for option in missing}
    return " ".join([*arguments, *(f"{option}{int(size) >> 20}m" for option, size in sizes.items())]), lacks


def _given(option: str, arguments: Sequence[str]) -> int | None:
    """Return the bytes that the arguments of Java give to a memory; None if they leave it to us."""
    values = [argument.removeprefix(option) for argument in arguments if argument.startswith(option)]
    if not values:
        return None
    size = _SIZE.fullmatch(values[-1])  # the last one counts; for another value, Java gives the reason
    return int(size[1]) << 10 * " kmgt".index(size[2].lower() or " ") if size else 0


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
