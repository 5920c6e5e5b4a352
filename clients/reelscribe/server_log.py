"""What the logs of an instance say: how its workers got on, and why a model does not load.

`ts_log.log` has the lines of the workers too. A new one begins at 100 MB, so what it tells does not go back for ever.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reelscribe.instance import Instance

LOGS = {"model": "model_log.log", "server": "ts_log.log", "access": "access_log.log", "console": "console.log"}
"""Which logs there are: what workers print, what TorchServe says of itself and them, requests, and what Java prints."""

POLL_SECONDS = 0.2

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
_ENDED = re.compile(
    r"(?:Exception in thread .*|Invalid configuration: |Error: |(?:[\w$]+\.)+\w*(?:Error|Exception)\b).*"
)


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


def log_size(instance: Instance) -> int:
    """Where the log ends now, in bytes: a position for `why_it_cannot_load`."""
    log = _server_log(instance)
    return log.stat().st_size if log.exists() else 0


def worker_histories(instance: Instance, since: int = 0) -> list[WorkerHistory]:
    """Every worker that the log speaks of from a position on, those apart that were scaled down."""
    workers: dict[str, WorkerHistory] = {}
    current = None
    for line in _lines(instance, since):
        if match := _LINE.fullmatch(line):
            thread, _, message = match.groups()
            name = _WORKER.fullmatch(thread)
            current = name and workers.setdefault(f"{name[1]} {name[2]}", WorkerHistory(name[1], name[2]))
        else:
            message = line
        if current:
            _note(current, message)
    return [worker for worker in workers.values() if worker.state != "WORKER_SCALED_DOWN"]


def why_it_cannot_load(
    instance: Instance, model: str | None = None, version: str | None = None, *, since: int = 0
) -> str | None:
    """Why a version of a model does not get READY, on one line; None as long as the log gives no reason.

    Without `model` it is about all of them, and also about archives that TorchServe itself did not accept. `since` is
    a position of the log, as `log_size` gave it; if a new log has begun meanwhile, all of that is read.
    """
    for worker in worker_histories(instance, since):
        asked_for = model is None or worker.model == f"{model}_{version}"
        if asked_for and (worker.said or (worker.failed and worker.error)):
            return worker.failure
    return _frontend_failure(instance, since) if model is None else None


def best_explanation(instance: Instance) -> str:
    """Of a server that is not ready, whatever the reason, on one line."""
    if reason := why_it_cannot_load(instance):
        return reason
    for worker in worker_histories(instance):
        if reason := worker.error or worker.failure:
            return f"{reason} (see {instance.logs / LOGS['model']})"
    console = instance.logs / LOGS["console"]
    lines = [line.strip() for line in console.read_text(errors="replace").split("\n")] if console.exists() else []
    reasons = [line for line in lines if _ENDED.fullmatch(line)] or [line for line in lines if line]
    return f"{(reasons or ['it said nothing'])[-1]} (see {instance.logs})"


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; none if it is not there."""
    if not log.exists():
        return []
    with log.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count)]


def follow(log: Path, count: int) -> Iterator[str]:
    """The last lines of a log and then those that are written, for ever; goes over to a new log when one begins."""
    position = log.stat().st_size if log.exists() else 0
    yield from last_lines(log, count)
    rest = ""
    while True:
        if log.exists():
            if log.stat().st_size < position:
                position, rest = 0, ""
            with log.open("rb") as file:
                file.seek(position)
                read = file.read()
            position += len(read)
            *lines, rest = (rest + read.decode(errors="replace")).split("\n")
            yield from lines
        time.sleep(POLL_SECONDS)


def _note(worker: WorkerHistory, message: str) -> None:
    if change := _STATE_CHANGE.fullmatch(message):
        worker.change_state(*change.groups())
    elif said := _CANNOT_LOAD.fullmatch(message):
        worker.said = said[1].strip()
    elif (error := _ERROR.fullmatch(message)) and not _NOT_THE_REASON.search(message):
        worker.error = error[1].strip()


def _frontend_failure(instance: Instance, since: int) -> str | None:
    """What TorchServe, and not a worker, had against an archive; with the innermost cause that it names."""
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


def _server_log(instance: Instance) -> Path:
    return instance.logs / LOGS["server"]


def _lines(instance: Instance, since: int) -> Iterator[str]:
    log = _server_log(instance)
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(since if since <= log_size(instance) else 0)
        for line in file:
            yield line.decode(errors="replace").rstrip("\n")
