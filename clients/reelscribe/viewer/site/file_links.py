"""The addresses of exported pages and of what lies beside them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlencode

from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery

SOURCES, THUMBNAILS, MEDIA, STATIC = "source", "thumbnails", "media", "static"
"""Folders of the site: pages of sources, their thumbnails, copies of their files, and style sheets and scripts."""


class FileLinks:
    """The addresses of exported files, relative to their folder; see `reelscribe.viewer.pages.links.Links`."""

    served = False

    def __init__(self) -> None:
        self.media_of: dict[str, str] = {}
        """The address of the file of each source that can be played, by the id of the source."""
        self.sections_of: dict[str, Sequence[float]] = {}
        """The times at which the sections of a source begin that has several pages, by its id."""
        self.static_names: set[str] = set()
        """The names of the style sheets and scripts to which pages refer."""

    def library(self, query: LibraryQuery) -> str:
        """Return the address of the library of all sources, or of that of those that failed.

        What else is asked is in the address; the script of the page reads it.
        """
        asked = [(name, value) for name, value in query.parameters() if name in ("q", "folder")]
        if asked:
            return f"index.html?{urlencode(asked, errors='replace')}"
        name = "failed" if query.state == "error" else "index" if query.page == 1 else "library"
        return f"{name}.html" if query.page == 1 else f"{name}-{query.page}.html"

    def search(self, query: SearchQuery, form: Literal["html", "csv", "json"] = "html") -> str:  # noqa: ARG002 - as served
        """Return the address of the search, whose script reads from the address what is searched."""
        parameters = query.parameters()
        return f"search.html?{urlencode(parameters, errors='replace')}" if parameters else "search.html"

    def source(self, source: str, seconds: float | None = None) -> str:
        """Return the address of the page of a source; of a long one, of the page that has the time."""
        starts = self.sections_of.get(source, ())
        number = max(1, bisect_right(starts, seconds)) if seconds is not None else 1
        address = page_address(source, number)
        return address if seconds is None else f"{address}#t={seconds:.3f}"

    def run(self) -> str:
        """Return the address of the library: a run is not exported."""
        return "index.html"

    def thumbnail(self, source: str, seconds: float) -> str:
        """Return the address of a thumbnail."""
        return f"{THUMBNAILS}/{source}/{thumbnail_name(seconds)}"

    def media(self, source: str) -> str:
        """Return the address of the file of a source that can be played."""
        return self.media_of[source]

    def preview(self, source: str) -> str:
        """Return the address of a preview; no view of an exported source has one."""
        raise LookupError(f"{source}: previews are not exported")

    def static(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        self.static_names.add(name)
        return f"{STATIC}/{name}"


def page_address(source: str, number: int) -> str:
    """Return the address of a page of a source.

    Args:
        source: The id of the source, 16 hexadecimal digits.
        number: Number of the page, from 1.
    """
    return f"{SOURCES}/{source}.html" if number == 1 else f"{SOURCES}/{source}-{number}.html"


def thumbnail_name(seconds: float) -> str:
    """Return the name of a thumbnail of a time.

    Args:
        seconds: Presentation time, in seconds.
    """
    return f"{round(seconds * 1000)}.webp"
