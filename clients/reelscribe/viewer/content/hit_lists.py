"""Lists of hits as files for other programs, line by line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator

from reelscribe.results.cells import cell
from reelscribe.viewer.content.search_page import TextHit

MOST_CHARACTERS = 10_000
"""Longest text in a list; "…" stands for the rest of a longer one."""

_COLUMNS = ("source", "kind", "start", "end", "text")
_Values = tuple[str, str, float, float, str]


def csv_lines(hits: Iterable[TextHit]) -> Iterator[str]:
    """Yield the lines of a CSV file, of which the first one has the names of the columns."""
    yield _csv_line(_COLUMNS)
    for hit in hits:
        yield _csv_line(_values(hit))


def json_lines(hits: Iterable[TextHit]) -> Iterator[str]:
    """Yield the lines of a JSON file: a list with an object for each hit."""
    before = "["
    for hit in hits:
        yield f"{before}\n {json.dumps(dict(zip(_COLUMNS, _values(hit), strict=True)), ensure_ascii=False)}"
        before = ","
    yield "\n]\n" if before == "," else "[]\n"


def _values(hit: TextHit) -> _Values:
    text = hit.text if len(hit.text) <= MOST_CHARACTERS else f"{hit.text[:MOST_CHARACTERS]}…"
    return hit.row.path, hit.kind, hit.start, hit.end, text


def _csv_line(values: Iterable[str | float]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(map(cell, values))
    return line.getvalue()
