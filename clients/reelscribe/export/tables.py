"""Tables of sources, captions, transcripts, translations, clips, shots, speakers and summaries, as CSV and Parquet.

`TABLES` lists the columns. A new column is one more `Column` there (and a row in docs/exports.md, which says what each
column means).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from reelscribe.contract.outcomes import SourceSummary, Turn
from reelscribe.contract.source import Section
from reelscribe.contract.speech import Word
from reelscribe.export.annotations_reader import (
    AnnotatedSource,
    Captions,
    Clips,
    ClipText,
    FlaggedCaption,
    FlaggedUtterance,
    Shots,
    Speakers,
    Summary,
    Transcript,
)
from reelscribe.export.folder import ExportFolder
from reelscribe.results.escaping import csv_cell, escape_surrogates
from reelscribe.results.records import Kind

WriteSource = Callable[[AnnotatedSource], None]
"""Writes a source to an export: its rows of a table, or files of its own."""

Item = TypeVar("Item", AnnotatedSource, FlaggedCaption, FlaggedUtterance, ClipText, Section, Turn, SourceSummary)

TableName = Literal["sources", "translations"] | Kind
"""The tables, by the names of their files and folders."""

_PART_BYTES = 128_000_000  # a file of Parquet that has as much gets no more row groups
_PART = re.compile(r"part-\d{5,}\.parquet")
_MAX_GROUP_VALUES = 2**16  # rows and words in a row group of Parquet: many for fast reading, few for little memory


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a table."""

    name: str
    type: Literal["text", "integer", "number", "boolean", "texts", "words"]
    value: Callable[[AnnotatedSource, Item], Any]
    """Returns the value for a source, and what the row is about: one of its annotations, or again the source."""
    nullable: bool = False
    """True if a value may be None."""
    in_csv: bool = True
    """True if CSV has this column; Parquet has all."""


@dataclass(frozen=True)
class Table(Generic[Item]):
    """A table with a row for each source, or for each annotation of one kind of all sources."""

    items: Callable[[AnnotatedSource], Sequence[Item]]
    """Returns what the rows of a source are about, if it has this kind of annotations."""
    columns: tuple[Column[Item], ...]

    def rows(self, source: AnnotatedSource, columns: Sequence[Column[Item]]) -> Iterator[list[Any]]:
        """Yield the values of these columns for each row of a source."""
        for item in self.items(source):
            yield [column.value(source, item) for column in columns]


def _captions(source: AnnotatedSource) -> Captions:
    assert source.captions
    return source.captions


def _transcript(source: AnnotatedSource) -> Transcript:
    assert source.transcript
    return source.transcript


def _clips(source: AnnotatedSource) -> Clips:
    assert source.clips
    return source.clips


def _shots(source: AnnotatedSource) -> Shots:
    assert source.shots
    return source.shots


def _speakers(source: AnnotatedSource) -> Speakers:
    assert source.speakers
    return source.speakers


def _summary(source: AnnotatedSource) -> Summary:
    assert source.summary
    return source.summary


def _of(field: str, name: str) -> Callable[[AnnotatedSource, AnnotatedSource], Any]:
    """Return a function that returns an attribute of `video` or `audio` of a source; None if it has no such stream."""
    return lambda source, _: getattr(getattr(source, field), name, None)


def _model(of: Callable[[AnnotatedSource], Any], *, nullable: bool = False) -> tuple[Column[Any], ...]:
    """Return the columns of the model that made the annotations of a table; None where records do not say which."""
    return (
        Column("model_name", "text", lambda source, item: getattr(of(source), "name", None), nullable, False),
        Column("model_revision", "text", lambda source, item: getattr(of(source), "revision", None), nullable, False),
    )


_SOURCE: Column[Any] = Column("source", "text", lambda source, item: source.path)
_SHA256: Column[Any] = Column("sha256", "text", lambda source, item: source.sha256, nullable=True, in_csv=False)

_SPEECH: tuple[Column[FlaggedUtterance], ...] = (
    _SOURCE,
    Column("start", "number", lambda source, utterance: utterance.start),
    Column("end", "number", lambda source, utterance: utterance.end),
    Column("text", "text", lambda source, utterance: utterance.text),
    Column("language", "text", lambda source, utterance: utterance.language, nullable=True),
    Column("language_probability", "number", lambda source, utterance: utterance.language_probability, nullable=True),
    Column("avg_logprob", "number", lambda source, utterance: utterance.avg_logprob, nullable=True),
    Column("no_speech_prob", "number", lambda source, utterance: utterance.no_speech_prob, nullable=True),
    Column("speaker", "text", lambda source, utterance: utterance.speaker, nullable=True),
    Column("flags", "texts", lambda source, utterance: utterance.flags),
    Column("words", "words", lambda source, utterance: utterance.words, nullable=True, in_csv=False),
    _SHA256,
    *_model(lambda source: _transcript(source).model),
)
"""The columns of what is said, and of its translation."""

TABLES: Mapping[TableName, Table[Any]] = {
    "sources": Table(
        lambda source: [source],
        (
            _SOURCE,
            Column("status", "text", lambda source, item: "error" if source.error else "ok"),
            Column("error_type", "text", lambda source, item: source.error and source.error[0], nullable=True),
            Column("error_message", "text", lambda source, item: source.error and source.error[1], nullable=True),
            Column("missing", "boolean", lambda source, item: source.missing),
            Column("extra", "text", lambda source, item: source.extra, nullable=True),
            Column("bytes", "integer", lambda source, item: source.bytes, nullable=True),
            Column("duration_seconds", "number", _of("video", "duration_seconds"), nullable=True),
            Column("width", "integer", _of("video", "width"), nullable=True),
            Column("height", "integer", _of("video", "height"), nullable=True),
            Column("frames", "integer", _of("video", "frames"), nullable=True),
            Column("video_codec", "text", _of("video", "codec"), nullable=True),
            Column("audio_seconds", "number", _of("audio", "seconds"), nullable=True),
            Column("audio_codec", "text", _of("audio", "codec"), nullable=True),
            Column(
                "captions", "integer", lambda source, item: item.captions and len(item.captions.frames), nullable=True
            ),
            Column(
                "segments",
                "integer",
                lambda source, item: item.transcript and len(item.transcript.utterances),
                nullable=True,
            ),
            Column("clips", "integer", lambda source, item: item.clips and len(item.clips.described), nullable=True),
            Column(
                "clip_failures", "integer", lambda source, item: item.clips and len(item.clips.failures), nullable=True
            ),
            Column("shots", "integer", lambda source, item: item.shots and len(item.shots.shots), nullable=True),
            _SHA256,
        ),
    ),
    "captions": Table(
        lambda source: _captions(source).frames,
        (
            _SOURCE,
            Column("frame_index", "integer", lambda source, caption: caption.frame_index),
            Column("pts_seconds", "number", lambda source, caption: caption.pts_seconds),
            Column("text", "text", lambda source, caption: caption.text),
            Column("reused_from", "integer", lambda source, caption: caption.reused_from, nullable=True),
            Column("avg_logprob", "number", lambda source, caption: caption.avg_logprob, nullable=True),
            Column("flags", "texts", lambda source, caption: caption.flags),
            _SHA256,
            *_model(lambda source: _captions(source).model),
        ),
    ),
    "transcript": Table(lambda source: _transcript(source).utterances, _SPEECH),
    "translations": Table(lambda source: _transcript(source).translations or [], _SPEECH),
    "clips": Table(
        lambda source: _clips(source).described,
        (
            _SOURCE,
            Column("start", "number", lambda source, clip: clip.start),
            Column("end", "number", lambda source, clip: clip.end),
            Column("frames", "integer", lambda source, clip: clip.frames),
            Column("text", "text", lambda source, clip: clip.text),
            Column("json", "text", lambda source, clip: clip.json, nullable=True),
            Column("status", "text", lambda source, clip: clip.status),
            Column("tokens", "integer", lambda source, clip: clip.tokens, nullable=True),
            Column("avg_logprob", "number", lambda source, clip: clip.avg_logprob, nullable=True),
            Column("flags", "texts", lambda source, clip: clip.flags),
            _SHA256,
            *_model(lambda source: _clips(source).model),
        ),
    ),
    "shots": Table(
        lambda source: _shots(source).shots,
        (
            _SOURCE,
            Column("start", "number", lambda source, shot: shot.start),
            Column("end", "number", lambda source, shot: shot.end),
            Column("start_frame", "integer", lambda source, shot: shot.start_frame),
            Column("end_frame", "integer", lambda source, shot: shot.end_frame),
            Column("transition", "text", lambda source, shot: shot.transition, nullable=True),
            _SHA256,
            *_model(lambda source: _shots(source).detector, nullable=True),
        ),
    ),
    "speakers": Table(
        lambda source: _speakers(source).turns,
        (
            _SOURCE,
            Column("start", "number", lambda source, turn: turn.start),
            Column("end", "number", lambda source, turn: turn.end),
            Column("speaker", "text", lambda source, turn: turn.speaker),
            _SHA256,
            *_model(lambda source: _speakers(source).model),
        ),
    ),
    "summary": Table(
        lambda source: [made] if (made := _summary(source).summary) else [],
        (
            _SOURCE,
            Column("title", "text", lambda source, summary: summary.title),
            Column("text", "text", lambda source, summary: summary.text),
            Column("keywords", "texts", lambda source, summary: summary.keywords),
            _SHA256,
            *_model(lambda source: _summary(source).model),
        ),
    ),
}
"""The tables and their columns, in order."""


@contextmanager
def csv_writer(folder: ExportFolder, name: TableName) -> Iterator[WriteSource]:
    """Write a table as CSV, to a file.

    Args:
        folder: Folder of the export.
        name: The table.

    Yields:
        A function that adds the rows of a source.

    Raises:
        UsageError: The file cannot be written.
    """
    table = TABLES[name]
    columns = [column for column in table.columns if column.in_csv]
    with (
        folder.result(f"{name}.csv") as file,
        TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(column.name for column in columns)

        def write(source: AnnotatedSource) -> None:
            writer.writerows(map(csv_cell, row) for row in table.rows(source, columns))

        yield write


@contextmanager
def parquet_writer(folder: ExportFolder, name: TableName) -> Iterator[WriteSource]:
    """Write a table as Parquet, in row groups that fit in memory, to a folder of files of about 128 MB.

    Args:
        folder: Folder of the export.
        name: The table.

    Yields:
        A function that adds the rows of a source.

    Raises:
        UsageError: The folder cannot be written, or has something that no export has put there.
    """
    import pyarrow as pa

    table = TABLES[name]
    schema = _parquet_schema(table)
    rows: list[list[Any]] = []
    values = 0
    with folder.folder(f"parquet/{name}", _PART) as path, _parts(path, schema) as write_to_part:

        def write_group() -> None:
            nonlocal values
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            write_to_part(pa.Table.from_arrays(arrays, schema=schema))
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


@contextmanager
def _parts(folder: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Yield a function that adds a row group to the last file of a folder, or to a new one if that is large."""
    from pyarrow import parquet

    numbers = count()
    with ExitStack() as part:

        def next_part() -> tuple[Any, Any]:
            part.close()
            file = part.enter_context((folder / f"part-{next(numbers):05}.parquet").open("xb"))
            return file, part.enter_context(parquet.ParquetWriter(file, schema, compression="zstd"))

        file, writer = next_part()  # a table without rows has a file, too, for its columns

        def write(group: Any) -> None:
            nonlocal file, writer
            if file.tell() >= _PART_BYTES:
                file, writer = next_part()
            writer.write_table(group)

        yield write


def _parquet_schema(table: Table[Any]) -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    types = {
        "text": text,
        "integer": pa.int64(),
        "number": number,
        "boolean": pa.bool_(),
        "texts": pa.list_(text),
        "words": pa.list_(pa.struct({"start": number, "end": number, "text": text, "probability": number})),
    }
    return pa.schema([pa.field(column.name, types[column.type], nullable=column.nullable) for column in table.columns])


def _parquet_value(value: Any) -> Any:
    """Return a value that pyarrow accepts. Text that is not valid UTF-8 is escaped as in annotations.jsonl."""
    if isinstance(value, tuple):
        return [_parquet_value(item) for item in value]
    if isinstance(value, Word):
        return value.start, value.end, _parquet_value(value.text), value.probability
    if not isinstance(value, str):
        return value
    return escape_surrogates(value)
