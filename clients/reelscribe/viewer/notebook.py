"""The display of a source in notebooks: a strip of thumbnails with text, as HTML that stands alone.

All text is escaped, pictures are data: URLs, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, TypeVar

from reelscribe.contract.outcomes import timed_html
from reelscribe.contract.source import Source, content_name
from reelscribe.errors import MediaError, printable
from reelscribe.storage.address import is_stored
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails

MOST_CELLS = 12
"""Largest number of pictures, or of lines, in a strip."""

MOST_CHARACTERS = 300
"""Largest number of characters of a text."""

T = TypeVar("T")


class Moment(NamedTuple):
    """A text and when it is shown or said."""

    seconds: float
    """Presentation time, in seconds."""
    text: str


def strip(
    source: Source, path: str, moments: Iterable[Moment], *, folder: Path | None = None, notes: Sequence[str] = ()
) -> str:
    """Return a strip of thumbnails with text.

    Args:
        source: The source. If its size is known, no pictures are made of a file of another size.
        path: Absolute path of its file, or its address.
        moments: What is shown or said at which time, in the order of time. There may be too many for memory.
        folder: Output folder of the run, whose thumbnails are used; None if there is none, so that some are made.
        notes: Sentences below the name.

    Returns:
        HTML. Where there are no pictures, because the file is gone or has none, it is text alone.
    """
    chosen = _evenly(moments)
    pictures, why_none = _pictures(source, path, [moment.seconds for moment in chosen], folder)
    if pictures:
        cells = [_cell(seconds, webp, _text_at(seconds, chosen)) for seconds, webp in pictures]
    else:
        cells = [f"<div>{_line(*moment)}</div>" for moment in chosen]
    lines = [f"<b>{_text(source.path)}</b>", *map(_text, [*notes, *([why_none] if why_none else [])])]
    head = "".join(f"<div>{line}</div>" for line in lines)
    body = "".join(cells)
    style = "display:flex;flex-wrap:wrap;gap:8px" if pictures else "overflow-wrap:anywhere"
    return f'<div>{head}<div style="{style}">{body}</div></div>'


def _text(text: str) -> str:
    shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    return f"<bdi>{escape(printable(shown))}</bdi>"


def _line(seconds: float, text: str) -> str:
    """Return a time and a text, as a result alone is shown."""
    shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    return timed_html(seconds, shown)


def _cell(seconds: float, webp: bytes, text: str) -> str:
    image = f'<img alt="" style="max-width:160px" src="data:image/webp;base64,{b64encode(webp).decode()}">'
    return f'<div style="width:160px;overflow-wrap:anywhere">{image}<div>{_line(seconds, text)}</div></div>'


def _text_at(seconds: float, moments: Sequence[Moment]) -> str:
    """Return the text of the moment that is nearest to a time."""
    return min(moments, key=lambda moment: abs(moment.seconds - seconds)).text if moments else ""


def _pictures(
    source: Source, path: str, times: Sequence[float], folder: Path | None
) -> tuple[list[tuple[float, bytes]], str | None]:
    """Return the thumbnails of a source, few of them, and why there are none."""
    if folder and source.sha256:
        store = ThumbnailStore(folder)
        name = content_name(source.sha256)
        found = [(time, webp) for time in _evenly(store.times(name)) if (webp := store.read(name, time))]
        if found:
            return found, None
    if is_stored(path):
        return [], "There are no pictures, because the run kept none, and the source is in a store."
    try:
        if not os.path.isfile(path):
            return [], "There are no pictures, because the file is gone."
        if source.bytes not in (None, os.path.getsize(path)):
            return [], "There are no pictures, because the file was changed."
        return list(make_thumbnails(Path(path), times or None)), None
    except (MediaError, OSError) as error:
        return [], f"There are no pictures: {error}."


def _evenly(items: Iterable[T]) -> list[T]:
    """Return up to MOST_CELLS items, about evenly chosen, without holding more than twice as many."""
    kept, step = list[T](), 1
    for number, item in enumerate(items):
        if number % step == 0:
            kept.append(item)
        if len(kept) == 2 * MOST_CELLS:
            kept, step = kept[::2], 2 * step
    if len(kept) <= MOST_CELLS:
        return kept
    return [kept[k * len(kept) // MOST_CELLS] for k in range(MOST_CELLS)]
