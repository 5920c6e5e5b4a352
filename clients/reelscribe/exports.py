"""`annotations.jsonl` as subtitles and tables: docs/exports.md describes the files."""

from __future__ import annotations

import csv
import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from reelscribe.errors import UsageError
from reelscribe.pickled_arrays import brief

Format = Literal["vtt", "srt", "csv", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)

T = TypeVar("T")

_LIBRARIES = {"vtt": ("pysubs2", "client"), "srt": ("pysubs2", "client"), "parquet": ("pyarrow", "parquet")}
"""The package that a format needs, and the extra of ours that installs it."""
_COLUMNS = ("source", "frame_index", "pts_seconds", "text", "reused_from")
_ROWS_IN_A_GROUP = 2**16  # of Parquet: enough to be read fast, few enough to be held in memory
_LAST_CUE_MS = 100 * 3_600_000 - 1  # pysubs2 writes hours of two digits, which is what players of SubRip expect
_LONGEST_PART = 255  # bytes of a file's name, on most file systems
_LONGEST_NAME = 1000  # bytes of a name with its folders; `out` may be deep too, and 4096 is the most

_WORD_JOINER = "\u2060"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_SRT_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # the surrogates between stand for bytes


class _Caption(NamedTuple):
    frame_index: int
    pts_seconds: float
    text: str
    reused_from: int | None


@dataclass(frozen=True)
class _Record:
    """What is exported of a line."""

    path: str
    sha256: str | None
    model_name: str
    model_revision: str
    start_seconds: float
    captions: list[_Caption]
    segments: list[tuple[float, float, str]]
    """Start, end, text."""


_Write = Callable[[_Record], None]


def export(annotations: Path, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write `annotations` into the folder `out` in each of `formats`; returns the files that were written.

    A file is called `<name>.partial` until it is whole, and then takes the place of an older one. Raises UsageError for
    an unknown format, a library that is missing, a line that is no record, and a file that cannot be read or written.
    """
    formats = list(dict.fromkeys(formats))
    check_formats(formats)
    if not annotations.is_file():  # nor a pipe: subtitles need a second reading
        reason = "is no regular file" if annotations.exists() else "does not exist"
        raise UsageError(f"export: {annotations} {reason}; expected the annotations.jsonl of a run that is done")
    folder = _common_folder(annotations) if {"vtt", "srt"} & set(formats) else ""
    written: list[Path] = []
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(name, out, folder, written)) for name in formats]
        for record in _each(annotations, _record):
            for write in writers:
                write(record)
            del record  # or the next one would be read beside it, and each may take hundreds of MB
    return written


def check_formats(formats: Sequence[str]) -> None:
    """Raises UsageError for an unknown format and for a library that is missing: better before a run than after it."""
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"export: expected formats out of {', '.join(FORMATS)}, got {brief(name)}")
        library, extra = _LIBRARIES.get(name, (None, None))
        if library and find_spec(library) is None:
            raise UsageError(
                f"export: {name} needs the package {library}; in the project's folder, pip install '.[{extra}]'"
            )


def _writer(name: str, out: Path, folder: str, written: list[Path]) -> AbstractContextManager[_Write]:
    if name == "csv":
        return _csv_file(out / "captions.csv", written)
    if name == "parquet":
        return _parquet_file(out / "captions.parquet", written)
    return _subtitle_files(name, out / name, _Names(folder, f".{name}"), written)


# Reading


def _each(annotations: Path, parse: Callable[[bytes], T]) -> Iterator[T]:
    """What `parse` makes of every line."""
    try:
        with annotations.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    parsed = parse(line)
                except (KeyError, TypeError, ValueError, RecursionError) as error:
                    raise UsageError(
                        f"export: {annotations}, line {number}: expected a record as docs/records.md describes it, got"
                        f" {brief(line)} ({type(error).__name__}: {error}); was it written by this version, to its end?"
                    ) from None
                yield parsed
                del parsed
    except OSError as error:
        raise UsageError(f"export: {annotations} cannot be read: {error.strerror or error}") from None


def _source_path(line: bytes) -> str:
    """Its source alone: to parse a line of tens of MB takes most of a second."""
    text, head = line.decode(), '{"source": '
    source = json.JSONDecoder().raw_decode(text, len(head))[0] if text.startswith(head) else json.loads(text)["source"]
    return _text(source["path"])


def _record(line: bytes) -> _Record:
    value = json.loads(line.decode())
    source, model, media = value["source"], value["model"], value["media"]
    return _Record(
        path=_text(source["path"]),
        sha256=None if source["sha256"] is None else _text(source["sha256"]),
        model_name=_text(model["name"]),
        model_revision=_text(model["revision"]),
        start_seconds=0.0 if media is None else _seconds(media["start_seconds"]),
        captions=[
            _Caption(
                _index(item["frame_index"]),
                _seconds(item["pts_seconds"]),
                _text(item["text"]),
                _index(item["reused_from"]) if "reused_from" in item else None,
            )
            for item in value["captions"]
        ],
        segments=[(_seconds(item["start"]), _seconds(item["end"]), _text(item["text"])) for item in value["segments"]],
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, got {brief(value)}")
    return value


def _index(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"expected the number of a frame, got {brief(value)}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not -1e12 < value < 1e12:  # no comparison holds for NaN
        raise TypeError(f"expected seconds, got {brief(value)}")
    return float(value)


# Naming


def _absolute(path: str) -> str:
    """The path as the file system would tell it: each name is spelled in one way."""
    return os.path.abspath(os.fsdecode(os.fsencode(_NOT_IN_A_NAME.sub("_", path))))


def _common_folder(annotations: Path) -> str:
    """The deepest folder that all sources are in."""
    folder = ""
    for path in _each(annotations, _source_path):
        parent = os.path.dirname(_absolute(path))
        folder = os.path.commonpath([folder, parent]) if folder else parent
    return folder


class _Names:
    """What files that stand for sources are called: never alike, and never outside of the folder they go to."""

    def __init__(self, common_folder: str, suffix: str) -> None:
        self._common_folder, self._suffix = common_folder, suffix
        self._taken: set[str] = set()

    def of(self, path: str) -> str:
        """The name, with folders, for the source at `path`; a new one each time."""
        # Of an absolute path, so that there is no ".." whatever the folder is.
        parts = [part for part in _absolute(path).removeprefix(self._common_folder).split("/") if part] or ["_"]
        folders = [_shortened(self._no_file(part), _LONGEST_PART) for part in parts[:-1]]
        # Room for the number below, up to 9,999,999, and for what a file is called until it is whole.
        last = _shortened(parts[-1], _LONGEST_PART - len(f"~9999999{self._suffix}.partial"))
        name = "/".join([*folders, last])
        if len(os.fsencode(name)) > _LONGEST_NAME:
            name = last
        numbered = chain([name], (f"{name}~{number}" for number in count(2)))
        free = next(candidate for candidate in numbered if candidate not in self._taken)
        self._taken.add(free)
        return free + self._suffix

    def _no_file(self, folder: str) -> str:
        """Beside x.mp4, whose file is x.mp4.vtt, there may be a folder x.mp4.vtt."""
        return f"{folder}_" if folder.endswith((self._suffix, ".partial")) else folder


def _shortened(part: str, longest: int) -> str:
    """`part`, or its beginning and a digest of all of it where it has more bytes than `longest`."""
    encoded = os.fsencode(part)
    if len(encoded) <= longest:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    return f"{encoded[: longest - 13].decode(errors='ignore')}-{digest}"


# Writing


@contextmanager
def _complete(path: Path, written: list[Path]) -> Iterator[Path]:
    """The name to write to. It becomes `path` if the block ends well; if not, the file is removed."""
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


@contextmanager
def _subtitle_files(kind: str, folder: Path, names: _Names, written: list[Path]) -> Iterator[_Write]:
    import pysubs2

    def write(record: _Record) -> None:
        subtitles = pysubs2.SSAFile()
        for first, last, caption in record.segments:
            start, end = (max(0, round((at - record.start_seconds) * 1000)) for at in (first, last))
            text = " ".join(_CONTROL.sub(" ", caption).split())
            if text and start < _LAST_CUE_MS:
                end = min(max(end, start + 1), _LAST_CUE_MS)
                subtitles.append(pysubs2.SSAEvent(start, end, _vtt_text(text) if kind == "vtt" else _srt_text(text)))
        if subtitles:
            with _complete(folder / names.of(record.path), written) as partial:
                partial.write_text(
                    subtitles.to_string(kind, keep_ssa_tags=True), encoding="utf-8", errors="backslashreplace"
                )

    yield write


def _vtt_text(text: str) -> str:
    # pysubs2 takes a backslash with N, n or h for white space, and WebVTT has no other way to write one.
    return html.escape(text, quote=False).replace("\\", f"\\{_WORD_JOINER}")


def _srt_text(text: str) -> str:
    # SubRip cannot escape anything, and players hide what looks like a tag. A word joiner, which is not seen, makes it
    # look otherwise to them; between braces they would hide even that.
    return _SRT_MARKUP.sub(rf"\g<0>{_WORD_JOINER}", text).translate(_SRT_BRACES)


@contextmanager
def _csv_file(path: Path, written: list[Path]) -> Iterator[_Write]:
    with (
        _complete(path, written) as partial,
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(_COLUMNS)

        def write(record: _Record) -> None:
            source = _cell(record.path)
            rows.writerows(
                (source, item.frame_index, item.pts_seconds, _cell(item.text), item.reused_from)
                for item in record.captions
            )

        yield write


def _cell(text: str) -> str:
    """Spreadsheets compute what begins like a formula, and Python 3.10 writes no character 0.

    No text is like another's with an apostrophe before it, so that it can be taken off again.
    """
    return ("'" if _FORMULA.match(text) else "") + text.replace("\0", "\ufffd")


@contextmanager
def _parquet_file(path: Path, written: list[Path]) -> Iterator[_Write]:
    import pyarrow as pa
    from pyarrow import parquet

    text, number, optional = pa.string(), pa.int64(), ("reused_from", "sha256")
    names = (*_COLUMNS, "sha256", "model_name", "model_revision")
    kinds = (text, number, pa.float64(), text, number, text, text, text)
    schema = pa.schema(
        [pa.field(name, kind, nullable=name in optional) for name, kind in zip(names, kinds, strict=True)]
    )
    rows: list[tuple[Any, ...]] = []
    with (
        _complete(path, written) as partial,
        partial.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):

        def write_group() -> None:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows.clear()

        def write(record: _Record) -> None:
            source = _utf8(record.path)
            sha256 = record.sha256 and _utf8(record.sha256)
            tail = (sha256, _utf8(record.model_name), _utf8(record.model_revision))
            for item in record.captions:
                rows.append((source, item.frame_index, item.pts_seconds, _utf8(item.text), item.reused_from, *tail))
                if len(rows) == _ROWS_IN_A_GROUP:
                    write_group()

        yield write
        if rows:
            write_group()


def _utf8(text: str) -> str:
    """As annotations.jsonl writes what is not UTF-8: a backslash, "u" and four digits."""
    return text.encode(errors="backslashreplace").decode()
