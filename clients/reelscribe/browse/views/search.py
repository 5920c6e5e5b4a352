"""What the search shows: the texts that have the words of a query, with the words marked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

from reelscribe.browse.index.lines import SourceRow, split_number
from reelscribe.browse.index.queries import FoundTexts, find_texts, source_rows
from reelscribe.browse.index.reader import Reader, RecordChanged
from reelscribe.browse.index.source_index import SourceIndex
from reelscribe.browse.index.words import Term, found_spans, parse_query
from reelscribe.browse.records import Clip, Text, Texts, UnreadableRecord, read_texts
from reelscribe.browse.views.pictures import Pictures, picture_of_line
from reelscribe.errors import UsageError
from reelscribe.pages.queries import TEXT_KINDS, SearchQuery, TextKind
from reelscribe.pages.views import Hit, Part, SearchView, Site

HITS_A_PAGE = 50
"""Number of hits on a page."""

_MOST_CHARACTERS = 600
_BEFORE = 200
_SEARCHED_CHARACTERS = 200_000
_NO_WORD = 'Type at least one word, "a phrase in quotes" or the beginning of a word with a star, as in circ*.'


class SearchPage:
    """Makes pages of hits. Any thread may use it."""

    def __init__(self, index: SourceIndex, pictures: Pictures) -> None:
        self._index, self._pictures = index, pictures
        self._found = lru_cache(maxsize=16)(self._find)

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
        found = self._found(self._index.generation, tuple(terms), query.kinds)
        pages = max(1, -(-len(found.numbers) // HITS_A_PAGE))
        query = query.on_page(min(query.page, pages))
        some = found.numbers[(query.page - 1) * HITS_A_PAGE : query.page * HITS_A_PAGE]
        return SearchView(site, query, tuple(self._hits(some, terms)), len(found.numbers), found.more, pages)

    def all_hits(self, query: SearchQuery) -> Iterator[tuple[SourceRow, Hit]]:
        """Yield all hits of a query with the rows of their sources, up to the number at which counting ends.

        Raises:
            UsageError: The query cannot be searched.
        """
        terms = parse_query(query.q)
        if not terms:
            raise UsageError(_NO_WORD)
        numbers = self._found(self._index.generation, tuple(terms), query.kinds).numbers
        for first in range(0, len(numbers), HITS_A_PAGE):
            yield from self._hits_with_rows(numbers[first : first + HITS_A_PAGE], terms, whole=True)

    def _find(self, _: int, terms: tuple[Term, ...], kinds: tuple[TextKind, ...]) -> FoundTexts:
        with self._index.reader() as reader:
            return find_texts(reader, self._index.docs, list(terms), kinds)

    def _hits(self, numbers: Sequence[int], terms: list[Term]) -> Iterator[Hit]:
        return (hit for _, hit in self._hits_with_rows(numbers, terms))

    def _hits_with_rows(
        self, numbers: Sequence[int], terms: list[Term], *, whole: bool = False
    ) -> Iterator[tuple[SourceRow, Hit]]:
        with self._index.reader() as reader:
            rows = source_rows(reader, (split_number(number)[0] for number in numbers))
            texts = {doc: _texts_of(reader, row) for doc, row in rows.items()}
        times = {doc: self._pictures.times(row) for doc, row in rows.items()}
        for number in numbers:
            doc, kind, position = split_number(number)
            item = _item(texts.get(doc), TEXT_KINDS[kind], position)
            if item is None:  # the source has changed since; the next refresh finds it again
                continue
            yield (
                rows[doc],
                Hit(
                    source=rows[doc].id,
                    name=os.path.basename(rows[doc].path) or rows[doc].path,
                    kind=TEXT_KINDS[kind],
                    start=item.start,
                    end=item.end,
                    parts=tuple(marked_parts(item.text, terms, whole=whole)),
                    thumbnail=picture_of_line(times[doc], item.start, item.end),
                    missing=bool(rows[doc].missing),
                ),
            )


def marked_parts(text: str, terms: list[Term], *, whole: bool = False) -> Iterator[Part]:
    """Yield the parts of a text, with those marked that a query has found.

    Args:
        text: The text.
        terms: The terms of the query.
        whole: Whether to yield all of a long text, and not only the stretch around the first find.
    """
    # The words of texts of many megabytes are looked for in their beginning only.
    spans = found_spans(text[:_SEARCHED_CHARACTERS], terms)
    first, stop = 0, len(text)
    if len(text) > _MOST_CHARACTERS and not whole:
        first = max(0, spans[0][0] - _BEFORE) if spans else 0
        stop = min(first + _MOST_CHARACTERS, len(text))
    at = first
    if first:
        yield Part("…")
    for begin, end in spans:
        if begin >= stop:
            break
        if begin > at:
            yield Part(text[at:begin])
        yield Part(text[begin : min(end, stop)], marked=True)
        at = min(end, stop)
    if at < stop:
        yield Part(text[at:stop])
    if stop < len(text):
        yield Part("…")


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
