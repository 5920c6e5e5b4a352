"""The guard of an owned server, as its owner sees it: starts the process, and replaces it if it is killed."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from reelscribe.errors import StartupError

END_SECONDS = 10.0
"""Timeout, in seconds, for the guard to end after its owner has removed the server."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


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

    async def keep(self) -> NoReturn:
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
        [sys.executable, "-m", "reelscribe.server.owned.guard_process", str(fd), str(directory)],
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
