"""Starts a TorchServe for this process alone, and removes it when this process no longer needs it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from reelscribe.errors import StartupError
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server import launcher
from reelscribe.server.finding import FoundServer, find_servers
from reelscribe.server.instance import Instance, is_java
from reelscribe.server.logs import best_explanation, last_lines
from reelscribe.server.options import StartOptions
from reelscribe.server.owned.guard import Guard, guarded, in_thread
from reelscribe.server.owned.guard_process import remove
from reelscribe.server.settings import GRPC_NAMES, HTTP_ADDRESSES, Settings, free_ports

CONFIG = Path(__file__).parents[1] / "config.properties"
"""The settings of owned servers, which are also those of other servers: a link in a clone, a file where installed."""

PORT_TRIES = 3
"""How often a server is started with other ports if another program takes one of them first."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnedServer:
    """A TorchServe of this process."""

    instance: Instance
    """Its directory, with its keys, logs and temporary files."""
    found: FoundServer
    """Its addresses and keys, for clients."""
    ended: asyncio.Future[str]
    """Done with the reason, on one line, as soon as the server has ended by itself or can no longer be guarded."""


@asynccontextmanager
async def owned_server(
    archives: Sequence[Path],
    *,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    load_seconds: float = LOAD_SECONDS,
) -> AsyncIterator[OwnedServer]:
    """Run a TorchServe on loopback until the block ends, or this process does, in whatever way.

    The server has a directory of its own in the folder for temporary files, with mode 700. At the end, no process and
    no file of it is left: 10 seconds after this process was killed at the latest.

    Args:
        archives: The model archives to serve, with different file names.
        settings: Settings that replace those of CONFIG. Addresses, ports and tokens cannot be chosen: the server
            listens on free ports of 127.0.0.1, and requires tokens.
        environment: Variables that the server gets besides those that `server_environment` chooses from this process's.
        load_seconds: Timeout, in seconds, for all models together to become ready.

    Yields:
        The server, when all workers of all models are READY.

    Raises:
        StartupError: An archive or a setting cannot be used; a model cannot be loaded, or not in time; or no ports were
            free. Nothing is left.
        UsageError: A variable in `environment` would change TorchServe's settings.
    """
    instance = _new_instance()
    async with guarded(instance.directory) as guard:
        try:
            options = StartOptions(
                CONFIG,
                _make_store(instance, archives),
                load_seconds=load_seconds,
                pass_environment=tuple(environment or ()),
                overrides=settings or {},
            )
            await _start_on_free_ports(instance, options, {**os.environ, **(environment or {})})
            java = await in_thread(_java_on_loopback, instance)
            ended = asyncio.create_task(_why_it_ended(instance, java, guard))
            try:
                (found,) = find_servers(directory=instance.directory)
                yield OwnedServer(instance, found, ended)
            finally:
                ended.cancel()
                await asyncio.wait([ended])
        finally:
            await in_thread(remove, instance)


def _new_instance() -> Instance:
    """Choose a directory, which is created when there is a guard to remove it."""
    return Instance(Path(tempfile.gettempdir()).resolve() / f"reelscribe-{secrets.token_hex(8)}")


def _make_store(instance: Instance, archives: Sequence[Path]) -> Path:
    """Create the server's directory, with a model store of links to the archives."""
    store = instance.directory / "store"
    instance.directory.mkdir(mode=0o700)
    instance.marker.touch()
    store.mkdir()
    for archive in archives:
        try:
            (store / archive.name).symlink_to(archive.resolve(strict=True))
        except FileExistsError:
            raise StartupError(f"{archive}: expected archives with different names; rename one of them") from None
        except OSError as error:
            raise StartupError(f"{archive}: expected a model archive: {error}") from None
    return store


async def _start_on_free_ports(instance: Instance, options: StartOptions, environment: Mapping[str, str]) -> None:
    for remaining in reversed(range(PORT_TRIES)):
        own = _own_settings()
        try:
            await _start(instance, replace(options, overrides={**options.overrides, **own}), environment)
            break
        except StartupError as error:
            if not (remaining and _taken(own)):
                raise StartupError(_told(instance, str(error))) from None
        _log.warning("another program took a port of the server that was starting; it is started again with others")


def _own_settings() -> Settings:
    """Return the settings that keep others away from the server, which no setting of the user replaces."""
    grpc = {f"{name}_address": "127.0.0.1" for name in GRPC_NAMES}
    return {**free_ports(), **grpc, "disable_token_authorization": "false"}


def _taken(own: Settings) -> bool:
    """Return whether another program has taken one of the ports since they were chosen."""
    ports = [
        value.rpartition(":")[2] for name, value in own.items() if name in HTTP_ADDRESSES or name.endswith("_port")
    ]
    try:
        for port in ports:
            socket.create_server(("127.0.0.1", int(port))).close()
    except OSError:
        return True
    return False


async def _start(instance: Instance, options: StartOptions, environment: Mapping[str, str]) -> None:
    """Start the server in a thread, and stop it again if this is cancelled meanwhile."""
    starting = asyncio.get_running_loop().run_in_executor(None, launcher.start, instance, options, environment)
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():  # at first there may be nothing yet that can be stopped
            await in_thread(launcher.stop, instance)
            await asyncio.wait([starting], timeout=launcher.POLL_SECONDS)
        raise


def _java_on_loopback(instance: Instance) -> psutil.Process:
    """Return the Java process, which must listen on loopback only, whatever opened its sockets.

    TorchServe's addresses are settings of ours, but options of Java (vmargs, JAVA_TOOL_OPTIONS) can open more ports.
    """
    try:
        (java,) = filter(is_java, instance.processes())
        sockets = java.net_connections("inet")
    except (ValueError, psutil.NoSuchProcess):
        raise StartupError(_explain_end(instance)) from None
    addresses = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    if exposed := [f"{ip} port {port}" for ip, port in addresses if not _is_loopback(ip)]:
        raise StartupError(
            f"{', '.join(exposed)}: reachable from other machines, and a server of this kind must listen on loopback"
            " only; remove what opens this port from vmargs and from the environment"
        )
    return java


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


async def _why_it_ended(instance: Instance, java: psutil.Process, guard: Guard) -> str:
    """Wait until the server has ended by itself, or can no longer be guarded, and return the reason."""
    end, guarding = asyncio.create_task(_end_of(java.pid)), asyncio.create_task(guard.keep())
    try:
        await asyncio.wait([end, guarding], return_when=asyncio.FIRST_COMPLETED)
        if guarding.done():
            return str(guarding.exception())
        return await in_thread(_explain_end, instance)
    finally:
        end.cancel()
        guarding.cancel()
        await asyncio.wait([end, guarding])


async def _end_of(pid: int) -> None:
    """Wait until a process, which need not be a child of this one, has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _explain_end(instance: Instance) -> str:
    return _told(instance, f"TorchServe ended: {best_explanation(instance)}")


def _told(instance: Instance, reason: str) -> str:
    """Log the end of the server's log, which is going to be removed, and return a reason that does not refer to it."""
    if lines := last_lines(instance):
        _log.warning("the last lines of the server's log:\n%s", "\n".join(lines))
    return re.sub(rf" \(see {re.escape(str(instance.logs))}[^)]*\)", "", reason)
