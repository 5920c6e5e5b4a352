"""What a thread reads of an index: its databases, and the lines of records that they refer to."""

from __future__ import annotations

import os
from pathlib import Path

from reelscribe.browse.index.lines import digest_of
from reelscribe.browse.index.tables import JOURNAL_NAME, LIBRARY_NAME, open_database, texts_name


class RecordChanged(Exception):
    """The record of a source is no longer where the index says; it will know better soon."""


class Reader:
    """Open databases and files of an index, for one thread at a time."""

    def __init__(self, folder: Path, shards: int, epoch: int, annotations: int) -> None:
        self.epoch = epoch
        self._files = (annotations, os.open(folder / JOURNAL_NAME, os.O_RDONLY))
        self.library = open_database(folder / LIBRARY_NAME)
        """The table of sources."""
        self.texts = [open_database(folder / texts_name(shard)) for shard in range(shards)]
        """The tables of texts, in the order of the numbers of their texts."""

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
        for database in (self.library, *self.texts):
            database.close()
        for file in self._files:
            os.close(file)
