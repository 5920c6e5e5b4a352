"""The library of exported pages: cards of all sources, and of those that failed, on as many pages as they need."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

from reelscribe.viewer.pages.parameters import LibraryQuery
from reelscribe.viewer.pages.views import Card, Choice, LibraryView, Site

CARDS_A_PAGE = 96
"""Number of sources on a page."""


class CardFile:
    """Keeps the cards of all sources in a file without a name until all are known. Use it as a context manager."""

    def __init__(self) -> None:
        self._file = TemporaryFile(prefix="reelscribe-cards-")  # noqa: SIM115 - `__exit__` closes it
        self.total = self.failed = 0
        """Numbers of sources."""
        self._folders = Counter[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, card: Card) -> None:
        """Keep a card.

        Args:
            card: The card of the next source.
        """
        pickle.dump(card, self._file)
        self.total += 1
        self.failed += card.state == "error"
        if card.folder:
            self._folders[card.folder.partition("/")[0]] += 1

    def views(self, site: Site, query: LibraryQuery) -> Iterator[LibraryView]:
        """Yield the pages of the library, at least one.

        Args:
            site: What all pages have in common.
            query: Its state is "error" for the sources that failed, or empty for all.
        """
        total = self.failed if query.state else self.total
        pages = max(1, -(-total // CARDS_A_PAGE))
        states = (Choice("", "All", self.total), Choice("error", "Failed", self.failed)) if self.failed else ()
        folders = (
            () if query.state else tuple(Choice(name, name, self._folders[name]) for name in sorted(self._folders))
        )
        cards = (card for card in self._cards() if query.state in ("", card.state))
        for page in range(1, pages + 1):
            some = tuple(islice(cards, CARDS_A_PAGE))
            yield LibraryView(site, query.on_page(page), some, total, self.total, pages, folders, states=states)

    def _cards(self) -> Iterator[Card]:
        self._file.seek(0)
        for _ in range(self.total):
            yield pickle.load(self._file)  # noqa: S301 - this object has written it, and nobody else can open it
