"""Writes records to `annotations.jsonl`, one line for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from reelscribe._files import atomic_file
from reelscribe.errors import OutputError
from reelscribe.results.records import Record

NAME = "annotations.jsonl"
"""Name of the file of records in the folder of a run."""


class AnnotationsWriter:
    """Writes records as they come. Use it as a context manager; every method raises OutputError.

    The lines are written to `annotations.jsonl.partial`, where they can be read meanwhile. When the block ends without
    an exception, this file becomes `annotations.jsonl` and replaces an older one; otherwise it stays as it is.
    """

    def __init__(self, out: Path) -> None:
        """Prepare to write into the folder `out`, which must exist when the block begins."""
        self._path = out / NAME

    def __enter__(self) -> Self:
        with _output_errors(self._path), ExitStack() as stack:
            if self._path.is_dir():
                raise OutputError(f"{self._path}: a folder; expected a file or nothing there")
            partial = stack.enter_context(atomic_file(self._path, durable=True))
            # The path of a source need not be UTF-8.
            self._file = stack.enter_context(partial.open("w", encoding="utf-8", errors="backslashreplace"))
            self._stack = stack.pop_all()
        return self

    def write(self, record: Record) -> None:
        """Write the line of a record. This reads all results of the source from the ledger."""
        with _output_errors(self._path):
            self._file.writelines(record.iter_json())
            self._file.write("\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _output_errors(self._path):
            self._stack.__exit__(kind, error, trace)


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into an OutputError that says what to do; every other error passes."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error}; run the same command again to continue") from None
