"""The files of results in an output folder, each written anew from the records that the ledger has.

    annotations.jsonl   a line of JSON for each record
    run.json            the models and settings that made the results, under the ids by which records name them
    failures.txt        a line for each record with an error; no file if there is none

The same content of the ledger always gives the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, NamedTuple

from reelscribe._files import FolderLock, atomic_file, writer_of
from reelscribe.contract.outcomes import source_error
from reelscribe.errors import OutputError, printable
from reelscribe.results.escaping import escape_surrogates, to_json
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import ModelSettings, Record
from reelscribe.results.schema import NAME as LEDGER

NAME = "annotations.jsonl"
"""Name of the file of records in an output folder."""
SETTINGS_NAME = "run.json"
"""Name of the file of models and settings in an output folder."""
FAILURES_NAME = "failures.txt"
"""Name of the list of failed sources in an output folder."""

_COPIED_BYTES = 2**14
_INFERRED_BYTES = 2**23  # Readers infer the types of fields from a beginning that is at least so long.


class _Line(NamedTuple):
    """The place of a line in the file. Of two lines, the smaller is less; of equally large ones, the first is."""

    size: int
    start: int


def check_folder(out: Path) -> None:
    """Raise OutputError if the files of results cannot be put into the folder `out`, which exists.

    A symbolic link in their place would be replaced, so whoever made it would look at old results.
    """
    for name in (NAME, SETTINGS_NAME, FAILURES_NAME):
        if (out / name).is_symlink():
            raise OutputError(f"{out / name}: a symbolic link; expected a file or nothing there; link the folder")
        if (out / name).is_dir():
            raise OutputError(f"{out / name}: a folder; expected a file or nothing there")


def write_results(out: Path, records: Iterable[Record]) -> tuple[int, int]:
    """Write annotations.jsonl, run.json and failures.txt, and replace older ones.

    Lines keep the order of the records, with one exception. Readers such as DuckDB and Hugging Face datasets infer the
    types of all fields from the beginning of a file. So in a file of more than 8 MiB, the smallest line that shows the
    type of a field comes before all others, for each field that has a value anywhere.

    Args:
        out: Folder to write to, which exists.
        records: The records, in a stable order.

    Returns:
        Number of the records, and of those with an error.

    Raises:
        OutputError: A file cannot be written.
    """
    check_folder(out)
    size = count = 0
    smallest: dict[str, _Line] = {}  # shows the type of a field; nothing is kept of other lines, which may be millions
    failures: list[bytes] = []
    settings: dict[str, ModelSettings] = {}
    with (
        _output_errors(out / NAME),
        TemporaryFile(dir=out) as file,
        atomic_file(out / NAME, durable=True) as ordered,
    ):
        for record in records:
            count += 1
            start, typed = size, set[str]()
            record = _write_line(file, record, typed)
            size = file.tell()
            line = _Line(size - start, start)
            smallest |= {name: line for name in typed if name not in smallest or line < smallest[name]}
            settings |= {used.id: used for used in _settings_of(record)}
            if record.error:
                failures.append(_failure(record))
        first = sorted(set(smallest.values()), key=lambda line: line.start) if size > _INFERRED_BYTES else ()
        _copy_in_order(file, ordered, first)
    _write_small(out / SETTINGS_NAME, escape_surrogates(_settings_to_json(settings)).encode())
    _write_small(out / FAILURES_NAME, b"".join(failures))
    return count, len(failures)


@contextmanager
def current_annotations(out: Path) -> Iterator[Path]:
    """Provide an annotations.jsonl that has all that the ledger of a folder knows now.

    The files of results in the folder are written anew. While a run is writing there, other files are made for the
    duration of the block, with the sources that are done so far. A folder without a ledger keeps its files as they are.

    Args:
        out: The folder of a run.

    Yields:
        The path of the file, with the other files of results beside it.

    Raises:
        OutputError: The ledger cannot be read, or the files cannot be written.
    """
    if not (out / LEDGER).exists():
        yield out / NAME
    elif writer_of(out):
        with TemporaryDirectory(prefix="reelscribe-") as folder, LedgerReader(out) as reader:
            write_results(Path(folder), reader.records())
            yield Path(folder) / NAME
    else:
        with FolderLock(out, "export"), LedgerReader(out) as reader:
            write_results(out, reader.records())
        yield out / NAME


def _write_line(file: IO[bytes], record: Record, typed: set[str]) -> Record:
    """Write the line of a record, and return the record. If that fails unexpectedly, the record is one of its error.

    Args:
        file: The file, at its end.
        record: The record.
        typed: As for `iter_line`.
    """
    start = file.tell()
    try:
        file.writelines(piece.encode() for piece in iter_line(record, typed))
    except OSError:  # the disk's
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other records are written
        record = replace(record.only(), unreadable=source_error(error, record.absolute_path))
        file.seek(start)
        file.truncate()
        typed.clear()
        file.writelines(piece.encode() for piece in iter_line(record, typed))
    return record


def iter_line(record: Record, typed: set[str]) -> Iterator[str]:
    """Yield pieces of the line of a record.

    Args:
        record: The record.
        typed: Gets the names of the fields whose type the line shows.
    """
    separator = "{"
    for name, value in record.fields():
        yield f'{separator}"{name}":'
        if isinstance(value, Iterator):
            yield from _iter_array(name, value, typed)
        else:
            _add_typed(name, value, typed)
            yield to_json(value)
        separator = ","
    yield "}\n"


def _iter_array(name: str, values: Iterator[dict[str, Any]], typed: set[str]) -> Iterator[str]:
    separator = "["
    for value in values:
        _add_typed(name, value, typed)
        yield separator + to_json(value)
        separator = ","
    yield "[]" if separator == "[" else "]"


def _add_typed(name: str, value: Any, typed: set[str]) -> None:
    """Add the names of the fields of a JSON value that show their type; null and an empty array show none."""
    if isinstance(value, dict):
        for key, item in value.items():
            _add_typed(f"{name}.{key}", item, typed)
    elif isinstance(value, list):
        for item in value:
            _add_typed(name, item, typed)
    elif value is not None:
        typed.add(name)


def _copy_in_order(source: IO[bytes], target: IO[bytes], first: Sequence[_Line]) -> None:
    """Copy some lines of a file, which are in order, and then all others in their order."""
    for line in first:
        source.seek(line.start)
        _copy(source, target, line.size)
    source.seek(0)
    for line in first:
        _copy(source, target, line.start - source.tell())
        source.seek(line.size, os.SEEK_CUR)
    shutil.copyfileobj(source, target, _COPIED_BYTES)


def _copy(source: IO[bytes], target: IO[bytes], count: int) -> None:
    while count > 0:
        block = source.read(min(count, _COPIED_BYTES))
        target.write(block)
        count -= len(block)


def _settings_of(record: Record) -> Iterator[ModelSettings]:
    return (result.settings for result in record.results())


def _settings_to_json(settings: dict[str, ModelSettings]) -> str:
    values = {key: {"model": vars(settings[key].model), "settings": settings[key].settings} for key in sorted(settings)}
    return json.dumps({"settings": values}, ensure_ascii=False, indent=2) + "\n"


def _failure(record: Record) -> bytes:
    """Return a line of failures.txt: path, type and message, with tabs between them."""
    assert record.error
    return ("\t".join(map(printable, (record.absolute_path or record.source.path, *record.error))) + "\n").encode()


def _write_small(path: Path, content: bytes) -> None:
    """Write a file, or remove it if it would be empty."""
    with _output_errors(path):
        if not content:
            path.unlink(missing_ok=True)
            return
        with atomic_file(path) as file:
            file.write(content)


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into an OutputError that says what to do; every other error passes."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error}; run the same command again to continue") from None
