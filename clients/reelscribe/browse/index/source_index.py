"""The index of a folder of results: built, opened, and kept up to date with annotations.jsonl and the ledger."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Any, Self

from reelscribe.browse.index.building import build, iter_lines
from reelscribe.browse.index.lines import BadLine, IndexedLine, SourceRow, digest_of, fingerprint, read_line, source_id
from reelscribe.browse.index.reader import Reader, Readers
from reelscribe.browse.index.tables import (
    ANNOTATIONS,
    JOURNAL,
    LIBRARY_NAME,
    NAME,
    IndexState,
    check_tables,
    open_database,
    open_journal,
    replace_sources,
    save_state,
    save_texts,
    texts_name,
)
from reelscribe.contract.outcomes import SourceError
from reelscribe.errors import OutputError
from reelscribe.reporting.words import count
from reelscribe.results.annotations import NAME as ANNOTATIONS_NAME
from reelscribe.results.annotations import escape_surrogates, iter_line
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import FinishedSource
from reelscribe.results.schema import NAME as LEDGER_NAME

_NEW_SHARE = 0.2
_FEW_LINES = 1000
_SOURCES_AT_ONCE = 50
_MOVE = "UPDATE sources SET file = ?, start = ? WHERE doc = ? AND (start != ? OR file != ?)"


class SourceIndex:
    """The index of a folder of results. One thread calls `refresh`; any thread may read meanwhile.

    Use it as a context manager. It is built when the block begins, and makes nothing of its own anywhere else.
    """

    def __init__(self, out: Path, folder: Path) -> None:
        """Prepare to use an index.

        Args:
            out: The folder of results.
            folder: The folder for the index, which exists and which nobody else uses.
        """
        self._out, self._folder = out, folder
        self._annotations, self._ledger = out / ANNOTATIONS_NAME, out / LEDGER_NAME
        self._readers = Readers()
        self._lock = Lock()
        self._file: int | None = None
        self._finished: dict[bytes, int] = {}
        self._ledger_stamp: tuple[int, ...] = ()
        self._problems: dict[str, str] = {}
        self._wanted = Event()
        self._damaged = False
        """Whether the index cannot be read any more, and is built anew by the next refresh."""
        self.generation = 0
        """Grows whenever sources have changed."""
        self.docs: frozenset[int] = frozenset()
        """The numbers of all sources; the index of texts may have others, which are gone."""

    def __enter__(self) -> Self:
        self._library: sqlite3.Connection | None = None
        self._journal = -1
        try:
            try:
                self._open()
            except (OSError, sqlite3.Error, ValueError, TypeError, KeyError):
                self._rebuild()
            self._try("annotations", self._annotations, self._follow_annotations)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def notices(self) -> tuple[str, ...]:
        """Whole sentences about what is not as expected."""
        return tuple(self._problems.values())

    def refresh(self) -> bool:
        """Bring the index up to date, and return whether anything has changed.

        What cannot be read or written is told by `notices`, and tried again the next time.
        """
        before = self.generation
        if self._damaged:
            self._try("index", self._folder, self._rebuild)
        self._try("annotations", self._annotations, self._follow_annotations)
        self._try("ledger", self._ledger, self._follow_ledger)
        if self.generation != before and not self._select("SELECT 1 FROM sources WHERE file = ? LIMIT 1", JOURNAL):
            os.ftruncate(self._journal, 0)
        return self.generation != before

    def refresh_soon(self) -> None:
        """Note that what was read does not fit the index any more, or that there is no more to wait for."""
        self._wanted.set()

    def wait(self, seconds: float) -> None:
        """Wait until the next refresh is due: so many seconds, or until `refresh_soon`."""
        if self._wanted.wait(seconds):
            self._wanted.clear()

    def _try(self, name: str, path: Path, follow: Callable[[], None]) -> None:
        try:
            self._problems.pop(name, None)
            follow()
        except sqlite3.DatabaseError as error:
            self._damaged = type(error) is sqlite3.DatabaseError
            self._problems[name] = f"The index cannot be brought up to date: {error}."
        except (OSError, OutputError) as error:
            self._problems[name] = f"{path.name} cannot be read: {error}."

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Lend an open reader to this thread."""
        with self._readers.lend(self._open_reader) as reader:
            yield reader

    def _open_reader(self) -> Reader:
        with self._lock:
            assert self._file is not None
            return Reader(self._folder / NAME, self._state.shards, os.dup(self._file))

    def close(self) -> None:
        """Close everything, also the readers that are lent when they come back."""
        self._readers.expire()
        if self._library:
            self._library.close()
            for texts in self._texts:
                texts.close()
            self._library = None
        for file in (self._file, self._journal):
            if file is not None and file >= 0:
                os.close(file)
        self._file, self._journal = None, -1

    def _open(self) -> None:
        """Open the index that is there. Raises one of several errors if there is none that can be used."""
        self._use(check_tables(self._folder / NAME))

    def _use(self, state: IndexState) -> None:
        """Open the databases of an index that is complete, to write to them."""
        self.close()
        folder = self._folder / NAME
        # The file is only read where digests say so; if it is another one by now, the next refresh will find that.
        self._file = os.open(self._annotations if state.stamp else os.devnull, os.O_RDONLY)
        self._journal = open_journal(folder, write=True)
        self._library = open_database(folder / LIBRARY_NAME, write=True)
        self._texts = [open_database(folder / texts_name(shard), write=True) for shard in range(state.shards)]
        self._state = state
        self._finished, self._ledger_stamp = {}, ()
        self._damaged = False
        self._changed()

    def _rebuild(self) -> None:
        """Build the index anew from annotations.jsonl, and use it."""
        new, folder = self._folder / "new", self._folder / NAME
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        stamp = _stamp(self._annotations)
        built = build(self._annotations if stamp else Path(os.devnull), stamp[1] if stamp else 0, new)
        state = IndexState(stamp, built.shards, built.next_doc, built.docs, built.bad_lines, built.example)
        with closing(open_database(new / LIBRARY_NAME, write=True)) as library:
            save_state(library, state)
        with self._lock:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
            self._use(state)

    def _follow_annotations(self) -> None:
        """Read what is new in annotations.jsonl, and forget what is there no more."""
        stamp = _stamp(self._annotations)
        if stamp != self._state.stamp:
            lines = self._new_lines(stamp)
            if lines is None or self._state.docs > 2 * len(self.docs) + _FEW_LINES:
                self._rebuild()
            else:
                self._take_annotations(stamp, lines)
        if self._state.bad_lines:
            self._problems["lines"] = (
                f"{ANNOTATIONS_NAME} has {count(self._state.bad_lines, 'line')} that cannot be read as records and are"
                f" left out; the first is {self._state.example}."
            )
        else:
            self._problems.pop("lines", None)

    def _new_lines(self, stamp: tuple[int, ...]) -> _Lines | None:
        """Compare annotations.jsonl with the index; None if so much is new that a new index is made sooner."""
        known = dict(self._select("SELECT digest, doc FROM sources"))
        most = max(_FEW_LINES, int(_NEW_SHARE * len(known)))
        lines = _Lines()
        if not stamp:
            return lines
        with self._annotations.open("rb", buffering=2**20) as file:
            for line in iter_lines(file, 0, stamp[1]):
                doc = known.get(digest_of(line.content)) if line.content else None
                if doc is None:
                    lines.new.append(line.start)
                else:
                    lines.kept[doc] = line.start
                if len(lines.new) > most:
                    return None
        return lines

    def _take_annotations(self, stamp: tuple[int, ...], lines: _Lines) -> None:
        """Take over what `_new_lines` has found."""
        bad_lines, example = 0, ""

        def indexed() -> Iterator[IndexedLine]:
            nonlocal bad_lines, example
            for start in lines.new:
                (line,) = iter_lines(file, start, start + 1)
                try:
                    yield line.read(self._state.next_doc)
                except BadLine as error:
                    if line.ended:
                        bad_lines += 1
                        example = example or f"the line at byte {line.start:,}: {error}"

        with self._annotations.open("rb") if stamp else open(os.devnull, "rb") as file:
            new = self._index_texts(indexed())
            with self._lock:
                assert self._file is not None
                os.dup2(file.fileno(), self._file)
                self._readers.expire()
        state = replace(self._state, stamp=stamp, bad_lines=bad_lines, example=example)
        gone = [
            doc
            for (doc,) in self._select("SELECT doc FROM sources WHERE file = ?", ANNOTATIONS)
            if doc not in lines.kept
        ]
        with self._transaction() as library:
            library.executemany("DELETE FROM sources WHERE doc = ?", zip(gone))
            moved = [(ANNOTATIONS, start, doc, start, ANNOTATIONS) for doc, start in lines.kept.items()]
            library.executemany(_MOVE, moved)
            replace_sources(library, new)
            save_state(library, state)
        self._state = state
        self._finished, self._ledger_stamp = {}, ()
        self._changed()

    def _follow_ledger(self) -> None:
        """Read the records of sources that a run finished since annotations.jsonl was written."""
        stamp = (*_stamp(self._ledger), *_stamp(self._ledger.with_name(f"{LEDGER_NAME}-wal")))
        if stamp == self._ledger_stamp:
            return
        if not self._ledger.exists():
            self._finished, self._ledger_stamp = {}, stamp
            return
        with LedgerReader(self._out) as ledger:
            changed = self._forget_and_find_changed(ledger)
            for first in range(0, len(changed), _SOURCES_AT_ONCE):
                if len(changed) > _FEW_LINES:
                    rest = count(len(changed) - first, "source")
                    self._problems["ledger"] = f"The index is not complete yet: {rest} are still to be read."
                some = changed[first : first + _SOURCES_AT_ONCE]
                self._take_records(ledger, [source for source, _ in some])
                self._finished |= dict(some)
        self._problems.pop("ledger", None)
        self._ledger_stamp = stamp

    def _forget_and_find_changed(self, ledger: LedgerReader) -> list[tuple[bytes, int]]:
        """Forget sources that the ledger does not know, and return the paths of those whose records have changed."""
        known = dict(self._select("SELECT id, fingerprint FROM sources"))
        changed, there = [], set()
        finished: dict[bytes, int] = {}
        for source in ledger.finished():
            facts = hash((*source[:-1], *sorted(source.settings.items())))
            path = source.path
            there.add(id_ := source_id(path))
            if self._finished.get(path) == facts or known.get(id_) == _fingerprint(source):
                finished[path] = facts
            else:
                changed.append((path, facts))
        self._finished = finished
        if gone := known.keys() - there:
            with self._transaction() as library:
                library.executemany("DELETE FROM sources WHERE id = ?", [[id_] for id_ in gone])
            self._changed()
        return changed

    def _take_records(self, ledger: LedgerReader, paths: Sequence[bytes]) -> None:
        """Index the records of some sources as the ledger has them now, and keep their lines in the journal."""

        def indexed() -> Iterator[IndexedLine]:
            start = os.lseek(self._journal, 0, os.SEEK_END)
            for path in paths:
                with suppress(KeyError, BadLine):  # it was forgotten meanwhile, or is too large
                    line = "".join(iter_line(ledger.record(os.fsdecode(path)), set())).encode()
                    yield read_line(line, doc=self._state.next_doc, file=JOURNAL, start=start)
                    start += _write_all(self._journal, line)

        new = self._index_texts(indexed())
        with self._transaction() as library:
            replace_sources(library, new)
        self._changed()

    def _index_texts(self, lines: Iterator[IndexedLine]) -> list[SourceRow]:
        """Add the texts of sources to the index, each under the next number, and return the rows of the sources."""
        rows = []
        texts = self._texts[-1]
        texts.execute("BEGIN IMMEDIATE")
        try:
            for line in lines:
                save_texts(texts, line.indexed())
                rows.append(line.row)
                self._state = replace(self._state, next_doc=self._state.next_doc + 1, docs=self._state.docs + 1)
        except BaseException:
            texts.execute("ROLLBACK")
            raise
        # A number is never used twice, also after a crash between the two databases.
        with self._transaction() as library:
            save_state(library, self._state)
        texts.execute("COMMIT")
        return rows

    def _changed(self) -> None:
        """Let readers see what is there now."""
        self.docs = frozenset(doc for (doc,) in self._select("SELECT doc FROM sources"))
        self.generation += 1

    def _select(self, statement: str, *values: Any) -> list[Any]:
        assert self._library
        return self._library.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._library
        self._library.execute("BEGIN IMMEDIATE")
        try:
            yield self._library
        except BaseException:
            self._library.execute("ROLLBACK")
            raise
        self._library.execute("COMMIT")


@dataclass
class _Lines:
    """A file of records compared with the index."""

    kept: dict[int, int] = field(default_factory=dict)
    """Where the lines of known sources begin, by the numbers of the sources."""
    new: list[int] = field(default_factory=list)
    """Where all other lines begin."""


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what differs after a file was written or replaced: its inode, size and time; empty for no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _fingerprint(source: FinishedSource) -> bytes:
    """Return the fingerprint that the record of a source has if nothing has changed."""
    error = source.error and SourceError(*map(escape_surrogates, source.error))
    settings = [source.settings.get(kind) for kind in ("captions", "clips", "shots", "transcript")]
    facts = escape_surrogates(source.name), source.bytes, source.sha256 or None, source.missing
    return fingerprint(*facts, *(error or (None, None)), *settings)


def _write_all(file: int, content: bytes) -> int:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    return len(content)
