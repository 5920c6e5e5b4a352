"""The page of the library: the sources that fit a query, and the number of sources of each kind."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from functools import lru_cache

from reelscribe.viewer.index.queries import (
    DURATIONS,
    ValueCounts,
    common_folder_of,
    count_folders,
    count_values,
    find_sources,
    rows_in_order,
)
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails
from reelscribe.viewer.pages.parameters import LibraryQuery
from reelscribe.viewer.pages.views import Card, Choice, Counts, LibraryView, Site

CARDS_A_PAGE = 48
"""Number of sources on a page of the library."""

MOST_FOLDERS = 300
"""Largest number of folders that are listed. Whoever looks for one of more types a part of its name."""

_MOST_CHOICES = 100
_STATES = {"ok": "done", "error": "failed", "missing": "file is gone"}
_DURATION_LABELS = ("under 1 minute", "1 to 10 minutes", "10 to 60 minutes", "an hour and more")


class LibraryPage:
    """Makes pages of the library. Any thread may use it."""

    def __init__(self, index: SourceIndex, thumbnails: SourceThumbnails) -> None:
        self._index, self._thumbnails = index, thumbnails
        # What is found holds until sources change, so it is kept by the generation of the index.
        self._found = lru_cache(maxsize=16)(self._find)
        self._folders = lru_cache(maxsize=16)(self._count_folders)
        self._values = lru_cache(maxsize=1)(self._count_values)

    def view(self, site: Site, query: LibraryQuery) -> LibraryView:
        """Return what the library shows of a query.

        Args:
            site: What all pages have in common.
            query: The query; of a page after the last one, the last one is shown.
        """
        generation = self._index.generation
        values = self._values(generation)
        docs = self._found(generation, query.on_page(1))
        pages = max(1, -(-len(docs) // CARDS_A_PAGE))
        query = query.on_page(min(query.page, pages))
        with self._index.reader() as reader:
            common = common_folder_of(reader)
            rows = rows_in_order(reader, docs[(query.page - 1) * CARDS_A_PAGE : query.page * CARDS_A_PAGE])
        folders = self._folders(generation, query.folder)
        labels = dict(zip(DURATIONS, _DURATION_LABELS, strict=True))
        return LibraryView(
            site,
            query,
            cards=tuple(card_of(row, self._thumbnails.card_time(row), common) for row in rows),
            total=len(docs),
            all_sources=values.sources,
            pages=pages,
            folders=folders[:MOST_FOLDERS],
            folders_hidden=max(0, len(folders) - MOST_FOLDERS),
            states=tuple(Choice(value, label, values.states[value]) for value, label in _STATES.items()),
            languages=_choices(values.languages),
            errors=_choices(+values.errors),
            flags=_choices(values.flags),
            durations=tuple(Choice(value, label, values.durations[value]) for value, label in labels.items()),
        )

    def sources(self) -> int:
        """Return the number of all sources."""
        return self._values(self._index.generation).sources

    def errors(self) -> Counter[str]:
        """Return how many sources have an error of each type."""
        return self._values(self._index.generation).errors

    def _find(self, _: int, query: LibraryQuery) -> array[int]:
        with self._index.reader() as reader:
            return find_sources(reader, query)

    def _count_folders(self, _: int, folder: str) -> tuple[Choice, ...]:
        with self._index.reader() as reader:
            counted = count_folders(reader, folder)
        return tuple(Choice(os.path.join(folder, name), name, number) for name, number in counted)

    def _count_values(self, _: int) -> ValueCounts:
        with self._index.reader() as reader:
            return count_values(reader)


def card_of(row: SourceRow, thumbnail: float | None, common_folder: str) -> Card:
    """Return a source as the library shows it.

    Args:
        row: Its row in the index.
        thumbnail: The time of the thumbnail that stands for it; None if it has none.
        common_folder: Path of the deepest folder that holds all sources.
    """
    folder, name = os.path.split(row.path)
    return Card(
        id=row.id,
        name=name or row.path,
        folder=folder.removeprefix(common_folder).strip("/"),
        seconds=row.seconds,
        state="error" if row.state == "error" else "ok",
        missing=bool(row.missing),
        error_type=row.error_type,
        error=row.error,
        counts=Counts(row.captions, row.clips, row.segments, row.shots, row.failures),
        languages=tuple(row.languages.split()),
        flags=tuple(row.flags.split()),
        thumbnail=thumbnail,
        title=row.title,
    )


def _choices(counted: Counter[str]) -> tuple[Choice, ...]:
    return tuple(Choice(value, value, number) for value, number in counted.most_common(_MOST_CHOICES))
