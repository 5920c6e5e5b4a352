"""An index as the one thread has it open that writes to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from reelscribe.viewer.index.databases import (
    LIBRARY_NAME,
    IndexState,
    open_database,
    open_journal,
    save_state,
    save_texts,
    texts_name,
)
from reelscribe.viewer.index.source_row import IndexedLine, SourceRow


class IndexWriter:
    """The databases and the journal of an index that is complete."""

    def __init__(self, folder: Path, state: IndexState) -> None:
        """Open an index.

        Args:
            folder: Its folder.
            state: What it was made of.

        Raises:
            OSError, sqlite3.Error: It cannot be opened.
        """
        self.state = state
        """The state of the index, which `add_texts` and the caller keep up to date."""
        with ExitStack() as stack:
            self._journal = open_journal(folder, write=True)
            stack.callback(os.close, self._journal)
            self._library = stack.enter_context(closing(open_database(folder / LIBRARY_NAME, write=True)))
            names = map(texts_name, range(state.shards))
            self._texts = [stack.enter_context(closing(open_database(folder / name, write=True))) for name in names]
            self._opened = stack.pop_all()
        self._path = folder / LIBRARY_NAME
        self._file = self._path.stat()

    @property
    def is_there(self) -> bool:
        """True while the index has its name, by which readers open it."""
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except OSError:  # also if something else has taken the place of its folder
            return False

    def close(self) -> None:
        """Close everything."""
        self._opened.close()

    def select(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of the library that a statement finds."""
        return self._library.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the library in a block; if it raises an exception, nothing is changed."""
        with _transaction(self._library):
            yield self._library

    def add_texts(self, lines: Iterable[IndexedLine]) -> list[SourceRow]:
        """Add the texts of sources to the index, and return the rows of the sources.

        Args:
            lines: The sources. Each has the number `state.next_doc` at the time when it is asked for.
        """
        rows = []
        with _transaction(self._texts[-1]) as texts:
            for line in lines:
                save_texts(texts, line.indexed())
                rows.append(line.row)
                self.state = replace(self.state, next_doc=self.state.next_doc + 1, docs=self.state.docs + 1)
            # A number is never used twice, also after a crash between the two databases.
            with self.transaction() as library:
                save_state(library, self.state)
        return rows

    @contextmanager
    def journal(self) -> Iterator[None]:
        """Append to the journal in a block; if it raises an exception, nothing of it is kept."""
        start = os.lseek(self._journal, 0, os.SEEK_END)
        try:
            yield
        except BaseException:
            os.ftruncate(self._journal, start)
            raise

    def journal_end(self) -> int:
        """Return the size of the journal in bytes."""
        return os.lseek(self._journal, 0, os.SEEK_END)

    def append(self, line: bytes) -> None:
        """Append a record to the journal."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._journal, rest) :]

    def empty_journal(self) -> None:
        """Delete all records of the journal."""
        os.ftruncate(self._journal, 0)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        # Some errors, such as that of a full disk, have ended the transaction already.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
