"""CSV and Parquet, a table of captions and one of transcripts: docs/exports.md says what their columns mean."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reelscribe._files import atomic_file
from reelscribe.export.annotations import AnnotatedSource, Kind

TableFormat = Literal["csv", "parquet"]

Row = tuple[Any, ...]
Write = Callable[[AnnotatedSource], None]

_VALUES_IN_A_GROUP = 2**16  # rows and words of Parquet: enough to be read fast, few enough to be held in memory
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def _caption_rows(record: AnnotatedSource) -> Iterator[Row]:
    if captions := record.captions:
        tail = (record.sha256, captions.model_name, captions.model_revision)
        for frame in captions.frames:
            yield (record.path, *frame, *tail)


def _transcript_rows(record: AnnotatedSource) -> Iterator[Row]:
    if transcript := record.transcript:
        tail = (record.sha256, transcript.model_name, transcript.model_revision)
        for utterance in transcript.segments:
            yield (record.path, *utterance, *tail)


@dataclass(frozen=True)
class _Table:
    columns: tuple[str, ...]
    more: tuple[str, ...]
    """Columns after those, in Parquet alone."""
    rows: Callable[[AnnotatedSource], Iterator[Row]]
    """Of all columns."""


_TABLES: dict[Kind, _Table] = {
    "captions": _Table(
        ("source", "frame_index", "pts_seconds", "text", "reused_from"),
        ("sha256", "model_name", "model_revision"),
        _caption_rows,
    ),
    "transcript": _Table(
        ("source", "start", "end", "text", "language", "no_speech_prob"),
        ("words", "sha256", "model_name", "model_revision"),
        _transcript_rows,
    ),
}
_NULLABLE = frozenset({"reused_from", "language", "no_speech_prob", "words", "sha256"})


def table_file(kind: Kind, format: TableFormat, out: Path, written: list[Path]) -> AbstractContextManager[Write]:  # noqa: A002 - as everywhere here
    """A table in the folder `out`, whole when the block ends, and a function that adds a source to it."""
    table, path = _TABLES[kind], out / f"{kind}.{format}"
    return _csv_file(table, path, written) if format == "csv" else _parquet_file(table, path, written)


@contextmanager
def _csv_file(table: _Table, path: Path, written: list[Path]) -> Iterator[Write]:
    with (
        atomic_file(path, written) as partial,
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(table.columns)

        def write(record: AnnotatedSource) -> None:
            rows.writerows(
                [_cell(value) if isinstance(value, str) else value for value in row[: len(table.columns)]]
                for row in table.rows(record)
            )

        yield write


def _cell(text: str) -> str:
    """Spreadsheets compute what begins like a formula, and Python 3.10 writes no character 0.

    No text is like another's with an apostrophe before it, so that it can be taken off again.
    """
    return ("'" if _FORMULA.match(text) else "") + text.replace("\0", "\ufffd")


@contextmanager
def _parquet_file(table: _Table, path: Path, written: list[Path]) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema((*table.columns, *table.more))
    rows: list[Row] = []
    values = 0
    with (
        atomic_file(path, written) as partial,
        partial.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):

        def write_group() -> None:
            nonlocal values
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows.clear()
            values = 0

        def write(record: AnnotatedSource) -> None:
            nonlocal values
            for row in table.rows(record):
                rows.append(tuple(map(_exact, row)))
                values += 1 + sum(len(value) for value in row if isinstance(value, list))
                if values >= _VALUES_IN_A_GROUP:
                    write_group()

        yield write
        if rows:
            write_group()


def _schema(columns: tuple[str, ...]) -> Any:
    import pyarrow as pa

    number, seconds, text = pa.int64(), pa.float64(), pa.string()
    kinds = dict.fromkeys(columns, text) | {
        "frame_index": number,
        "reused_from": number,
        "pts_seconds": seconds,
        "start": seconds,
        "end": seconds,
        "no_speech_prob": pa.float64(),
        "words": pa.list_(pa.struct({"start": seconds, "end": seconds, "text": text})),
    }
    return pa.schema([pa.field(name, kinds[name], nullable=name in _NULLABLE) for name in columns])


def _exact(value: Any) -> Any:
    """As Parquet takes it. What is not UTF-8 is as in annotations.jsonl: a backslash, "u" and four digits."""
    if isinstance(value, list):
        return [tuple(map(_exact, word)) for word in value]
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="backslashreplace").decode()
    return value  # not a copy: groups hold each source's name many times
