"""A server's directory is one command's at a time, or a start would delete what another has just written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reelscribe.errors import StartupError
from reelscribe.folder_lock import try_lock
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
        if not try_lock(marker):
            raise StartupError(
                f"{instance.directory}: another command starts or stops a server there; wait for its end"
            )
        yield
