"""Records become `annotations.jsonl`. A file that is not finished has a name that says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from reelscribe.errors import OutputError
from reelscribe.results.records import Record

NAME = "annotations.jsonl"


class AnnotationsWriter:
    """Writes records, one a line, as they come. Use it as a context manager; every method raises OutputError.

    Until the block ends well the file is called `annotations.jsonl.partial`; then it takes the place of an older one.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / NAME
        self._partial = out / f"{NAME}.partial"

    def __enter__(self) -> AnnotationsWriter:
        with _told(self._path):
            if self._path.is_dir():
                raise OutputError(f"{self._path}: a folder; expected a file or nothing there")
            # File names need not be UTF-8.
            self._file = self._partial.open("w", encoding="utf-8", errors="backslashreplace")
        return self

    def write(self, record: Record) -> None:
        """Add a line; takes as long as reading the record's frames."""
        with _told(self._path):
            self._file.writelines(record.pieces())
            self._file.write("\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _told(self._path), self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._partial.replace(self._path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Around what touches the disk, and nothing else: other errors are not the output's."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error}; the same command goes on from there") from None
