"""Records become files. A file that is not finished has a name that says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reelscribe.errors import UsageError
from reelscribe.records import Record


@contextmanager
def write_annotations(path: Path) -> Iterator[Callable[[Record], None]]:
    """Write records to `path`, one a line, as they come.

    Until the block ends well the file is called `<path>.partial`; then it takes the place of an older `path`.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("w", encoding="utf-8", errors="backslashreplace")  # file names need not be UTF-8
    except OSError as error:
        raise UsageError(f"output: {path.parent} cannot be written to: {error}") from None
    with file:

        def write(record: Record) -> None:
            file.write(record.to_line() + "\n")
            file.flush()

        yield write
        os.fsync(file.fileno())
    partial.replace(path)
