"""What the logs of an instance say: how its workers got on, and why a model does not load.

`ts_log.log` has the lines of the workers too. A new one begins at 100 MB; the one before it is read as well, for what a
worker was before it died must not be forgotten while it restarts.
"""

from __future__ import annotations

import gzip
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from reelscribe.server.instance import Instance

LOGS = {"model": "model_log.log", "server": "ts_log.log", "access": "access_log.log", "console": "console.log"}
"""Which logs there are: what workers print, what TorchServe says of itself and them, requests, and what Java prints."""

_LINE = re.compile(r"\d{4}-\S+ \[\w+ *\] (\S+) (\S+) - (.*)")
"""Thread, logger and message; lines of another shape continue the one before."""
_WORKER = re.compile(r"W-(\d+)-(.+?)(?:-stdout|-stderr)?")
_STATE_CHANGE = re.compile(r"\S+ State change (\w+) -> (\w+)")
_CANNOT_LOAD = re.compile(r"cannot load: (.*)")
"""What our handlers say before they give up."""
_ERROR = re.compile(r"(?:Caused by: )?((?:[\w$]+\.)*\w*(?:Error|Exception)\b.*)")
"""The last line of a traceback of Python, or the first of one of Java."""
_NOT_THE_REASON = re.compile(r"No module named 'ts\.torch_handler|java\.lang\.InterruptedException")
"""TorchServe looks there for a handler that cannot be imported; and so its threads end."""
_FRONTEND = re.compile(r"Failed to load model: |Failed to parse model config file |Invalid \w+: .*, should be ")
_GPUS_IGNORED = re.compile(r"Invalid deviceId:(-?\d+), ignore deviceIds list")
"""Where an archive names a GPU that TorchServe does not see (Model.java); it takes other ones then, or the CPU."""
_ADDED = re.compile(r"Adding new version (.+) for model (.+)")
"""Comes next in the same thread."""
_SERVER_ERROR = re.compile(r"\d{4}-\S+ \[ERROR\] \S+ \S+ - (.*)")
_ENDED = re.compile(
    r"(?:Exception in thread .*|Invalid configuration: |Error: |(?:[\w$]+\.)+\w*(?:Error|Exception)\b).*"
)
_NO_REASON = re.compile(
    r"(?:Warning: TorchServe is using|WARNING: sun\.|nvidia-smi not available|Model server started).*"
)
"""What Java prints when all is well."""


@dataclass(frozen=True)
class LogPosition:
    """A place in a log."""

    inode: int
    """Of the file: when a new log begins, it is another."""
    offset: int
    """In bytes."""


@dataclass
class WorkerHistory:
    """What the log tells of one worker."""

    id: str
    model: str
    """Name and version: captioner_1.0."""
    state: str = "null"
    """TorchServe's word for it."""
    was_ready: bool = False
    failed: bool = False
    """Whether it ended while it was loading, and has not been READY since."""
    said: str | None = None
    """What our handler gave as the reason."""
    error: str | None = None
    """The last error in its output."""
    last_output: str | None = None

    @property
    def failure(self) -> str | None:
        """Why it does not get READY; None if nothing says that it does not."""
        if not self.failed:
            return self.said
        return self.said or self.error or "the worker's process ended while it was loading, and said nothing: killed?"

    def change_state(self, old: str, new: str) -> None:
        """What follows from one of TorchServe's lines."""
        if self.state == "WORKER_SCALED_DOWN":
            return  # it goes through the other states too, on its way out
        self.state = new
        if new == "WORKER_MODEL_LOADED" or old == "WORKER_MODEL_LOADED":
            self.was_ready, self.failed = True, False
            self.said = self.error = None  # they are of an earlier life
        elif new in ("WORKER_STOPPED", "WORKER_ERROR"):
            self.failed = True


def log_end(instance: Instance) -> LogPosition | None:
    """Where the log ends now, for `why_it_cannot_load`; None if there is no log yet."""
    try:
        status = _server_log(instance).stat()
    except FileNotFoundError:
        return None
    return LogPosition(status.st_ino, status.st_size)


def worker_histories(instance: Instance, since: LogPosition | None = None) -> list[WorkerHistory]:
    """Every worker that the log speaks of from a position on, those apart that were scaled down."""
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
            _note(current, message)
            if match and logger == "MODEL_LOG":
                current.last_output = message
    return [worker for worker in workers.values() if worker.state != "WORKER_SCALED_DOWN"]


def why_it_cannot_load(
    instance: Instance, model: str | None = None, version: str | None = None, *, since: LogPosition | None = None
) -> str | None:
    """Why a version of a model does not get READY, on one line; None as long as the log gives no reason.

    Without `model` it is about all of them, and also about archives that TorchServe itself did not accept. What was
    logged before `since`, as `log_end` gave it, does not count.
    """
    if reason := _missing_gpu(instance, model, version, since):
        return reason
    for worker in worker_histories(instance, since):
        asked_for = model is None or worker.model == f"{model}_{version}"
        if asked_for and (worker.said or (worker.failed and worker.error)):
            return worker.failure
    return why_it_was_not_accepted(instance, since) if model is None else None


def why_it_was_not_accepted(instance: Instance, since: LogPosition | None = None) -> str | None:
    """What TorchServe, and not a worker, had against an archive, with the innermost cause that it names."""
    failure, cause = None, None
    for line in _lines(instance, since):
        match = _LINE.fullmatch(line)
        if match and failure:
            break
        if match:
            failure = match[3] if _FRONTEND.match(match[3]) else None
        elif failure and (error := _ERROR.fullmatch(line)):
            cause = error[1]
    return failure and ": ".join(filter(None, (failure, cause)))


def best_explanation(instance: Instance) -> str:
    """Of a server that is not ready, whatever the reason, on one line."""
    if reason := why_it_cannot_load(instance):
        return reason
    workers = worker_histories(instance)
    for worker in workers:
        if reason := worker.error or worker.failure:
            return f"{reason} (see {instance.logs / LOGS['model']})"
    loading = [worker for worker in workers if worker.state != "WORKER_MODEL_LOADED"]
    console = instance.logs / LOGS["console"]
    lines = [line.strip() for line in console.read_text(errors="replace").split("\n")] if console.exists() else []
    reasons = [line for line in lines if _ENDED.fullmatch(line)]
    reasons = reasons or [match[1] for line in _lines(instance) if (match := _SERVER_ERROR.fullmatch(line))]
    reasons = reasons or [f"a worker said last: {worker.last_output}" for worker in loading if worker.last_output]
    reasons = reasons or [line for line in lines if line and not _NO_REASON.fullmatch(line)] or ["it said nothing"]
    return f"{reasons[-1]} (see {instance.logs})"


def _note(worker: WorkerHistory, message: str) -> None:
    if change := _STATE_CHANGE.fullmatch(message):
        worker.change_state(*change.groups())
    elif said := _CANNOT_LOAD.fullmatch(message):
        worker.said = said[1].strip()
    elif (error := _ERROR.fullmatch(message)) and not _NOT_THE_REASON.search(message):
        worker.error = error[1].strip()


def _missing_gpu(instance: Instance, model: str | None, version: str | None, since: LogPosition | None) -> str | None:
    """Of a version, or of any if none is named."""
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
                " nvidia-smi, or build it with other --gpus or --devices, or without for the CPU"
            )
    return None


def _server_log(instance: Instance) -> Path:
    return instance.logs / LOGS["server"]


def _lines(instance: Instance, since: LogPosition | None = None) -> Iterator[str]:
    """What the server's log says from a position on, or with what the log before it says."""
    offset = since.offset if since else 0
    now = log_end(instance)
    if not (now and since and now.inode == since.inode and now.offset >= offset):
        yield from _lines_before(instance, offset)  # if a new log began meanwhile, the position is one of the old
        offset = 0
    with suppress(FileNotFoundError), _server_log(instance).open("rb") as file:
        file.seek(offset)
        yield from (line.decode(errors="replace").rstrip("\n") for line in file)


def _lines_before(instance: Instance, offset: int) -> Iterator[str]:
    """What the newest of the older logs says; Log4j numbers them upwards, and compresses them when they are full."""
    log = _server_log(instance)
    older = sorted(instance.logs.glob(f"{log.stem}.*.log.gz"), key=lambda path: int(path.name.split(".")[1]))
    if not older:
        return
    with suppress(EOFError), gzip.open(older[-1], "rb") as file:  # it is still being written
        file.seek(offset)
        yield from (line.decode(errors="replace").rstrip("\n") for line in file)


POLL_SECONDS = 0.2


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; none if it is not there."""
    if not log.exists():
        return []
    with log.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count)]


def follow(log: Path, count: int) -> Iterator[str]:
    """The last lines of a log and then those that are written, for ever; goes over to a new log when one begins."""
    most: int | None = count
    while True:
        with suppress(FileNotFoundError), log.open("rb") as file:  # it is not there while a new one begins
            yield from _follow_one(file, log, most)
            most = None
        time.sleep(POLL_SECONDS)


def _follow_one(file: BinaryIO, log: Path, most: int | None) -> Iterator[str]:
    """The last lines, or all, of a log that is open, and what comes, until another has its place."""
    last: deque[bytes] = deque(maxlen=most)
    rest = b""  # a line that is not written to its end
    for line in file:
        if line.endswith(b"\n"):
            last.append(line[:-1])
        else:
            rest = line
    yield from (line.decode(errors="replace") for line in last)
    replaced = False
    while not replaced:
        replaced = not _is_at(log, file)  # asked first: what was written before that is still read
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
            rest = b""
        *lines, rest = (rest + file.read()).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        time.sleep(POLL_SECONDS)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file is still the one of this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
