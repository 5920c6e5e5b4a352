"""The addresses of pages, media and thumbnails: the one thing in which a server and exported files differ."""

from __future__ import annotations

from typing import Literal, Protocol

from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery


class Links(Protocol):
    """Gives the address of everything that a page refers to.

    Each method returns an address relative to the root of the site, where the library is, or a whole address with a
    scheme. The page of a source lies in a folder of the root, as `source/0123456789abcdef`; all other pages lie in the
    root itself. The renderer makes addresses relative to the page that has them.
    """

    @property
    def served(self) -> bool:
        """True if a server answers, which filters, sorts, searches and knows of a run; files can do none of it."""

    def library(self, query: LibraryQuery) -> str:
        """Return the address of the library.

        Args:
            query: Which sources, in which order.
        """

    def search(self, query: SearchQuery, form: Literal["html", "csv", "json"] = "html") -> str:
        """Return the address of the search.

        Args:
            query: What is searched.
            form: "html" is the page; the others are the list of all hits as a file.
        """

    def source(self, source: str, seconds: float | None = None) -> str:
        """Return the address of the page of a source.

        Args:
            source: The id of the source, 16 hexadecimal digits.
            seconds: The presentation time to begin at, for the fragment `#t=12.345`; None for none.
        """

    def run(self) -> str:
        """Return the address of the page of the run."""

    def thumbnail(self, source: str, seconds: float) -> str:
        """Return the address of a thumbnail.

        Args:
            source: The id of the source.
            seconds: Its presentation time, exactly as the view gives it.
        """

    def media(self, source: str) -> str:
        """Return the address of the source's own bytes.

        Args:
            source: The id of the source.
        """

    def preview(self, source: str) -> str:
        """Return the address of the preview of a source that browsers cannot play, a small WebM.

        Args:
            source: The id of the source.
        """

    def static(self, name: str) -> str:
        """Return the address of a file of `static/`.

        Args:
            name: Its name, such as "pages.css".
        """
