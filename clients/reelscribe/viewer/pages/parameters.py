"""Queries of users as parameters of addresses, in both directions: those of the library, and those of the search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, get_args

Sort = Literal["name", "longest", "shortest", "failures"]
"""Orders of the library: by path, by duration in both directions, and most failures first."""

TextKind = Literal["summary", "captions", "clips", "transcript"]
"""Kinds of text that are searched."""

TEXT_KINDS: tuple[TextKind, ...] = get_args(TextKind)

MOST_CHARACTERS = 500
"""Longest value of a parameter, in characters. What is longer is cut."""

MOST_PATH_CHARACTERS = 4096
"""Longest path of a folder, in characters."""

MOST_PAGE = 10**9
"""Largest number of a page."""


@dataclass(frozen=True)
class LibraryQuery:
    """A choice of sources and their order. Each field is a parameter of the address; "" means all."""

    q: str = ""
    """Parts of the folder, the name and the tags of a source, with spaces between them, in any order."""
    folder: str = ""
    """Path of the folder that has it, or that is above it, below the folder of all sources, such as "2024/beach"."""
    state: str = ""
    """A state of `reelscribe.viewer.pages.views.Card`, or "missing"."""
    language: str = ""
    """Code of a language of the transcript."""
    error: str = ""
    """Type of the error, such as "MediaError"."""
    flag: str = ""
    """A flag of a caption or clip, such as "repetition"."""
    duration: str = ""
    """Range of durations in seconds, such as "60-600" or "3600-", with the second limit left out of the range."""
    sort: Sort = "name"
    """The order."""
    page: int = 1
    """Number of the page, from 1."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """Read the parameters of an address. What makes no sense there counts as not given.

        Args:
            parameters: The decoded parameters; others than those of this class are ignored.
        """
        texts = {
            name: _cut(parameters.get(name, "")) for name in ("q", "state", "language", "error", "flag", "duration")
        }
        folder = parameters.get("folder", "")[:MOST_PATH_CHARACTERS]
        order = parameters.get("sort", "")
        sort: Sort = next((known for known in get_args(Sort) if known == order), "name")
        return cls(**texts, folder=folder, sort=sort, page=_page(parameters.get("page", "")))

    def parameters(self) -> list[tuple[str, str]]:
        """Return the parameters that differ from their defaults, in order."""
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return [(name, str(value)) for name, value, default in values if value != default]

    def on_page(self, page: int) -> Self:
        """Return the same query for another page.

        Args:
            page: Number of the page, from 1.
        """
        return replace(self, page=page)

    def words(self) -> list[str]:
        """Return the parts of what a source is found by. Quotes and stars, which mean something in a search, do not."""
        return re.findall(r'[^\s"*]+', self.q)

    def seconds(self) -> tuple[float, float | None]:
        """Return the range of durations: the shortest, and the limit that none reaches, or None."""
        low, _, high = self.duration.partition("-")
        return float(_digits(low) or 0), float(high) if _digits(high) else None


@dataclass(frozen=True)
class SearchQuery:
    """A search. Each field is a parameter of the address."""

    q: str = ""
    """Words that must all occur; "phrases in quotes", and beginnings of words, as in stop*."""
    kinds: tuple[TextKind, ...] = TEXT_KINDS
    """The kinds of text, at least one, in the order of TEXT_KINDS; each a parameter `kind`."""
    page: int = 1
    """Number of the page, from 1."""

    @classmethod
    def from_parameters(cls, parameters: Sequence[tuple[str, str]]) -> Self:
        """Read the parameters of an address. What makes no sense there counts as not given.

        Args:
            parameters: The decoded parameters in order, as `kind` may occur several times.
        """
        single = dict(parameters)
        asked = {value for name, value in parameters if name == "kind"}
        kinds = tuple(kind for kind in TEXT_KINDS if kind in asked) or TEXT_KINDS
        return cls(_cut(single.get("q", "")), kinds, _page(single.get("page", "")))

    def parameters(self) -> list[tuple[str, str]]:
        """Return the parameters that differ from their defaults, in order."""
        kinds = [] if self.kinds == TEXT_KINDS else [("kind", kind) for kind in self.kinds]
        page = [] if self.page == 1 else [("page", str(self.page))]
        return [*([("q", self.q)] if self.q else []), *kinds, *page]

    def on_page(self, page: int) -> Self:
        """Return the same query for another page.

        Args:
            page: Number of the page, from 1.
        """
        return replace(self, page=page)


def _cut(text: str) -> str:
    return text.strip()[:MOST_CHARACTERS]


def _digits(text: str) -> str:
    return text if text.isascii() and text.isdigit() and len(text) <= 12 else ""


def _page(text: str) -> int:
    return min(max(1, int(_digits(text) or 1)), MOST_PAGE)
