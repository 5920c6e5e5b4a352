"""A server's directory is one command's at a time, or a start would delete what another has just written."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from reelscribe.errors import StartupError
from reelscribe.instance import Instance


@contextmanager
def claimed(instance: Instance) -> Iterator[None]:
    """Make the directory ours, and keep others from starting or stopping a server there meanwhile.

    Raises StartupError if it holds other things, or another command has claimed it.
    """
    if instance.directory.exists() and not instance.marker.exists() and any(instance.directory.iterdir()):
        raise StartupError(
            f"{instance.directory}: expected an empty folder or a server's; delete it or choose another --directory"
        )
    instance.directory.mkdir(parents=True, exist_ok=True)
    instance.directory.chmod(0o700)  # it holds keys, which TorchServe makes private only after it wrote them
    with instance.marker.open("ab") as marker:
        if not lock(marker):
            raise StartupError(
                f"{instance.directory}: another command starts or stops a server there; wait for its end"
            )
        yield


def lock(marker: IO[bytes]) -> bool:
    """Try to lock an instance's marker; returns whether it is ours now, until it is closed or our process ends."""
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
