"""Reads from the logs of an instance what happened to its workers, and why a model does not load.

`ts_log.log` has TorchServe's own lines and the output of the workers. Log4j begins a new file at 100 MB. The file
before it is read too, because it may tell that a worker that is restarting now was READY before.
"""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reelscribe.server.instance import Instance

FILES = {"model": "model_log.log", "server": "ts_log.log", "access": "access_log.log", "console": "console.log"}
"""File names of the logs: output of the workers, TorchServe's log with that output, requests, and output of Java."""

_LINE = re.compile(r"\d{4}-\S+ \[\w+ *\] (\S+) (\S+) - (.*)")
"""First line of a log entry: thread, logger and message. Lines of another form continue the entry before."""
_WORKER = re.compile(r"W-(\d+)-(.+?)(?:-stdout|-stderr)?")
"""Name of a worker's thread: id and model."""
_STATE_CHANGE = re.compile(r"\S+ State change (\w+) -> (\w+)")
_CANNOT_LOAD = re.compile(r"cannot load: (.*)")
"""The line that reelscribe's handlers print before they give up."""
_ERROR = re.compile(r"(?:Caused by: )?((?:[\w$]+\.)*\w*(?:Error|Exception)\b.*)")
"""The last line of a Python traceback, or the first line of a Java one."""
_NOT_THE_REASON = re.compile(r"No module named 'ts\.torch_handler|java\.lang\.InterruptedException")
"""Errors that are never the reason: TorchServe tries its own handlers after one that cannot be imported, and its
threads end with an InterruptedException.
"""
_REJECTED = re.compile(r"Failed to load model: |Failed to parse model config file |Invalid \w+: .*, should be ")
"""Beginnings of messages about archives that TorchServe itself rejects."""
_GPUS_IGNORED = re.compile(r"Invalid deviceId:(-?\d+), ignore deviceIds list")
"""Message about an archive with a GPU that TorchServe does not see (Model.java): it would use other GPUs or the CPU."""
_ADDED = re.compile(r"Adding new version (.+) for model (.+)")
"""Message that follows in the same thread, with the version and model of that archive."""
_SERVER_ERROR = re.compile(r"\d{4}-\S+ \[ERROR\] \S+ \S+ - (.*)")
"""Log entry of an error of TorchServe itself."""
_JAVA_FAILED = re.compile(
    r"(?:Exception in thread .*|Invalid configuration: |Error: |(?:[\w$]+\.)+\w*(?:Error|Exception)\b).*"
)
_JAVA_USUAL = re.compile(
    r"(?:Warning: TorchServe is using|WARNING: sun\.|nvidia-smi not available|Model server started).*"
)
"""Lines that Java prints even if all is well."""


@dataclass(frozen=True)
class LogPosition:
    """A position in the server's log."""

    inode: int
    """Identifies the file: a new log has another inode."""
    offset: int
    """Offset in the file, in bytes."""


@dataclass
class WorkerHistory:
    """The history of one worker, read from the log."""

    id: str
    """TorchServe's number of the worker, such as "9000"."""
    model: str
    """Name and version of its model, such as "captioner_1.0"."""
    state: str = "null"
    """TorchServe's name for its state."""
    was_ready: bool = False
    """True if it has ever been READY."""
    failed: bool = False
    """True if its process ended while it was loading, and it has not been READY since."""
    reason: str | None = None
    """The reason that a handler of reelscribe gave for giving up."""
    error: str | None = None
    """The last error in its output."""
    last_output: str | None = None
    """The last line of its output."""

    @property
    def failure(self) -> str | None:
        """Return the reason why the worker does not become READY; None if the log gives none."""
        if not self.failed:
            return self.reason
        return self.reason or self.error or "the worker's process ended while it was loading, and said nothing: killed?"

    def read(self, message: str) -> None:
        """Update the history from one message in the log."""
        if change := _STATE_CHANGE.fullmatch(message):
            self._change_state(*change.groups())
        elif reason := _CANNOT_LOAD.fullmatch(message):
            self.reason = reason[1].strip()
        elif (error := _ERROR.fullmatch(message)) and not _NOT_THE_REASON.search(message):
            self.error = error[1].strip()

    def _change_state(self, old: str, new: str) -> None:
        if "WORKER_SCALED_DOWN" in (self.state, old):  # while a removed worker ends, it passes through other states too
            self.state = "WORKER_SCALED_DOWN"
            return
        self.state = new
        if "WORKER_MODEL_LOADED" in (old, new):
            self.was_ready, self.failed = True, False
            self.reason = self.error = None  # they belong to an earlier process
        elif new in ("WORKER_STOPPED", "WORKER_ERROR"):
            self.failed = True


def log_end(instance: Instance) -> LogPosition | None:
    """Return the position of the end of the server's log, from which later entries can be read; None without a log."""
    try:
        status = _server_log(instance).stat()
    except FileNotFoundError:
        return None
    return LogPosition(status.st_ino, status.st_size)


def worker_histories(instance: Instance, since: LogPosition | None = None) -> list[WorkerHistory]:
    """Collect the history of each worker from the log.

    Args:
        instance: The instance whose log is read.
        since: Where to start; by default at the beginning.

    Returns:
        All workers that the log mentions, except those that were scaled down.
    """
    workers: dict[str, WorkerHistory] = {}
    current = None
    for line in _lines(instance, since):
        if match := _LINE.fullmatch(line):
            thread, logger, message = match.groups()
            name = _WORKER.fullmatch(thread)
            current = name and workers.setdefault(f"{name[1]} {name[2]}", WorkerHistory(name[1], name[2]))
        else:
            message = line
        if current:
            current.read(message)
            if match and logger == "MODEL_LOG":
                current.last_output = message
    return [worker for worker in workers.values() if worker.state != "WORKER_SCALED_DOWN"]


def why_it_cannot_load(
    instance: Instance, model: str | None = None, version: str | None = None, *, since: LogPosition | None = None
) -> str | None:
    """Find the reason why a version of a model will not become READY.

    Args:
        instance: The instance whose log is read.
        model: Name of the model; None for any model, and also for archives that TorchServe itself rejected.
        version: Version of the model; None with `model` None.
        since: Where to start, as `log_end` returned it; by default at the beginning.

    Returns:
        The reason on one line; None as long as the log gives none.
    """
    if reason := _missing_gpu(instance, model, version, since):
        return reason
    for worker in worker_histories(instance, since):
        wanted = model is None or worker.model == f"{model}_{version}"
        if wanted and (worker.reason or (worker.failed and worker.error)):
            return worker.failure
    return why_it_was_not_accepted(instance, since) if model is None else None


def why_it_was_not_accepted(instance: Instance, since: LogPosition | None = None) -> str | None:
    """Find the reason why TorchServe itself, and not a worker, rejected an archive.

    Args:
        instance: The instance whose log is read.
        since: Where to start, as `log_end` returned it; by default at the beginning.

    Returns:
        The first such message with its innermost cause, on one line; None if there is none.
    """
    failure, cause = None, None
    for line in _lines(instance, since):
        match = _LINE.fullmatch(line)
        if match and failure:
            break
        if match:
            failure = match[3] if _REJECTED.match(match[3]) else None
        elif failure and (error := _ERROR.fullmatch(line)):
            cause = error[1]
    return failure and ": ".join(filter(None, (failure, cause)))


def last_lines(instance: Instance, count: int = 20) -> list[str]:
    """Return the last lines of the server's log, at most `count`; none without a log."""
    return list(deque(_lines(instance), maxlen=count))


def best_explanation(instance: Instance) -> str:
    """Explain in one line why a server is not ready, as far as its logs tell."""
    if reason := why_it_cannot_load(instance):
        return reason
    workers = worker_histories(instance)
    for worker in workers:
        if reason := worker.error or worker.failure:
            return f"{reason} (see {instance.logs / FILES['model']})"
    console = _console_lines(instance)
    loading = [worker for worker in workers if worker.state != "WORKER_MODEL_LOADED"]
    reasons = (
        [line for line in console if _JAVA_FAILED.fullmatch(line)]
        or [match[1] for line in _lines(instance) if (match := _SERVER_ERROR.fullmatch(line))]
        or [f"a worker said last: {worker.last_output}" for worker in loading if worker.last_output]
        or [line for line in console if line and not _JAVA_USUAL.fullmatch(line)]
        or ["it said nothing"]
    )
    return f"{reasons[-1]} (see {instance.logs})"


def _missing_gpu(instance: Instance, model: str | None, version: str | None, since: LogPosition | None) -> str | None:
    """Explain that a version, or any version if `model` is None, asks for a GPU that TorchServe does not see."""
    missing: dict[str, str] = {}
    for line in _lines(instance, since):
        if not (match := _LINE.fullmatch(line)):
            continue
        thread, _, message = match.groups()
        if ignored := _GPUS_IGNORED.fullmatch(message):
            missing[thread] = ignored[1]
        elif not ((added := _ADDED.fullmatch(message)) and (gpu := missing.pop(thread, None))):
            continue
        elif model is None or added.groups() == (version, model):
            return (
                f"the archive of {added[2]} {added[1]} asks for GPU {gpu}, and TorchServe sees none of that number: see"
                " nvidia-smi, or build the archive with other --gpus or --devices, or without them for the GPUs it sees"
            )
    return None


def _server_log(instance: Instance) -> Path:
    return instance.logs / FILES["server"]


def _console_lines(instance: Instance) -> list[str]:
    console = instance.logs / FILES["console"]
    return [line.strip() for line in console.read_text(errors="replace").split("\n")] if console.exists() else []


def _lines(instance: Instance, since: LogPosition | None = None) -> Iterator[str]:
    """Yield the lines of the server's log from a position on; by default all lines, with those of the log before it."""
    offset = since.offset if since else 0
    now = log_end(instance)
    if not (now and since and now.inode == since.inode and now.offset >= offset):
        yield from _lines_before(instance, offset)  # if a new log has begun since, the position is in the old one
        offset = 0
    with suppress(FileNotFoundError), _server_log(instance).open("rb") as file:
        file.seek(offset)
        yield from (line.decode(errors="replace").rstrip("\n") for line in file)


def _lines_before(instance: Instance, offset: int) -> Iterator[str]:
    """Yield the lines of the newest older log; Log4j compresses the older logs and numbers them upwards."""
    log = _server_log(instance)
    older = sorted(instance.logs.glob(f"{log.stem}.*.log.gz"), key=lambda path: int(path.name.split(".")[1]))
    if not older:
        return
    with suppress(EOFError), gzip.open(older[-1], "rb") as file:  # its compression may not be finished yet
        file.seek(offset)
        yield from (line.decode(errors="replace").rstrip("\n") for line in file)
