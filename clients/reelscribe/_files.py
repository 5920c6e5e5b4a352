"""Files and folders that several processes use: folder locks, and files that appear only when they are complete."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from reelscribe.errors import OutputError


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file without waiting; the lock lasts until the file is closed.

    Args:
        file: The open file.
        shared: Whether others may hold a shared lock at the same time.

    Returns:
        Whether the file is locked now; False if another process holds a conflicting lock.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FolderLock:
    """Reserve an output folder for one writer, as a context manager that creates the folder if it is missing.

    Args:
        out: The output folder.
        writer: Who writes there, for others: "run", "export" or "forget".

    Raises:
        OutputError: On entry, if the folder cannot be written to or locked, or another run has locked it.
    """

    def __init__(self, out: Path, writer: str = "run") -> None:
        self._path, self._writer = _lock_path(out), writer

    def __enter__(self) -> Self:
        out = self._path.parent
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a+", opener=_open_no_link)
        except OSError as error:
            if self._path.is_symlink():
                raise OutputError(
                    f"{self._path}: a symbolic link; expected a file or nothing there; remove it"
                ) from None
            raise OutputError(f"{out}: not a folder that can be written to: {error}") from None
        try:
            locked = try_lock(self._file)
        except OSError as error:
            self._file.close()
            raise OutputError(
                f"{out}: files there cannot be locked ({error}); choose an --out on a local disk"
            ) from None
        if not locked:
            self._file.close()
            raise OutputError(
                f"{out}: another {writer_of(out) or 'run'} is writing there; wait for its end, or choose another --out"
            )
        self._file.truncate(0)
        self._file.write(self._writer)
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def writer_of(out: Path) -> str | None:
    """Return who holds the `FolderLock` of a folder; None if nobody does, or the lock file is missing or unreadable."""
    try:
        with open(_lock_path(out), opener=_open_no_link) as file:
            return None if try_lock(file, shared=True) else file.read() or "run"
    except OSError:
        return None


def _open_no_link(path: str, flags: int) -> int:
    """Open a file for `open`; never one that a symbolic link names, and without waiting if it is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _lock_path(out: Path) -> Path:
    return out / ".lock"


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write a file that appears under its own name only when it is complete.

    The block writes to the path that the context manager yields, `<path>.partial`. When the block ends without an
    exception, that file is renamed to `path`, where it replaces an older file. What has either name before is never
    written through: of a symbolic or hard link, the file that it leads to stays as it is.

    Args:
        path: Where the complete file goes, in a folder that exists.
        durable: Whether to protect a file that is expensive to make again: it is synchronized to the disk before it is
            renamed, and `<path>.partial` stays if the block raises an exception. By default that file is removed.

    Raises:
        OSError: The operating system refused to write or to rename the file.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        if not durable:
            partial.unlink(missing_ok=True)
