"""The page of the search, with the words of a query marked in texts that have them, and lists of hits as files."""

from __future__ import annotations

import csv
import io
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from reelscribe.errors import UsageError
from reelscribe.results.escaping import csv_cell
from reelscribe.viewer.content.library_page import card_of
from reelscribe.viewer.index.index_reader import Reader, RecordChanged
from reelscribe.viewer.index.queries import (
    FoundTexts,
    common_folder_of,
    find_sources,
    find_texts,
    rows_in_order,
    source_rows,
)
from reelscribe.viewer.index.saved_record import Clip, Text, Texts, UnreadableRecord, read_texts
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.index.source_row import SourceRow, split_number
from reelscribe.viewer.index.word_rules import Term, found_spans, parse_query
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails, line_thumbnail_time
from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, SearchQuery, TextKind
from reelscribe.viewer.pages.views import Hit, Part, SearchView, Site

HITS_A_PAGE = 50
"""Number of hits on a page."""

MOST_NAMED = 6
"""Largest number of sources that are listed because of their names, folders or tags; the library has all of them."""

MOST_LISTED_CHARACTERS = 10_000
"""Longest text in a list of hits for other programs; "…" stands for the rest of a longer one."""

_MOST_CHARACTERS = 600
_BEFORE = 200
_SEARCHED_CHARACTERS = 200_000
_LIST_COLUMNS = ("source", "kind", "start", "end", "text")
_NO_WORD = 'Type at least one word, "a phrase in quotes" or the beginning of a word with a star, as in circ*.'


class TextHit(NamedTuple):
    """A text that was found."""

    row: SourceRow
    """Its source."""
    kind: TextKind
    start: float
    end: float
    text: str
    """All of it."""


class SearchPage:
    """Makes pages of hits. Any thread may use it."""

    def __init__(self, index: SourceIndex, thumbnails: SourceThumbnails) -> None:
        self._index, self._thumbnails = index, thumbnails
        self._found = lru_cache(maxsize=16)(self._find)
        self._named = lru_cache(maxsize=16)(self._find_named)

    def view(self, site: Site, query: SearchQuery) -> SearchView:
        """Return what the search shows of a query.

        Args:
            site: What all pages have in common.
            query: The query; of a page after the last one, the last one is shown.
        """
        if not query.q:
            return SearchView(site, query)
        try:
            terms = parse_query(query.q)
        except UsageError as error:
            return SearchView(site, query, problem=str(error))
        if not terms:
            return SearchView(site, query, problem=_NO_WORD)
        with self._index.reader() as reader:
            found = self._found_by(reader, terms, query.kinds)
            pages = max(1, -(-len(found.numbers) // HITS_A_PAGE))
            query = query.on_page(min(query.page, pages))
            some = found.numbers[(query.page - 1) * HITS_A_PAGE : query.page * HITS_A_PAGE]
            common = common_folder_of(reader)
            hits = tuple(self._hits(reader, some, terms, common))
            docs = self._named(self._index.generation, query.q)
            named = tuple(card_of(row, None, common) for row in rows_in_order(reader, docs[:MOST_NAMED]))
        return SearchView(site, query, hits, len(found.numbers), found.more, pages, named, len(docs))

    def all_hits(self, query: SearchQuery) -> Iterator[TextHit]:
        """Yield all hits of a query, up to the number at which counting ends.

        Args:
            query: The query; its page does not count.

        Raises:
            UsageError: The query cannot be searched.
        """
        terms = parse_query(query.q)
        if not terms:
            raise UsageError(_NO_WORD)
        # One reader for all of them: the numbers of another build of the index are those of other texts.
        with self._index.reader() as reader, reader.unchanged():
            numbers = self._found_by(reader, terms, query.kinds).numbers
            for first in range(0, len(numbers), HITS_A_PAGE):
                yield from _texts(reader, numbers[first : first + HITS_A_PAGE])

    def _found_by(self, reader: Reader, terms: list[Term], kinds: tuple[TextKind, ...]) -> FoundTexts:
        found = self._found(self._index.generation, tuple(terms), kinds)
        return found if found.build is reader.build else find_texts(reader, terms, kinds)

    def _find(self, _: int, terms: tuple[Term, ...], kinds: tuple[TextKind, ...]) -> FoundTexts:
        with self._index.reader() as reader:
            return find_texts(reader, terms, kinds)

    def _find_named(self, _: int, q: str) -> array[int]:
        with self._index.reader() as reader:
            return find_sources(reader, LibraryQuery(q))

    def _hits(self, reader: Reader, numbers: Sequence[int], terms: list[Term], common_folder: str) -> Iterator[Hit]:
        times: dict[str, list[float]] = {}
        for row, kind, start, end, text in _texts(reader, numbers):
            if row.id not in times:
                times[row.id] = self._thumbnails.times(row)
            yield Hit(
                source=row.id,
                path=card_of(row, None, common_folder).path,
                kind=kind,
                start=start,
                end=end,
                parts=tuple(marked_parts(text, terms)),
                thumbnail=line_thumbnail_time(times[row.id], start, end),
                missing=bool(row.missing),
            )


def marked_parts(text: str, terms: list[Term]) -> Iterator[Part]:
    """Yield the parts of a text, or of the stretch of a long one around the first find, with the finds marked.

    Args:
        text: The text.
        terms: The terms of the query.
    """
    # The words of texts of many megabytes are looked for in their beginning only.
    spans = found_spans(text[:_SEARCHED_CHARACTERS], terms)
    found = next(spans, None)
    is_long = len(text) > _MOST_CHARACTERS
    at = max(0, found[0] - _BEFORE) if found and is_long else 0
    stop = min(at + _MOST_CHARACTERS, len(text)) if is_long else len(text)
    if at:
        yield Part("…")
    while found and found[0] < stop:
        begin, end = found
        if begin > at:
            yield Part(text[at:begin])
        at = min(end, stop)
        yield Part(text[begin:at], marked=True)
        found = next(spans, None)
    if at < stop:
        yield Part(text[at:stop])
    if stop < len(text):
        yield Part("…")


def _texts(reader: Reader, numbers: Sequence[int]) -> Iterator[TextHit]:
    rows = source_rows(reader, (split_number(number)[0] for number in numbers))
    texts = {doc: _texts_of(reader, row) for doc, row in rows.items()}
    for number in numbers:
        doc, kind, position = split_number(number)
        item = _item(texts.get(doc), TEXT_KINDS[kind], position)
        if item:  # otherwise the source has changed since; the next refresh finds it again
            yield TextHit(rows[doc], TEXT_KINDS[kind], item.start, item.end, item.text)


def _texts_of(reader: Reader, row: SourceRow) -> Texts | None:
    try:
        return read_texts(reader.line(row.file, row.start, row.size, row.digest))
    except (RecordChanged, UnreadableRecord):
        return None


def _item(texts: Texts | None, kind: TextKind, position: int) -> Text | Clip | None:
    if texts is None:
        return None
    items: Sequence[Text | Clip] = getattr(texts, kind)
    return items[position] if position < len(items) else None


def csv_lines(hits: Iterable[TextHit]) -> Iterator[str]:
    """Yield the lines of a CSV file, of which the first one has the names of the columns.

    Args:
        hits: The hits, in order.
    """
    yield _csv_line(_LIST_COLUMNS)
    for hit in hits:
        yield _csv_line(_listed(hit))


def json_lines(hits: Iterable[TextHit]) -> Iterator[str]:
    """Yield the lines of a JSON file: a list with an object for each hit.

    Args:
        hits: The hits, in order.
    """
    before = "["
    for hit in hits:
        yield f"{before}\n {json.dumps(dict(zip(_LIST_COLUMNS, _listed(hit), strict=True)), ensure_ascii=False)}"
        before = ","
    yield "\n]\n" if before == "," else "[]\n"


def _listed(hit: TextHit) -> tuple[str, str, float, float, str]:
    text = hit.text if len(hit.text) <= MOST_LISTED_CHARACTERS else f"{hit.text[:MOST_LISTED_CHARACTERS]}…"
    return hit.row.path, hit.kind, hit.start, hit.end, text


def _csv_line(values: Iterable[str | float]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(map(csv_cell, values))
    return line.getvalue()
