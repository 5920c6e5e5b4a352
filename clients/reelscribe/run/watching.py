"""Waiting for sources that appear while nobody runs the command again.

What the names of a run stand for is looked for again and again. That works for folders of other machines and for stores
as well as for local disks. inotify knows nothing of the former, loses events where there are many, and would need the
same search after each of them; a search of 10,000 files takes 0.14 s.
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
from collections.abc import Collection
from contextlib import closing
from itertools import islice

from reelscribe.errors import UsageError
from reelscribe.results.schema import path_key
from reelscribe.run.file_search import Names, Selection, find_sources, with_stats
from reelscribe.storage.address import file_of, is_stored
from reelscribe.storage.stores import Stores

LOOK_SECONDS = 5.0
"""Seconds between two searches of folders of this machine."""

LOOK_IN_STORES_SECONDS = 60.0
"""Seconds between two searches that ask a store."""

REST_SECONDS = 10.0
"""Seconds for which nobody must have written to a file until it is taken. An object in a store appears whole."""

RETRY_SECONDS = 60.0
"""Seconds until a run is begun again that could not begin."""

_AT_ONCE = 512
"""Number of sources whose versions are asked for at once."""

_LOOKING_SHARE = 0.05
"""Largest part of the time that is spent on searching, where folders are so large that a search takes long."""


class Watch:
    """Notices new sources, new versions of old ones, and other rows of lists for them."""

    def __init__(self, names: Names, suffixes: Collection[str], selection: Selection) -> None:
        """Know no source yet.

        Args:
            names: Files, folders, globs, addresses and lists.
            suffixes: Endings of media files in lower case.
            selection: Which of the sources are taken; it should let files rest.

        Raises:
            UsageError: A name can never stand for a source that appears.
        """
        for name in names:
            if isinstance(name, str) and not (is_stored(name) or glob.has_magic(name) or os.path.lexists(name)):
                raise UsageError(f"{name!r}: expected a folder, a glob or an address to watch, found nothing there")
        self._names, self._suffixes, self._selection = names, suffixes, selection
        self._known: set[int] = set()
        """The hash of each source with its version and its row of a list, as many of them have to fit into memory."""
        self._pause = 0.0

    async def wait(self) -> None:
        """Wait until there is a source that was not there when this returned last, or another version of one.

        Raises:
            UsageError: A list or an address cannot be used.
            MediaError: A store cannot be listed.
        """
        while True:
            await asyncio.sleep(self._pause)
            if await asyncio.to_thread(self._has_changed):
                return

    def look_again(self) -> None:
        """Let `wait` return once more after a minute, as nothing came of what was new."""
        self._known.clear()
        self._pause = max(self._pause, RETRY_SECONDS)

    def _has_changed(self) -> bool:
        began, asks_stores = time.monotonic(), False
        versions: set[int] = set()
        with closing(Stores()) as stores:
            sources = filter(self._selection.takes, find_sources(self._names, self._suffixes, stores))
            while page := list(islice(sources, _AT_ONCE)):
                asks_stores = asks_stores or any(file_of(each.path) is None for each in page)
                for each in with_stats(page, stores):
                    versions.add(hash((path_key(each.path), each.stat, each.extra)))
        least = LOOK_IN_STORES_SECONDS if asks_stores else LOOK_SECONDS
        self._pause = max(least, (time.monotonic() - began) / _LOOKING_SHARE)
        is_new = not versions <= self._known
        self._known = versions
        return is_new
