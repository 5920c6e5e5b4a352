"""The index of a folder of results: built, opened, and kept up to date with annotations.jsonl and the ledger."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Self

from reelscribe._files import regular_file
from reelscribe.errors import OutputError, printable
from reelscribe.reporting.formatting import count
from reelscribe.results.annotations import NAME as ANNOTATIONS_NAME
from reelscribe.results.annotations import iter_line
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.schema import NAME as LEDGER_NAME
from reelscribe.viewer.index.building import Stopped, build, iter_lines, stop_building
from reelscribe.viewer.index.changes import ComparedLines, compare_lines, fingerprint_of, stamp_of
from reelscribe.viewer.index.databases import (
    ANNOTATIONS,
    JOURNAL,
    LIBRARY_NAME,
    NAME,
    IndexState,
    check_tables,
    is_damage,
    open_database,
    replace_sources,
    save_state,
)
from reelscribe.viewer.index.index_reader import Build, Reader, Readers
from reelscribe.viewer.index.index_writer import IndexWriter
from reelscribe.viewer.index.source_row import BadLine, IndexedLine, read_line, source_id

_FAILED = "The index cannot be brought up to date"
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
        self._out, self._folder, self._new = out, folder, folder / "new"
        self._annotations, self._ledger = out / ANNOTATIONS_NAME, out / LEDGER_NAME
        self._readers = Readers()
        self._lock = Lock()
        self._file: int | None = None
        self._opened: IndexWriter | None = None
        self._build = Build(0)
        self._finished: dict[bytes, int] = {}
        self._unreadable: dict[bytes, str] = {}
        """The reasons why the ledger's records of some sources are left out, by the paths of the sources."""
        self._ledger_stamp: tuple[int, ...] = ()
        self._problems: dict[str, str] = {}
        self._wanted, self._ended = Event(), Event()
        self._damaged = False
        """True if the index cannot be read any more, and is built anew by the next refresh."""
        self.generation = 0
        """Grows whenever sources have changed."""

    def __enter__(self) -> Self:
        try:
            try:
                self._use(check_tables(self._folder / NAME))
            except (OSError, sqlite3.Error, ValueError, KeyError, OutputError):
                self._rebuild()
            self.attempt("annotations", f"{_FAILED} with {ANNOTATIONS_NAME}", self._follow_annotations)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def docs(self) -> frozenset[int]:
        """The numbers of all sources."""
        return self._build.docs

    @property
    def notices(self) -> tuple[str, ...]:
        """Whole sentences about what is not as expected."""
        return tuple(self._problems.values())

    def refresh(self) -> bool:
        """Bring the index up to date, and return whether anything has changed.

        Problems are in `notices` until the next refresh that goes well.
        """
        before = self.generation
        self._damaged |= self._opened is not None and not self._opened.is_there
        if self._damaged:
            self.attempt("index", _FAILED, self._rebuild)
        if not self._damaged:
            self.attempt("annotations", f"{_FAILED} with {ANNOTATIONS_NAME}", self._follow_annotations)
        if not self._damaged:
            self.attempt("ledger", f"{_FAILED} with {LEDGER_NAME}", self._follow_ledger)
        if not self._damaged and self.generation != before:
            self.attempt("journal", _FAILED, self._shorten_journal)
        return self.generation != before

    def attempt(self, name: str, failed: str, action: Callable[[], object]) -> bool:
        """Run an action, and return whether it went well; nothing is raised.

        Its problem is in `notices` until it goes well.

        Args:
            name: A name of the action, under which its problem is kept.
            failed: The sentence that says what is not done if it fails, without its period.
            action: The action.
        """
        if self._ended.is_set():
            return False
        try:
            action()
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - a thread that ends would leave the pages as they are, without a word
            self._damaged |= is_damage(error)
            known = isinstance(error, (sqlite3.Error, OSError, OutputError))
            self._problems[name] = f"{failed}: {error if known else repr(error)}."
        else:
            self._problems.pop(name, None)
            return True
        return False

    def refresh_soon(self) -> None:
        """Note that what was read does not fit the index any more."""
        self._wanted.set()

    def wait(self, seconds: float) -> None:
        """Wait until the next refresh is due: so many seconds, or until `refresh_soon` or `stop`.

        Args:
            seconds: Longest time to wait, in seconds.
        """
        if self._wanted.wait(seconds):
            self._wanted.clear()

    def stop(self) -> None:
        """Let `refresh` and `wait` end soon, whatever they do, and do nothing any more. Any thread may call it."""
        self._ended.set()
        self._wanted.set()
        stop_building(self._new)

    @property
    def stopped(self) -> bool:
        """True after `stop` was called."""
        return self._ended.is_set()

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Lend an open reader to this thread. Raises OutputError in a block that finds the index damaged."""
        try:
            with self._readers.lend(self._open_reader) as reader:
                yield reader
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._damaged = True
            self._problems["index"] = "The index is damaged, and is being built anew."
            self.refresh_soon()
            raise OutputError(f"the index is damaged ({error}), and is being built anew; try again") from error

    def _open_reader(self) -> Reader:
        with self._lock:
            if self._file is None:
                raise OutputError("there is no index now, because building it anew has failed; it is tried again")
            if not self._writer.is_there:
                self.refresh_soon()
                raise OutputError(f"{self._folder / NAME} was deleted, and is being built anew; try again")
            return Reader(self._folder / NAME, self._build, os.dup(self._file))

    @property
    def _writer(self) -> IndexWriter:
        if self._opened is None:
            raise OutputError("there is no index")
        return self._opened

    def close(self) -> None:
        """Close everything, also the readers that are lent when they come back."""
        self._readers.expire()
        if self._opened:
            self._opened.close()
        if self._file is not None:
            os.close(self._file)
        self._opened = self._file = None

    def _use(self, state: IndexState) -> None:
        """Open the databases of an index that is complete, to write to them."""
        # The file is only read where digests say so; if it is another one by now, the next refresh will find that.
        self._file = self._open_annotations(state.stamp)
        self._opened = IndexWriter(self._folder / NAME, state)
        self._build = Build(state.shards)
        self._finished, self._ledger_stamp = {}, ()
        self._changed()

    def _open_annotations(self, stamp: tuple[int, ...]) -> int:
        return regular_file(self._annotations, os.O_RDONLY) if stamp else os.open(os.devnull, os.O_RDONLY)

    def _rebuild(self) -> None:
        """Build the index anew from annotations.jsonl, and use it; the earlier one is used until then."""
        old = self._folder / "old"
        for folder in (self._new, old):
            shutil.rmtree(folder, ignore_errors=True)
        self._new.mkdir()
        try:
            self._check_stop()
            stamp = stamp_of(self._annotations)
            built = build(self._annotations if stamp else None, stamp[1] if stamp else 0, self._new)
            state = IndexState(stamp, built.shards, built.next_doc, built.docs, built.bad_lines, built.example)
            with closing(open_database(self._new / LIBRARY_NAME, write=True)) as library:
                save_state(library, state)
            with self._lock:
                self._replace(old, state)
        finally:
            for folder in (self._new, old):
                shutil.rmtree(folder, ignore_errors=True)

    def _replace(self, old: Path, state: IndexState) -> None:
        """Use the new index; if that fails, the earlier one, until the next refresh."""
        folder, earlier = self._folder / NAME, self._opened and self._opened.state
        was_damaged, self._damaged = self._damaged, True
        self.close()  # while the files have their names, by which SQLite deletes its logs
        with suppress(FileNotFoundError):
            folder.rename(old)
        try:
            self._new.rename(folder)
            self._use(state)
        except BaseException:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError, sqlite3.Error):
                old.rename(folder)
                if earlier and not was_damaged:
                    self._use(earlier)
                    self._damaged = False
            if self._damaged:
                self.close()
            raise
        self._damaged = False

    def _check_stop(self) -> None:
        if self._ended.is_set():
            raise Stopped

    def _follow_annotations(self) -> None:
        """Read what is new in annotations.jsonl, and forget what is there no more."""
        stamp = stamp_of(self._annotations)
        if stamp != self._writer.state.stamp:
            known = dict(self._writer.select("SELECT digest, doc FROM sources"))
            most = max(_FEW_LINES, int(_NEW_SHARE * len(known)))
            lines = compare_lines(self._annotations, stamp, known, most, self._check_stop)
            if lines is None or self._writer.state.docs > 2 * len(self.docs) + _FEW_LINES:
                self._rebuild()
            else:
                self._take_annotations(stamp, lines)
        state = self._writer.state
        problem = f"{count(state.bad_lines, 'line')} that cannot be read as records; the first is {state.example}"
        self._set_problem("lines", f"{ANNOTATIONS_NAME} has {problem}." if state.bad_lines else "")

    def _set_problem(self, name: str, problem: str) -> None:
        """Set the problem that `notices` has under a name; an empty one removes it."""
        if problem:
            self._problems[name] = problem
        else:
            self._problems.pop(name, None)

    def _take_annotations(self, stamp: tuple[int, ...], lines: ComparedLines) -> None:
        """Take over what `_new_lines` has found."""
        bad_lines, example, writer = 0, "", self._writer

        def indexed() -> Iterator[IndexedLine]:
            nonlocal bad_lines, example
            for start in lines.new:
                self._check_stop()
                (line,) = iter_lines(file, start, start + 1)
                try:
                    yield line.read(writer.state.next_doc)
                except BadLine as error:
                    if line.ended:
                        bad_lines += 1
                        example = example or f"the line at byte {line.start:,}: {error}"

        with open(self._open_annotations(stamp), "rb") as file:
            new = writer.add_texts(indexed())
            with self._lock:
                assert self._file is not None
                os.dup2(file.fileno(), self._file)
                self._readers.expire()
        state = replace(writer.state, stamp=stamp, bad_lines=bad_lines, example=example)
        there = writer.select("SELECT doc FROM sources WHERE file = ?", ANNOTATIONS)
        with writer.transaction() as library:
            library.executemany("DELETE FROM sources WHERE doc = ?", [row for row in there if row[0] not in lines.kept])
            moved = [(ANNOTATIONS, start, doc, start, ANNOTATIONS) for doc, start in lines.kept.items()]
            library.executemany(_MOVE, moved)
            replace_sources(library, new)
            save_state(library, state)
        writer.state = state
        self._finished, self._ledger_stamp = {}, ()
        self._changed()

    def _follow_ledger(self) -> None:
        """Read the records of sources that a run finished since annotations.jsonl was written."""
        stamp = (*stamp_of(self._ledger), *stamp_of(self._ledger.with_name(f"{LEDGER_NAME}-wal")))
        if stamp == self._ledger_stamp:
            return
        if self._ledger.exists():
            with LedgerReader(self._out) as ledger:
                changed = self._forget_and_find_changed(ledger)
                for first in range(0, len(changed), _SOURCES_AT_ONCE):
                    self._check_stop()
                    if len(changed) > _FEW_LINES:
                        rest = count(len(changed) - first, "source")
                        self._set_problem("ledger", f"The index is not complete yet: {rest} are still to be read.")
                    some = changed[first : first + _SOURCES_AT_ONCE]
                    self._take_records(ledger, [source for source, _ in some])
                    self._finished |= dict(some)
        else:
            self._finished, self._unreadable = {}, {}
        self._ledger_stamp = stamp
        problem = ""
        for path, reason in list(self._unreadable.items())[:1]:
            sources = count(len(self._unreadable), "source")
            example = printable(os.fsdecode(path))
            problem = f"{LEDGER_NAME} has {sources} whose results cannot be read; the first is {example}: {reason}."
        self._set_problem("records", problem)

    def _forget_and_find_changed(self, ledger: LedgerReader) -> list[tuple[bytes, int]]:
        """Forget sources that the ledger does not know, and return the paths of those whose records have changed."""
        known = dict(self._writer.select("SELECT id, fingerprint FROM sources"))
        changed, there = [], set()
        finished: dict[bytes, int] = {}
        for source in ledger.finished():
            facts = hash((*source[:-1], *sorted(source.settings.items())))
            path = source.path
            there.add(id_ := source_id(path))
            if self._finished.get(path) == facts or known.get(id_) == fingerprint_of(source):
                finished[path] = facts
            else:
                changed.append((path, facts))
        self._finished = finished
        self._unreadable = {path: reason for path, reason in self._unreadable.items() if path in finished}
        if gone := known.keys() - there:
            with self._writer.transaction() as library:
                library.executemany("DELETE FROM sources WHERE id = ?", [[id_] for id_ in gone])
            self._changed()
        return changed

    def _take_records(self, ledger: LedgerReader, paths: Sequence[bytes]) -> None:
        """Index the records of some sources as the ledger has them now, and keep their lines in the journal."""
        writer = self._writer
        unreadable: dict[bytes, str] = {}

        def indexed() -> Iterator[IndexedLine]:
            for path in paths:
                self._check_stop()
                try:
                    line = "".join(iter_line(ledger.record(os.fsdecode(path)), set())).encode()
                    read = read_line(line, doc=writer.state.next_doc, file=JOURNAL, start=writer.journal_end())
                except KeyError:  # it was forgotten meanwhile
                    continue
                except (BadLine, OutputError, ValueError) as error:
                    unreadable[path] = str(error)
                    continue
                writer.append(line)
                yield read

        with writer.journal():
            new = writer.add_texts(indexed())
            with writer.transaction() as library:
                library.executemany("DELETE FROM sources WHERE id = ?", [[source_id(path)] for path in unreadable])
                replace_sources(library, new)
        self._unreadable |= unreadable
        self._changed()

    def _shorten_journal(self) -> None:
        """Empty the journal if annotations.jsonl has all of its records by now."""
        if not self._writer.select("SELECT 1 FROM sources WHERE file = ? LIMIT 1", JOURNAL):
            self._writer.empty_journal()

    def _changed(self) -> None:
        """Let readers see what is there now."""
        self._build.docs = frozenset(doc for (doc,) in self._writer.select("SELECT doc FROM sources"))
        self.generation += 1
