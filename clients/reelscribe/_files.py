"""Files and folders that other processes see: folder locks, and files that appear only when they are whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from reelscribe.errors import OutputError


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; returns whether it was free. Raises OSError where files have no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FolderLock:
    """OUT belongs to one run at a time. Use it as a context manager; raises OutputError."""

    def __init__(self, out: Path) -> None:
        self._path = out / ".lock"

    def __enter__(self) -> FolderLock:
        out = self._path.parent
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
        except OSError as error:
            raise OutputError(f"{out}: not a folder that can be written to: {error}") from None
        try:
            free = try_lock(self._file)
        except OSError as error:
            self._file.close()
            raise OutputError(
                f"{out}: files there cannot be locked ({error}); choose an --out on a local disk"
            ) from None
        if not free:
            self._file.close()
            raise OutputError(f"{out}: another run is writing there; choose another --out")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def is_locked(out: Path) -> bool:
    """Whether a run is writing to this folder."""
    try:
        with (out / ".lock").open() as file:
            return not try_lock(file, shared=True)
    except OSError:
        return False  # nobody has run there, or it is not ours to see


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write a file that appears under its name only when it is whole; then it replaces an older file.

    Args:
        path: Path of the file, in a folder that exists.
        durable: For what cannot be made again at once: the disk has all of the file before it gets its name, and if
            the block fails, what it wrote stays under the partial name. By default it is removed.

    Yields:
        The path to write to, `<path>.partial`.

    Raises:
        OSError: The disk is full or fails, or the file cannot be replaced.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        if not durable:
            partial.unlink(missing_ok=True)
