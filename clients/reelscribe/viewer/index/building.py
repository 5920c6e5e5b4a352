"""Builds the index of a whole annotations.jsonl: its ranges of bytes at the same time, each in a process of its own."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import IO

from reelscribe._cores import usable_cores
from reelscribe._files import regular_file
from reelscribe.errors import OutputError
from reelscribe.viewer.index.databases import (
    ANNOTATIONS,
    LIBRARY_NAME,
    end_building,
    make_library,
    make_sources,
    make_texts,
    new_database,
    save_sources,
    save_texts,
    texts_name,
)
from reelscribe.viewer.index.source_row import MOST_BYTES, BadLine, IndexedLine, SourceRow, read_line

MOST_SHARDS = 4
"""Largest number of processes and of databases of texts."""

DOCS_OF_SHARD = 2**32
"""Numbers of sources for each shard."""

_BYTES_OF_SHARD = 2**23  # a shorter file is read sooner than a process starts
_TEXTS_AT_ONCE = 2000
_LONG_LINE = 2**20
_STOP_NAME = "stop"
"""Name of the file that tells all processes to end early."""


class Stopped(Exception):
    """Nobody waits any more for what is being built or read."""


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    shards: int
    docs: int
    """Number of records."""
    bad_lines: int
    """Number of lines that are not records."""
    example: str
    """The first such line, and why it is no record; empty if there is none."""
    next_doc: int
    """The number of the next source in the last shard."""


@dataclass(frozen=True)
class _Shard:
    docs: int
    bad_lines: int
    example: str


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    start: int
    size: int
    """Its length in bytes, with its end."""
    content: bytes | None
    """None if it is too long to be read."""
    ended: bool = True
    """True if it has its end; the last line of a file that is being written may not."""

    def read(self, doc: int) -> IndexedLine:
        """Read it as a line of annotations.jsonl. Raises BadLine if it is not a record.

        Args:
            doc: The number that its source shall have.
        """
        if self.content is None:
            raise BadLine(f"it is longer than {MOST_BYTES:,} bytes")
        return read_line(self.content, doc=doc, file=ANNOTATIONS, start=self.start)


def iter_lines(file: IO[bytes], start: int, stop: int) -> Iterator[Line]:
    """Yield the lines of a file that begin in a range of bytes.

    Args:
        file: The file, open for reading in binary.
        start: Where the range begins.
        stop: Where it ends.
    """
    position = start
    if start > 0:
        file.seek(start - 1)
        position += _skip_line(file) - 1
    else:
        file.seek(0)
    while position < stop:
        content: bytes | None = file.readline(MOST_BYTES)
        assert content is not None
        size, ended = len(content), content.endswith(b"\n")
        if size == 0:
            return
        if not ended and size == MOST_BYTES:
            content, size, ended = None, size + _skip_line(file), True
        yield Line(position, size, content, ended)
        position += size


def build(annotations: Path | None, size: int, folder: Path) -> Built:
    """Build the index of a file of records.

    Args:
        annotations: Path of annotations.jsonl; None if there is none.
        size: How much of it is read, in bytes.
        folder: A folder that exists and is empty.

    Returns:
        What was read.

    Raises:
        OSError: The file cannot be read, or the folder not be written to.
        sqlite3.Error: The databases cannot be written.
        OutputError: A process ended unexpectedly.
        Stopped: `stop_building` was called.
    """
    cores = usable_cores()
    shards = max(1, min(cores, MOST_SHARDS, size // _BYTES_OF_SHARD))
    limits = [size * k // shards for k in range(shards + 1)]
    build_one = partial(_build_shard, annotations, folder, limits)
    if shards == 1:
        built = [build_one(0)]
    else:
        with ProcessPoolExecutor(shards, mp_context=get_context("spawn"), initializer=_begin_process) as processes:
            try:
                built = list(processes.map(build_one, range(shards)))
            except BrokenExecutor as error:  # the others were ended, too
                raise OutputError(f"{annotations}: a process that was reading it ended unexpectedly: {error}") from None
            except BaseException:
                stop_building(folder)
                raise
    if (folder / _STOP_NAME).exists():
        raise Stopped
    _merge_sources(folder, shards)
    return Built(
        shards,
        sum(shard.docs for shard in built),
        sum(shard.bad_lines for shard in built),
        next((shard.example for shard in built if shard.example), ""),
        (shards - 1) * DOCS_OF_SHARD + built[-1].docs,
    )


def stop_building(folder: Path) -> None:
    """Let `build` raise Stopped soon. Any thread may call it, also while nothing is built.

    Args:
        folder: The folder that `build` was given.
    """
    with suppress(OSError):
        (folder / _STOP_NAME).touch()


def _build_shard(annotations: Path | None, folder: Path, limits: list[int], shard: int) -> _Shard:
    """Index the lines that begin in a range of bytes: their texts, and rows of their sources in another database."""
    first = shard * DOCS_OF_SHARD
    docs, bad_lines, example = 0, 0, ""
    rows: list[SourceRow] = []
    texts: list[tuple[int, str]] = []
    stop = folder / _STOP_NAME
    with (
        open(annotations, "rb", buffering=2**20, opener=regular_file) if annotations else BytesIO() as file,
        closing(new_database(folder / texts_name(shard))) as words,
        closing(new_database(folder / _rows_name(shard))) as sources,
    ):
        make_texts(words)
        make_sources(sources)
        words.execute("BEGIN")
        sources.execute("BEGIN")
        for line in iter_lines(file, limits[shard], limits[shard + 1]):
            try:
                indexed = line.read(first + docs)
            except BadLine as error:
                if line.ended:
                    bad_lines += 1
                    example = example or f"the line at byte {line.start:,}: {error}"
                continue
            docs += 1
            rows.append(indexed.row)
            texts += indexed.indexed()
            if len(texts) >= _TEXTS_AT_ONCE or len(rows) >= _TEXTS_AT_ONCE or line.size > _LONG_LINE:
                save_texts(words, texts)
                save_sources(sources, rows)
                texts, rows = [], []
                if stop.exists():
                    break
        save_texts(words, texts)
        save_sources(sources, rows)
        sources.execute("COMMIT")
        end_building(words)
        words.execute("COMMIT")
    return _Shard(docs, bad_lines, example)


def _begin_process() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the parent. Collect no garbage: there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def _merge_sources(folder: Path, shards: int) -> None:
    """Make one table of the rows of all shards."""
    with closing(new_database(folder / LIBRARY_NAME)) as library:
        make_sources(library)
        for shard in range(shards):
            path = folder / _rows_name(shard)
            library.execute("ATTACH ? AS part", [str(path)])
            library.execute("INSERT INTO sources SELECT * FROM part.sources")
            library.execute("DETACH part")
            path.unlink()
        library.execute("BEGIN")
        make_library(library)


def _rows_name(shard: int) -> str:
    return f"sources-{shard}.sqlite"


def _skip_line(file: IO[bytes]) -> int:
    """Read to the end of the line, and return how many bytes that were."""
    size = 0
    while block := file.readline(2**20):
        size += len(block)
        if block.endswith(b"\n"):
            break
    return size
