"""Makes the HTML of pages. Every text is escaped, and whatever could not be shown or would mislead is replaced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reelscribe.errors import CONTROL_CHARACTERS, REORDERING_CHARACTERS
from reelscribe.viewer.pages.drawings import film_strip, picture_starts, rate_chart, timeline_bars
from reelscribe.viewer.pages.links import Links
from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, SearchQuery
from reelscribe.viewer.pages.views import Card, LibraryView, RunView, SearchView, SourceView

STATIC = Path(__file__).parent / "static"
"""The folder of the style sheets and scripts of pages. All of its files are needed, and there are no folders in it."""

MOST_CHARACTERS = 10_000
"""Longest text on a page, in characters. What is longer is cut, and says so: a page with it all would not scroll."""

MOST_WORDS = 2000
"""Largest number of words of a line that are marked as they are said; people say no more in one segment."""

MOST_SPEAKERS = 100
"""Largest number of speakers that the form of a page names."""

RUNNING_SECONDS, RESTING_SECONDS = 3, 20
"""Seconds after which a page asks for what is new: while a run is going on, and otherwise."""

LABELS = {
    "captions": "Captions",
    "clips": "Clips",
    "shots": "Shots",
    "speakers": "Speakers",
    "summary": "Summary",
    "transcript": "Transcript",
    "translations": "Translation",
    "name": "Name",
    "longest": "Longest first",
    "shortest": "Shortest first",
    "failures": "Most failures first",
}
"""The names of kinds of tracks and of orders of the library, as users read them."""

# HTML can have neither surrogates nor what is no character.
_UNSHOWN = re.compile(f"[{CONTROL_CHARACTERS}{REORDERING_CHARACTERS}\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


class Renderer:
    """Makes pages, whose addresses of each other and of media are those of `links`."""

    def __init__(self, links: Links) -> None:
        """Prepare the templates.

        Args:
            links: Where things are.
        """
        self._links = links
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            shown=shown, label=label, ending=ending, uncut=uncut, clock=clock, seconds=exact_seconds, amount=amount
        )
        self._templates.globals.update(
            labels=LABELS,
            counted=counted,
            text_kinds=TEXT_KINDS,
            most_words=MOST_WORDS,
            most_speakers=MOST_SPEAKERS,
            query_of_error=lambda error: LibraryQuery(error=error),
            query_of_state=lambda state: LibraryQuery(state=state),
            query_of_folder=lambda folder: LibraryQuery(folder=folder),
            query_of_words=LibraryQuery,
            folders_of=folders_of,
            page_numbers=page_numbers,
        )

    def library(self, view: LibraryView) -> str:
        """Return the page of the library.

        Args:
            view: What it shows.
        """
        return self._page("library", view, "./", live=self._pause(bool(view.site.running)), filtered=_filtered(view))

    def card(self, card: Card) -> str:
        """Return what the page of the library has of a source.

        Args:
            card: The source.
        """
        macros = self._templates.get_template("macros.html").make_module({"link": RelativeLinks(self._links, "./")})
        return str(macros.source_card(card))  # type: ignore[attr-defined]  # a macro of the template

    def search(self, view: SearchView) -> str:
        """Return the page of the search.

        Args:
            view: What it shows.
        """
        return self._page("search", view, "./", live=self._pause(bool(view.site.running)))

    def source(self, view: SourceView) -> str:
        """Return the page of a source. It lies in a folder of the root.

        Args:
            view: What it shows.
        """
        live = self._pause(bool(view.site.running))
        watchable = view.playback.player != "none" or bool(view.tracks or view.thumbnails)
        starts = picture_starts(view, view.thumbnails)
        pictures = list(zip(view.thumbnails, starts, different_clocks(view.thumbnails), strict=True))
        drawings = {"lanes": timeline_bars(view), "film": film_strip(view), "pictures": pictures}
        return self._page("source", view, "../", live=live, watchable=watchable, **drawings)

    def run(self, view: RunView) -> str:
        """Return the page of the run.

        Args:
            view: What it shows.
        """
        return self._page("run", view, "./", live=self._pause(view.goes_on), chart=rate_chart(view.rates))

    def _page(self, name: str, view: Any, root: str, *, live: int, **values: Any) -> str:
        template = self._templates.get_template(f"{name}.html")
        links = RelativeLinks(self._links, root)
        return template.render(page=name, view=view, site=view.site, link=links, live=live, **values)

    def _pause(self, running: bool) -> int:
        """Return the seconds after which a page asks for what is new; 0 for never."""
        if not self._links.served:
            return 0
        return RUNNING_SECONDS if running else RESTING_SECONDS


class RelativeLinks:
    """The addresses of things as a page must write them that lies at the root, or in a folder of it."""

    def __init__(self, links: Links, root: str) -> None:
        """Describe where the page lies.

        Args:
            links: The addresses as seen from the root.
            root: The address of the root as seen from the page: "./" or "../".
        """
        self._links, self._root = links, root

    @property
    def served(self) -> bool:
        """True if a server answers."""
        return self._links.served

    def library(self, query: LibraryQuery | None = None) -> str:
        """Return the address of the library, by default with all sources."""
        return self._relative(self._links.library(query or LibraryQuery()))

    def search(self, query: SearchQuery | None = None, form: Literal["html", "csv", "json"] = "html") -> str:
        """Return the address of the search, by default with nothing searched."""
        return self._relative(self._links.search(query or SearchQuery(), form))

    def source(self, source: str, seconds: float | None = None) -> str:
        """Return the address of the page of a source."""
        return self._relative(self._links.source(source, seconds))

    def run(self) -> str:
        """Return the address of the page of the run."""
        return self._relative(self._links.run())

    def thumbnail(self, source: str, seconds: float) -> str:
        """Return the address of a thumbnail."""
        return self._relative(self._links.thumbnail(source, seconds))

    def media(self, source: str) -> str:
        """Return the address of the bytes of a source."""
        return self._relative(self._links.media(source))

    def preview(self, source: str) -> str:
        """Return the address of the preview of a source."""
        return self._relative(self._links.preview(source))

    def static(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        return self._relative(self._links.static(name))

    def _relative(self, address: str) -> str:
        return address if re.match(r"[a-z]+:", address) else self._root + address


def shown(text: str) -> str:
    """Return a text as it can be shown: characters that no screen shows, or that reorder others, become U+FFFD.

    Args:
        text: Any text. Of one that is longer than MOST_CHARACTERS, its beginning and its length are shown.
    """
    if len(text) > MOST_CHARACTERS:
        return label(text, MOST_CHARACTERS) + f" (cut; the whole text has {len(text):,} characters)"
    return uncut(text)


def uncut(text: str) -> str:
    """Return all of a text as it can be shown; for what is wrong without its end, such as a command.

    Args:
        text: Any text.
    """
    return _UNSHOWN.sub("\ufffd", text)


def label(text: str, most: int) -> str:
    """Return a text as it can be shown where there is little room.

    Args:
        text: Any text.
        most: Largest number of its characters; "…" stands for the others.
    """
    return uncut(text[:most]) + ("…" if len(text) > most else "")


def ending(text: str, most: int) -> str:
    """Return the end of a text, such as of a path whose last folders tell most, as it can be shown.

    Args:
        text: Any text.
        most: Largest number of its characters; "…" stands for the others.
    """
    return ("…" if len(text) > most else "") + uncut(text[-most:])


def folders_of(path: str) -> list[tuple[str, str]]:
    """Return the folders on the way to a folder and the folder itself: the name and the path of each.

    Args:
        path: Path of a folder below the folder of all sources.
    """
    names = path.split("/") if path else []
    return [(name, "/".join(names[: k + 1])) for k, name in enumerate(names)]


def page_numbers(page: int, pages: int) -> list[int | None]:
    """Return the numbers of the pages to which one links: the first, the last and its neighbours, with None for gaps.

    Args:
        page: The number of the page that is shown.
        pages: The number of all pages.
    """
    near = range(max(2, page - 2), min(pages - 1, page + 2) + 1)
    before = [None] if near and near[0] > 2 else []
    after = [None] if near and near[-1] < pages - 1 else []
    return [1, *before, *near, *after, pages]


def clock(seconds: float, decimals: int = 0) -> str:
    """Return a time as players show it, such as "0:12" or "1:02:03".

    Args:
        seconds: The time, which may be negative.
        decimals: Number of digits after the second, from 0 to 3.
    """
    whole, thousandths = divmod(int(abs(seconds) * 1000 + 0.001), 1000)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if seconds <= -1 else ""
    fraction = f".{thousandths:03}"[: decimals + 1] if decimals else ""
    return f"{sign}{hours}:{minutes:02}:{rest:02}{fraction}" if hours else f"{sign}{minutes}:{rest:02}{fraction}"


def different_clocks(times: Sequence[float]) -> list[str]:
    """Return times as players show them, with as many digits after the second as tell all of them apart, at most 3.

    Args:
        times: The times, in seconds.
    """
    for decimals in range(4):
        texts = [clock(time, decimals) for time in times]
        if len(set(texts)) == len(set(times)):
            break
    return texts


def exact_seconds(seconds: float) -> str:
    """Return a time in seconds to the millisecond, as scripts and addresses have it.

    Args:
        seconds: The time.
    """
    return f"{seconds:.3f}"


def amount(number: float) -> str:
    """Return a number with its thousands apart.

    Args:
        number: The number.
    """
    return f"{number:,}"


def counted(card: Card) -> list[tuple[int, str]]:
    """Return how many annotations of each kind a source has, and the name of the kind; kinds of which it has none miss.

    Args:
        card: The source.
    """
    counts = card.counts
    kinds = (
        (counts.captions, "caption"),
        (counts.clips, "clip"),
        (counts.segments, "segment"),
        (counts.shots, "shot"),
    )
    return [(number, noun if number == 1 else f"{noun}s") for number, noun in kinds if number]


def _filtered(view: LibraryView) -> Sequence[str]:
    """Return the names of the filters of a library that are set."""
    return [name for name, _ in view.query.parameters() if name not in ("sort", "page")]
