"""Records become files. A file that is not finished has a name that says so."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from reelscribe.errors import UsageError
from reelscribe.records import Record


@contextmanager
def write_annotations(path: Path) -> Iterator[Callable[[Record], None]]:
    """Write records to `path`, one a line, as they come.

    Until the block ends well the file is called `<path>.partial`; then it takes the place of an older `path`. Raises
    UsageError if it cannot be written, and if another run is writing it.
    """
    partial = path.with_name(path.name + ".partial")
    with ExitStack() as stack:
        with _errors_told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise UsageError(f"output: {path} is a folder; expected a file or nothing there")
            # Not truncated before it is locked: it may be another run's. File names need not be UTF-8.
            file = stack.enter_context(partial.open("a", encoding="utf-8", errors="backslashreplace"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"output: another run is writing {partial}; choose another --out") from None
            file.truncate(0)

        def write(record: Record) -> None:
            with _errors_told(path):
                file.write(record.to_line() + "\n")
                file.flush()

        yield write
        with _errors_told(path):
            os.fsync(file.fileno())
            partial.replace(path)


@contextmanager
def _errors_told(path: Path) -> Iterator[None]:
    """Around what touches the disk, and nothing else: other errors are not the output's."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"output: {path.parent} cannot be written to: {error}") from None
