"""The folder of what is made for pages: OUT/.browse, or a temporary one, which nobody else uses meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from reelscribe._files import regular_file, try_lock
from reelscribe.viewer.index.databases import NAME as INDEX_NAME

NAME = ".browse"
"""Name of the folder in an output folder."""


class Cache:
    """A folder that is locked, so that nobody else uses it."""

    def __init__(self, folder: Path, notice: str = "") -> None:
        """Make the folder, unless it is there, and lock it.

        Args:
            folder: The folder, whose parent exists.
            notice: Why it is not in the output folder, as a sentence; empty if it is.

        Raises:
            OSError: It cannot be used; the message says why.
        """
        self.folder, self.notice = folder, notice
        self._lock = _locked(folder)

    def restore(self) -> None:
        """Make the folder and its lock again if somebody has deleted them. One thread may call this.

        Raises:
            OSError: It cannot be used any more.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat((self.folder / "lock").stat(), os.fstat(self._lock.fileno())):
                return
        again = _locked(self.folder)
        self._lock.close()
        self._lock = again

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.close()


@contextmanager
def cache_folder(out: Path) -> Iterator[Cache]:
    """Provide a folder for the index: OUT/.browse, or a temporary one if that cannot be used.

    Args:
        out: The output folder.
    """
    with ExitStack() as stack:
        try:
            cache = Cache(out / NAME)
        except OSError as error:
            reason = error.strerror or error
            notice = f"{out / NAME} cannot be used ({reason}), so the index is built anew each time."
            cache = Cache(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reelscribe-"))), notice)
        yield stack.enter_context(closing(cache))


def _locked(folder: Path) -> IO[str]:
    """Make a folder if it is missing, and return its lock. Raises OSError if it cannot be used."""
    folder.mkdir(exist_ok=True)
    _refuse_links(folder)
    # O_NOFOLLOW: nobody can have put a link there that leads to a file of somebody else.
    descriptor = regular_file(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    lock = open(descriptor, "a")  # noqa: SIM115 - it is kept open
    if not try_lock(lock):
        lock.close()
        raise OSError("another `reelscribe browse` uses it")
    return lock


def _refuse_links(folder: Path) -> None:
    """Raise OSError if a cache has a symbolic link through which something else would be written to or deleted."""
    if folder.is_symlink():
        raise OSError("it is a symbolic link")
    for place in (folder, folder / INDEX_NAME):
        for path in place.iterdir() if place.is_dir() else ():
            if path.is_symlink():
                raise OSError(f"it has a symbolic link, {str(path.relative_to(folder))!r}")
