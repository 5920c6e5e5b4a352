"""The guard of an owned server: ``python -m reelscribe.server.guard_process FD DIRECTORY``, run by `owned_server`.

FD is one end of a pair of sockets. Nobody writes to it, and nobody but the owner has the other end, so it ends with the
owner, even if that is killed. Then the guard ends all processes of the server in DIRECTORY and deletes the directory.

It is a module of its own because the process must be small: each node of a cluster has one, which does nothing all day.
So nothing is imported that is not needed, neither asyncio nor the client. All of it is imported before the server
starts, as the package may be gone when the guard is needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil as psutil  # which Instance would import later

from reelscribe.server.instance import Instance, end_processes

PATIENCE = 3.0
"""Seconds that an owned server gets after SIGTERM, before SIGKILL. Nobody waits for an answer of it."""


def remove(instance: Instance) -> None:
    """End all processes of an owned server, and delete its directory.

    Args:
        instance: The server; it may have been removed before.

    Raises:
        ServerError: A process survived SIGKILL. The directory is left.
    """
    patience = PATIENCE
    while end_processes(instance, patience):
        patience = 0.0  # look again: a process may have started another one while it was being looked for
    shutil.rmtree(instance.directory, ignore_errors=True)


def main() -> None:
    """Detach from the owner, wait for its end, and remove its server."""
    fd, directory = int(sys.argv[1]), Path(sys.argv[2])
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the guard ends when its owner has, and not before
        signal.signal(sig, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the guard must not be a child of its owner: Ray kills the children of a worker that ends
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # the owner reads these to their end, which says that the guard is there
        os.dup2(nothing, stream)
    with socket.socket(fileno=fd) as owner:
        with suppress(ConnectionError):
            owner.recv(1)
        remove(Instance(directory))


if __name__ == "__main__":
    main()
