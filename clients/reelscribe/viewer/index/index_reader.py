"""An index as a thread reads it: its databases, and the lines of records that they refer to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from reelscribe.viewer.index.databases import LIBRARY_NAME, open_database, open_journal, texts_name
from reelscribe.viewer.index.source_row import digest_of


class RecordChanged(Exception):
    """The record of a source is no longer where the index says; it will know better soon."""


@dataclass(eq=False)
class Build:
    """A build of an index. The number of a source names it in one build alone."""

    shards: int
    docs: frozenset[int] = frozenset()
    """The numbers of all sources; the index of texts may have others, which are gone."""


class Reader:
    """Open databases and files of an index, for one thread at a time."""

    def __init__(self, folder: Path, build: Build, annotations: int) -> None:
        """Open an index.

        Args:
            folder: Its folder.
            build: Which build of it is there.
            annotations: Descriptor of annotations.jsonl, which `close` closes.
        """
        self.build = build
        with ExitStack() as stack:
            stack.callback(os.close, annotations)
            journal = open_journal(folder)
            stack.callback(os.close, journal)
            self._files = (annotations, journal)
            self.library = stack.enter_context(closing(open_database(folder / LIBRARY_NAME)))
            """The table of sources."""
            names = map(texts_name, range(build.shards))
            self.texts = [stack.enter_context(closing(open_database(folder / name))) for name in names]
            """The tables of texts, in the order of the numbers of their texts."""
            self._opened = stack.pop_all()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let all reads of the table of sources in a block see what is there at the first one."""
        self.library.execute("BEGIN")
        try:
            yield
        finally:
            self.library.execute("ROLLBACK")

    def line(self, file: int, start: int, size: int, digest: bytes) -> bytes:
        """Return the line of a record.

        Args:
            file: The value of its row, as all others.
            start: Where it begins, in bytes.
            size: Its length in bytes.
            digest: Its digest.

        Raises:
            RecordChanged: The file has something else there.
        """
        content = os.pread(self._files[file], size, start)
        if digest_of(content) != digest:
            raise RecordChanged
        return content

    def close(self) -> None:
        """Close everything."""
        self._opened.close()


class Readers:
    """Open readers of an index, which threads borrow."""

    def __init__(self) -> None:
        """Begin without readers."""
        self._idle: SimpleQueue[tuple[int, Reader]] = SimpleQueue()
        self._epoch = 0

    @contextmanager
    def lend(self, open_reader: Callable[[], Reader]) -> Iterator[Reader]:
        """Lend a reader to this thread.

        Args:
            open_reader: Opens a reader, if none is idle.
        """
        epoch, reader = self._epoch, None
        with suppress(Empty):
            while reader is None:
                opened, idle = self._idle.get_nowait()
                if opened == epoch:
                    reader = idle
                else:
                    idle.close()
        reader = reader or open_reader()
        try:
            yield reader
        finally:
            if epoch == self._epoch:
                self._idle.put((epoch, reader))
            else:
                reader.close()

    def expire(self) -> None:
        """Close all readers, those that are lent when they come back: the index is another one now."""
        self._epoch += 1
        with suppress(Empty):
            while True:
                self._idle.get_nowait()[1].close()
