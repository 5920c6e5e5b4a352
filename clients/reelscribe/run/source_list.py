"""Lists of sources in files: a name in each line, or tables with a column of names.

A list is text in UTF-8, or in whatever the byte-order mark at its beginning says. A name is taken as it is: it is the
path of a file, relative to the current folder, or an address. Other columns of a table go into the records as `extra`;
those that are named like options that a track of the run has (`per_source`) are options of the source, too. A row that
cannot be used is an error of a source that is named after it, such as ``films.csv:17``.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

from reelscribe._child_process import Send, messages, serve
from reelscribe.errors import MediaError, UsageError, brief, missing_package
from reelscribe.storage.address import check_address, is_address
from reelscribe.storage.objects import byte_order, json_value

COLUMNS = ("path", "url")
"""Names of the column of a table that names the sources; the first that a row has counts."""

MOST_BYTES = 2**20
"""Largest size of a row of a list, in bytes."""

SILENT_SECONDS = 300.0
"""Longest time in which no row of a Parquet table comes, in seconds."""

ROWS_AT_ONCE = 256
"""Number of rows of a Parquet table that are read at once."""

MOST_EXTRA = 2**16
"""Largest size of the other columns of a row, in bytes, as JSON."""


class Row(NamedTuple):
    """A row of a list."""

    place: str
    """The list with the number of the row, such as ``films.csv:17``."""
    name: str
    """Path or address of a source; of a row that cannot be used, its place."""
    extra: str | None = None
    """The other columns as a JSON object; None for a list without columns."""
    problem: str = ""
    """Why the row cannot be used; empty if it can."""


class SourceList:
    """A list of sources in a file; or on standard input or in a pipe, which are read once and kept."""

    def __init__(self, path: str, *, null: bool = False) -> None:
        """Check that the list can be opened.

        Args:
            path: A file, whose suffix says what it is: .csv, .jsonl or .parquet for a table, and anything else for a
                name in each line; "-" for standard input, with a name in each line.
            null: True if names end with a NUL character instead of a line break.

        Raises:
            UsageError: There is no such file, it has none of the columns, or a package is missing.
        """
        self._path, self._null = path, null
        self._kind = "" if path == "-" or null else Path(path).suffix.lower()
        with self._errors():
            self._input = self._copied()
        if self._kind == ".parquet" and find_spec("pyarrow") is None:
            raise UsageError(f"--from {path}: {missing_package('pyarrow', 'parquet')}")
        with self._errors():
            next(self._rows(), None)

    def __repr__(self) -> str:
        return f"--from {self._path}"

    def rows(self) -> Iterator[Row]:
        """Yield all rows. It may be called several times.

        Raises:
            UsageError: The list cannot be read.
        """
        with self._errors():
            yield from self._rows()

    def _copied(self) -> IO[bytes] | None:
        """Return a copy of a list that can be read only once, on standard input or in a pipe; None for a file."""
        if self._path != "-" and not Path(self._path).is_fifo():
            return None
        if self._kind == ".parquet":
            raise UsageError(f"{self}: expected a file, as a table in Parquet cannot be read from a pipe")
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the list
        weakref.finalize(self, copy.close)
        with nullcontext(sys.stdin.buffer) if self._path == "-" else open(self._path, "rb") as file:
            shutil.copyfileobj(file, copy)
        return copy

    def _rows(self) -> Iterator[Row]:
        if self._kind == ".parquet":
            yield from self._parquet_rows()
            return
        with self._open() as file:
            if self._kind == ".csv":
                yield from self._csv_rows(file)
            elif self._kind in (".jsonl", ".ndjson"):
                yield from self._json_rows(file)
            else:
                yield from self._lines(file)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"{self}: expected a file with a list of sources: {error.strerror or error}") from None

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with open(self._path, "rb") if self._input is None else nullcontext(self._input) as file:
            yield _in_utf8(file)

    def _lines(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in enumerate(_pieces(file, b"\0" if self._null else b"\n"), 1):
            if line is None:
                yield self._bad(number, f"expected names of at most {MOST_BYTES:,} bytes")
            elif line := line if self._null else line.rstrip(b"\r"):
                yield self._row(number, os.fsdecode(line), None)

    def _json_rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, line in enumerate(_pieces(file, b"\n"), 1):
            if line is None:
                yield self._bad(number, f"expected lines of at most {MOST_BYTES:,} bytes")
                continue
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield self._bad(number, f"expected an object in JSON, in UTF-8: {brief(str(error))}")
                continue
            yield self._table_row(number, value)

    def _csv_rows(self, file: IO[bytes]) -> Iterator[Row]:
        lines = _TextLines(file)
        reader = csv.DictReader(lines, strict=True)
        try:
            columns = reader.fieldnames or ()
        except csv.Error as error:
            raise UsageError(f"{self}: expected a table with a line of names: {error}") from None
        if not all(map(_is_utf8, columns)):
            raise UsageError(f"{self}: expected names of columns in UTF-8, got others; save the list as UTF-8")
        if not set(columns) & set(COLUMNS):
            found = ", ".join(map(brief, columns)) or "none"
            raise UsageError(f"{self}: expected a column {' or '.join(COLUMNS)}, found {found}")
        while True:
            lines.left = MOST_BYTES
            try:
                value = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield self._bad(reader.reader.line_num, f"expected a row of a table: {error}")
                continue
            if None in value or None in value.values():
                yield self._bad(reader.line_num, f"expected {len(columns)} columns")
                continue
            if other := next((key for key in value if key not in COLUMNS and not _is_utf8(value[key])), None):
                problem = f"the column {brief(other)}: expected text in UTF-8, got {brief(value[other])}"
                yield self._bad(reader.line_num, f"{problem}; save the list as UTF-8")
                continue
            yield self._table_row(reader.line_num, {name: text or None for name, text in value.items()})

    def _parquet_rows(self) -> Iterator[Row]:
        """Yield the rows of a table that a process of its own reads: few bytes of it can stand for endless memory."""
        with self._open():
            pass  # it says best why it cannot be opened
        number = 0
        try:
            request = {"path": self._path}
            # A network may bring the rows slowly.
            read = messages("reelscribe.run.source_list", request, seconds=math.inf, silent_seconds=SILENT_SECONDS)
            for _, lines in read:
                for line in lines.splitlines():
                    number += 1
                    value = json.loads(line)
                    yield self._bad(number, value) if isinstance(value, str) else self._table_row(number, value)
        except MediaError as error:
            if not number:
                raise UsageError(f"{self}: {error}") from None
            yield self._bad(number + 1, f"neither this row nor those after it can be read: {error}")

    def _table_row(self, number: int, value: Any) -> Row:
        """Return what a row of a table says."""
        if not isinstance(value, Mapping):
            return self._bad(number, f"expected an object with {' or '.join(COLUMNS)}, got {brief(value)}")
        name = next((value[column] for column in COLUMNS if value.get(column) is not None), None)
        if not isinstance(name, str):
            got = "none" if name is None else brief(name)
            return self._bad(number, f"expected a name in the column {' or '.join(COLUMNS)}, got {got}")
        try:
            extra = json.dumps({str(key): json_value(each) for key, each in value.items() if key not in COLUMNS})
        except ValueError as error:
            return self._bad(number, f"other columns: {error}")
        if len(extra) > MOST_EXTRA:
            return self._bad(number, f"expected other columns of at most {MOST_EXTRA:,} bytes, got {len(extra):,}")
        return self._row(number, name, extra)

    def _row(self, number: int, name: str, extra: str | None) -> Row:
        try:
            is_name = bool(os.fsencode(name)) and "\0" not in name
        except UnicodeError:
            is_name = False
        if not is_name:
            advice = "; if NUL characters end the names of the list, use -0, else save it as UTF-8" * ("\0" in name)
            return self._bad(number, f"expected a path or an address, got {brief(name)}{advice}")
        if not _is_utf8(name) and not os.path.lexists(name):  # Linux lets the names of files be in any encoding
            return self._bad(number, f"expected a name in UTF-8, got {brief(name)}; save the list as UTF-8")
        if is_address(name):
            try:
                check_address(name)
            except UsageError as error:
                return self._bad(number, str(error))
        return Row(self._place(number), name, extra)

    def _bad(self, number: int, problem: str) -> Row:
        place = self._place(number)
        return Row(place, place, None, problem)

    def _place(self, number: int) -> str:
        return f"{self._path}:{number}"


def _in_utf8(file: IO[bytes]) -> IO[bytes]:
    """Return a list from its beginning, in UTF-8 without a byte-order mark."""
    file.seek(0)
    mark, encoding = byte_order(file.read(4))
    file.seek(mark)
    if encoding == "utf-8":
        return file
    recoded: Any = codecs.EncodedFile(file, "utf-8", encoding, "replace")
    return cast(IO[bytes], recoded)


def _is_utf8(text: str | None) -> bool:
    """Return whether a text had no bytes but those of UTF-8 before it was decoded."""
    try:
        (text or "").encode()
    except UnicodeError:
        return False
    return True


def _pieces(file: IO[bytes], end: bytes) -> Iterator[bytes | None]:
    """Yield the pieces of a file between ends of pieces, without these; None for one that is too long."""
    rest = b""
    while block := file.read(MOST_BYTES):
        first, *others = block.split(end)
        if others:
            yield _short(rest + first)
            yield from map(_short, others[:-1])
            rest = others[-1]
        else:
            rest = (rest + first)[: MOST_BYTES + 1]  # more of it is not needed to tell that it is too long
    if rest:
        yield _short(rest)


class _TextLines:
    """The lines of a table, as an iterator; in the place of one that makes a row too long, one that ends it badly."""

    def __init__(self, file: IO[bytes]) -> None:
        self._pieces = _pieces(file, b"\n")
        self.left = MOST_BYTES
        """Number of bytes that the row may still have, which can go over many lines between quotes."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line, is_first = next(self._pieces), self.left == MOST_BYTES
        self.left -= MOST_BYTES + 1 if line is None else len(line) + 1
        if line is None or self.left < 0:
            return '""?\n' if is_first else '"?\n'
        return line.decode("utf-8", "surrogateescape") + "\n"


def _short(piece: bytes) -> bytes | None:
    return piece if len(piece) <= MOST_BYTES else None


def _send_parquet_rows(request: dict[str, Any], send: Send) -> None:
    """Send the rows of a Parquet table, each as a line of JSON: an object, or a text that says why it is none."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.set_cpu_count(1)  # each thread would reserve some of the memory
    pyarrow.set_io_thread_count(1)
    try:
        with pyarrow.parquet.ParquetFile(request["path"]) as table:
            if not set(table.schema_arrow.names) & set(COLUMNS):
                found = ", ".join(map(brief, table.schema_arrow.names)) or "none"
                raise MediaError(f"expected a column {' or '.join(COLUMNS)}, found {found}")
            for batch in table.iter_batches(ROWS_AT_ONCE, use_threads=False):
                lines = bytearray()
                for values in zip(*map(_values, batch.columns), strict=True):
                    line = _row_as_json(batch.schema.names, values)
                    if len(lines) + len(line) > MOST_BYTES:
                        send(bytes(lines))
                        lines.clear()
                    lines += line
                send(bytes(lines))
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError) as error:
        raise MediaError(f"expected a Parquet file: {brief(str(error))}") from None


def _values(column: Any) -> list[Any]:
    """Return the values of a column; in the place of what Python cannot have, such as the year 300,000, its error."""
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # noqa: BLE001 - each kind of value has its own
        values = [_value(cell) for cell in column]
    return values


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except Exception as error:  # noqa: BLE001 - the row is told it
        return error


def _row_as_json(names: Iterable[str], values: Iterable[Any]) -> bytes:
    name = ""
    try:
        row = {}
        for name, value in zip(names, values, strict=True):
            if isinstance(value, Exception):
                raise value
            if isinstance(value, (str, bytes)) and len(value) > MOST_EXTRA:
                raise ValueError(f"at most {MOST_EXTRA:,} bytes, got {len(value):,}")
            row[name] = json_value(value)
        line = json.dumps(row)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a cell, it is told of its row alone
        line = json.dumps(f"the column {brief(name)}: expected a value that can be read: {brief(str(error))}")
    if len(line) >= MOST_BYTES:
        line = json.dumps(f"expected rows of at most {MOST_BYTES:,} bytes")
    return line.encode() + b"\n"


if __name__ == "__main__":
    serve(_send_parquet_rows)
