"""The addresses of what `reelscribe browse` serves, relative to the token at the beginning of every path."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlencode

from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery


class ServerLinks:
    """The addresses that the server of `reelscribe browse` answers; see `reelscribe.viewer.pages.links.Links`."""

    served = True

    def library(self, query: LibraryQuery) -> str:
        """Return the address of the library, which is the root."""
        return _with("", query.parameters())

    def search(self, query: SearchQuery, form: Literal["html", "csv", "json"] = "html") -> str:
        """Return the address of the search as a page, or as a list of hits."""
        return _with("search" if form == "html" else f"search.{form}", query.parameters())

    def source(self, source: str, seconds: float | None = None) -> str:
        """Return the address of the page of a source; the server needs the time to choose the section with it."""
        return f"source/{source}" + ("" if seconds is None else f"?t={seconds:.3f}#t={seconds:.3f}")

    def run(self) -> str:
        """Return the address of the page of the run."""
        return "run"

    def thumbnail(self, source: str, seconds: float) -> str:
        """Return the address of a thumbnail."""
        return f"thumbnail/{source}/{round(seconds * 1000)}.webp"

    def media(self, source: str) -> str:
        """Return the address of the bytes of a source."""
        return f"media/{source}"

    def preview(self, source: str) -> str:
        """Return the address of the preview of a source."""
        return f"preview/{source}.webm"

    def static(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        return f"static/{name}"


def _with(path: str, parameters: list[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(parameters, errors='replace')}" if parameters else path
