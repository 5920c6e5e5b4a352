"""The list of all sources of a run over many machines, in a file, as a million names would fill the memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import islice
from threading import Event, Lock
from types import TracebackType
from typing import Self

from reelscribe.results.schema import path_key

NAMES_AT_ONCE = 1000
"""Number of names that are added to the list at once."""

_CREATE = "CREATE TABLE names (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, name BLOB NOT NULL)"
_ADD = "INSERT OR IGNORE INTO names (key, name) VALUES (?, ?)"
_READ = "SELECT number, name FROM names WHERE number > ? ORDER BY number LIMIT ?"


class Listing:
    """The sources of a run, each once. A thread finds them while the first of them are leased already.

    Use it as an async context manager. The first page of names is found before the block begins, so that a name that
    stands for nothing is told at once where it can be.
    """

    def __init__(self, sources: Iterable[str], on_more: Callable[[], None] = lambda: None) -> None:
        """Begin with an empty list.

        Args:
            sources: The paths as they are found; a path may come more than once, also in another spelling, and then
                the first one counts.
            on_more: Called when more sources are on the list, and when the list is complete.
        """
        self._sources, self._on_more = iter(sources), on_more
        self._lock = Lock()
        self._taken = 0
        """Number of the last name that was taken."""
        self._stopped = Event()
        self.count = 0
        """Number of sources so far."""
        self.is_complete = False
        """Whether no more sources will come."""

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            with tempfile.NamedTemporaryFile(prefix="reelscribe-sources-") as file:
                self._database = sqlite3.connect(file.name, isolation_level=None, check_same_thread=False)
                stack.callback(self._database.close)
                self._database.execute("SELECT 1 FROM sqlite_schema")  # opens the file, whose name goes with the block
            self._database.execute("PRAGMA journal_mode = OFF")  # nobody needs it after a crash
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute(_CREATE)
            self.is_complete = not await asyncio.to_thread(self._find_page)
            self._stack = stack.pop_all()
        self.finding = asyncio.create_task(self._find())
        """Ends when the list is complete; raises UsageError for a name that stands for nothing."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        await asyncio.gather(self.finding, return_exceptions=True)
        self._stack.close()

    def take(self, most: int) -> list[str]:
        """Return up to so many sources that were not taken yet; none if more are still to be found, or all are."""
        with self._lock:
            rows = self._database.execute(_READ, (self._taken, most)).fetchall()
        if rows:
            self._taken = rows[-1][0]
        return [os.fsdecode(name) for _, name in rows]

    @property
    def taken(self) -> int:
        """Number of sources that were taken so far."""
        return self._taken

    @property
    def is_used_up(self) -> bool:
        """Whether all sources have been taken."""
        return self.is_complete and self._taken >= self.count

    async def _find(self) -> None:
        while not (self.is_complete or self._stopped.is_set()):
            more = await asyncio.to_thread(self._find_page)
            self.is_complete = not more
            self._on_more()

    def _find_page(self) -> bool:
        """Add the next names. Returns whether there may be more."""
        names = list(islice(self._sources, NAMES_AT_ONCE))
        with self._lock:
            self._database.executemany(_ADD, ((path_key(name), os.fsencode(name)) for name in names))
            self.count = self._database.total_changes
        return len(names) == NAMES_AT_ONCE
