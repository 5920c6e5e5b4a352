"""Files and folders that other processes see: folder locks, and files that appear only when they are whole."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from reelscribe.errors import OutputError, UsageError


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
def whole_file(path: Path, written: list[Path]) -> Iterator[Path]:
    """Gives the name to write to, `<path>.partial`, in a folder that is there.

    If the block ends well it becomes `path`, which is added to `written`; if not, it is removed. Raises UsageError for
    what the disk refuses, also within the block.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None
    written.append(path)
