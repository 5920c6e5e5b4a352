"""Tables: one of captions and one of transcripts, as CSV and Parquet files.

`TABLES` lists the columns. A new column is one more `Column` there (and a row in docs/exports.md, which says what each
column means).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from reelscribe.contract.outcomes import Caption, Utterance
from reelscribe.export.reader import AnnotatedSource, Kind
from reelscribe.results.annotations import Model

WriteSource = Callable[[AnnotatedSource], None]
"""Writes a source to an export: its rows of a table, or its subtitle file."""

Item = TypeVar("Item", Caption, Utterance)

_MAX_GROUP_VALUES = 2**16  # rows and words in a row group of Parquet: many for fast reading, few for little memory
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a table."""

    name: str
    type: Literal["text", "integer", "number", "words"]
    value: Callable[[AnnotatedSource, Model, Item], Any]
    """Returns the value for a source, the model that annotated it, and the caption or utterance of the row."""
    nullable: bool = False
    """Whether a value may be None."""
    in_csv: bool = True
    """Whether CSV has this column; Parquet has all."""


@dataclass(frozen=True)
class Table(Generic[Item]):
    """A table with a row for each caption, or for each utterance, of all sources."""

    items: Callable[[AnnotatedSource], tuple[Model, Sequence[Item]]]
    """Returns the model and the captions or utterances of a source that has this kind of annotations."""
    columns: tuple[Column[Item], ...]

    def rows(self, source: AnnotatedSource, columns: Sequence[Column[Item]]) -> Iterator[list[Any]]:
        """Yield the values of these columns for each row of a source."""
        model, items = self.items(source)
        for item in items:
            yield [column.value(source, model, item) for column in columns]


def _captions(source: AnnotatedSource) -> tuple[Model, Sequence[Caption]]:
    assert source.captions
    return source.captions.model, source.captions.frames


def _utterances(source: AnnotatedSource) -> tuple[Model, Sequence[Utterance]]:
    assert source.transcript
    return source.transcript.model, source.transcript.utterances


_SOURCE: Column[Any] = Column("source", "text", lambda source, model, item: source.path)
_ORIGIN: tuple[Column[Any], ...] = (
    Column("sha256", "text", lambda source, model, item: source.sha256, nullable=True, in_csv=False),
    Column("model_name", "text", lambda source, model, item: model.name, in_csv=False),
    Column("model_revision", "text", lambda source, model, item: model.revision, in_csv=False),
)

TABLES: Mapping[Kind, Table[Any]] = {
    "captions": Table(
        _captions,
        (
            _SOURCE,
            Column("frame_index", "integer", lambda source, model, caption: caption.frame_index),
            Column("pts_seconds", "number", lambda source, model, caption: caption.pts_seconds),
            Column("text", "text", lambda source, model, caption: caption.text),
            Column("reused_from", "integer", lambda source, model, caption: caption.reused_from, nullable=True),
            *_ORIGIN,
        ),
    ),
    "transcript": Table(
        _utterances,
        (
            _SOURCE,
            Column("start", "number", lambda source, model, utterance: utterance.start),
            Column("end", "number", lambda source, model, utterance: utterance.end),
            Column("text", "text", lambda source, model, utterance: utterance.text),
            Column("language", "text", lambda source, model, utterance: utterance.language, nullable=True),
            Column(
                "no_speech_prob", "number", lambda source, model, utterance: utterance.no_speech_prob, nullable=True
            ),
            Column("words", "words", lambda source, model, utterance: utterance.words, nullable=True, in_csv=False),
            *_ORIGIN,
        ),
    ),
}
"""The tables and their columns, in order."""


@contextmanager
def csv_writer(path: Path, table: Table[Any]) -> Iterator[WriteSource]:
    """Write a table as CSV.

    Args:
        path: The file to write.
        table: The table.

    Yields:
        A function that adds the rows of a source.
    """
    columns = [column for column in table.columns if column.in_csv]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in columns)

        def write(source: AnnotatedSource) -> None:
            writer.writerows(map(_cell, row) for row in table.rows(source, columns))

        yield write


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula, without null characters, which end text in some readers.

    A formula gets an apostrophe before it. So does a formula that has one already, so that removing one apostrophe
    always restores the text.
    """
    if not isinstance(value, str):
        return value
    return ("'" if _FORMULA.match(value) else "") + value.replace("\0", "\ufffd")


@contextmanager
def parquet_writer(path: Path, table: Table[Any]) -> Iterator[WriteSource]:
    """Write a table as Parquet, in row groups that fit in memory.

    Args:
        path: The file to write.
        table: The table.

    Yields:
        A function that adds the rows of a source.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = _parquet_schema(table)
    rows: list[list[Any]] = []
    values = 0
    with path.open("wb") as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def write_group() -> None:
            nonlocal values
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows.clear()
            values = 0

        def write(source: AnnotatedSource) -> None:
            nonlocal values
            for row in table.rows(source, table.columns):
                rows.append([_parquet_value(value) for value in row])
                values += 1 + sum(len(value) for value in row if isinstance(value, tuple))
                if values >= _MAX_GROUP_VALUES:
                    write_group()

        yield write
        if rows:
            write_group()


def _parquet_schema(table: Table[Any]) -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    types = {
        "text": text,
        "integer": pa.int64(),
        "number": number,
        "words": pa.list_(pa.struct({"start": number, "end": number, "text": text})),
    }
    return pa.schema([pa.field(column.name, types[column.type], nullable=column.nullable) for column in table.columns])


def _parquet_value(value: Any) -> Any:
    """Return a value that pyarrow accepts. Text that is not valid UTF-8 is escaped as in annotations.jsonl."""
    if isinstance(value, tuple):
        return [(word.start, word.end, _parquet_value(word.text)) for word in value]
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="backslashreplace").decode()
    return value  # not a copy: a group holds the path of each source many times
