"""A TorchServe that one process starts for itself on loopback, and that ends with this process, however it ends.

`owned_server` starts it, says when it has ended by itself, and removes it at the end. If this process can no longer do
so, its guard does: a process of its own (`guard_process`), which `guarded` starts, and starts again if it is killed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import psutil

from reelscribe.errors import StartupError
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server import launcher
from reelscribe.server.config_properties import GRPC_NAMES, HTTP_ADDRESSES, Settings, free_ports
from reelscribe.server.guard_process import remove
from reelscribe.server.instance import Instance, is_java
from reelscribe.server.logs import best_explanation, last_lines
from reelscribe.server.server_discovery import FoundServer, find_servers
from reelscribe.server.start_options import SUPPLIED_CONFIG, StartOptions

PORT_TRIES = 3
"""Largest number of starts with other ports, if other programs take one of them first."""

END_SECONDS = 10.0
"""Timeout, in seconds, for the guard to end after its owner has removed the server."""

Result = TypeVar("Result")

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
        settings: Settings that replace those of SUPPLIED_CONFIG. Addresses, ports and tokens cannot be chosen: the
            server listens on free ports of 127.0.0.1, and requires tokens.
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
                SUPPLIED_CONFIG,
                _make_store(instance, archives),
                load_seconds=load_seconds,
                pass_environment=tuple(environment or ()),
                overrides=settings or {},
            )
            await _start_on_free_ports(instance, options, {**os.environ, **(environment or {})})
            java = await in_thread(_java_on_loopback, instance)
            ended = asyncio.create_task(_wait_for_end(instance, java, guard))
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
            if not (remaining and _ports_taken(own)):
                raise StartupError(_explain_without_log(instance, str(error))) from None
        _log.warning("another program took a port of the server that was starting; it is started again with others")


def _own_settings() -> Settings:
    """Return the settings that keep others away from the server, which no setting of the user replaces."""
    grpc = {f"{name}_address": "127.0.0.1" for name in GRPC_NAMES}
    return {**free_ports(), **grpc, "disable_token_authorization": "false"}


def _ports_taken(own: Settings) -> bool:
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


async def _wait_for_end(instance: Instance, java: psutil.Process, guard: Guard) -> str:
    """Wait until the server has ended by itself, or can no longer be guarded, and return the reason."""
    end, guarding = asyncio.create_task(_wait_for_exit(java.pid)), asyncio.create_task(guard.keep_alive())
    try:
        await asyncio.wait([end, guarding], return_when=asyncio.FIRST_COMPLETED)
        if guarding.done():
            return str(guarding.exception())
        return await in_thread(_explain_end, instance)
    finally:
        end.cancel()
        guarding.cancel()
        await asyncio.wait([end, guarding])


async def _wait_for_exit(pid: int) -> None:
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
    return _explain_without_log(instance, f"TorchServe ended: {best_explanation(instance)}")


def _explain_without_log(instance: Instance, reason: str) -> str:
    """Log the end of the server's log, which is going to be removed, and return a reason that does not refer to it."""
    if lines := last_lines(instance):
        _log.warning("the last lines of the server's log:\n%s", "\n".join(lines))
    return re.sub(rf" \(see {re.escape(str(instance.logs))}[^)]*\)", "", reason)


async def in_thread(function: Callable[..., Result], *args: object) -> Result:
    """Call a function that blocks in a thread. If this is cancelled meanwhile, wait for the end of the call first."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class Guard:
    """A process that removes a server when this process has ended; `guarded` starts it.

    Args:
        directory: The absolute path of the server's directory, which need not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self) -> None:
        """Start the process. When this returns, it watches.

        Raises:
            StartupError: It could not be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await in_thread(_launch, theirs.fileno(), self._directory)
            self._connection = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    async def keep_alive(self) -> NoReturn:
        """Start another process whenever the present one has ended, until this is cancelled.

        Raises:
            StartupError: It could not be started.
        """
        while True:
            if self._connection:
                await self._connection[0].read()
                _log.warning("the guard of %s has ended before its time; another one is started", self._directory)
                await self._close()
            await self.start()

    async def end(self) -> None:
        """Tell the process that this one needs it no longer, and wait until it has ended."""
        if self._connection:
            reader, writer = self._connection
            with suppress(OSError):  # it has ended already
                writer.write_eof()
            with suppress(TimeoutError):  # it was stopped, and ends as soon as it can
                await asyncio.wait_for(reader.read(), END_SECONDS)
            await self._close()

    async def _close(self) -> None:
        assert self._connection
        _, writer = self._connection
        self._connection = None
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def guarded(directory: Path) -> AsyncIterator[Guard]:
    """Have a server removed if this process ends before the block does.

    Args:
        directory: The absolute path of the server's directory, which need not exist yet.

    Raises:
        StartupError: On entry, if the guard could not be started.
    """
    guard = Guard(directory)
    await guard.start()
    try:
        yield guard
    finally:
        await guard.end()


def _launch(fd: int, directory: Path) -> None:
    """Return when the guard has detached itself, with all that it imports."""
    done = subprocess.run(
        [sys.executable, "-m", "reelscribe.server.guard_process", str(fd), str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=[fd],
        start_new_session=True,  # Ctrl-C here must not reach it
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise StartupError(f"the guard of {directory} ended with status {done.returncode} at its start: {reason}")
