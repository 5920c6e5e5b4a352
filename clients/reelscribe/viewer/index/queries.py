"""Queries of an index: the sources that fit the filters of the library, and the texts that have certain words."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reelscribe.viewer.index.index_reader import Build, Reader
from reelscribe.viewer.index.source_row import SourceRow, split_number
from reelscribe.viewer.index.word_rules import Term, folded, match_expression
from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, Sort, TextKind

MOST_HITS = 10_000
"""Number of texts at which counting ends."""

_ORDERS: dict[Sort, str] = {
    "name": "path",
    "longest": "seconds DESC, path",
    "shortest": "seconds IS NULL, seconds, path",
    "failures": "failures DESC, state = 'error' DESC, path",
}
_VALUES = """
    SELECT state, missing, error_type, languages, flags, count(*), total(seconds < 60),
        total(seconds >= 60 AND seconds < 600), total(seconds >= 600 AND seconds < 3600), total(seconds >= 3600)
    FROM sources INDEXED BY by_path GROUP BY 1, 2, 3, 4, 5
"""
_FIRST_AND_LAST = "SELECT (SELECT min(path) FROM sources), (SELECT max(path) FROM sources)"
_FOLDERS = """
    SELECT substr(path, :start, instr(substr(path, :start), '/') - 1) AS name, count(*)
    FROM sources INDEXED BY by_path
    WHERE path > :begin AND path < :end AND instr(substr(path, :start), '/') GROUP BY name ORDER BY name
"""
DURATIONS = ("0-60", "60-600", "600-3600", "3600-")
"""The ranges of durations that are counted, as in LibraryQuery."""


@dataclass
class ValueCounts:
    """The number of sources that have each value of the filters."""

    sources: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """States, and "missing"."""
    errors: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    durations: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class FoundTexts:
    """The texts that have the words of a query."""

    numbers: Sequence[int]
    """Their numbers, in the order of the sources in the index, and of kind and time in a source."""
    more: bool
    """True if there are more."""
    build: Build
    """The build of the index in which these are their numbers."""


def count_values(reader: Reader) -> ValueCounts:
    """Count the values of the filters of the library over all sources.

    Args:
        reader: An open reader.
    """
    counts = ValueCounts()
    for state, missing, error_type, languages, flags, number, *durations in reader.library.execute(_VALUES):
        counts.sources += number
        counts.states[state] += number
        counts.states["missing"] += number if missing else 0
        counts.errors[error_type] += number if error_type else 0
        counts.languages.update(dict.fromkeys(languages.split(), number))
        counts.flags.update(dict.fromkeys(flags.split(), number))
        counts.durations.update(dict(zip(DURATIONS, map(int, durations), strict=True)))
    return counts


def find_sources(reader: Reader, query: LibraryQuery, most: int | None = None) -> array[int]:
    """Return the numbers of the sources that fit a query, in its order.

    Args:
        reader: An open reader.
        query: The filters and the order; its page does not count.
        most: Largest number of them; None for all.
    """
    where, values = _where(query, common_folder_of(reader))
    statement = f"""
        SELECT doc FROM sources INDEXED BY by_path WHERE {where} ORDER BY {_ORDERS[query.sort]} LIMIT ?
    """  # noqa: S608 - the text is our own
    rows = reader.library.execute(statement, [*values, -1 if most is None else most])
    return array("q", (doc for (doc,) in rows))


def common_folder_of(reader: Reader) -> str:
    """Return the path of the deepest folder that holds all sources; empty if there are none.

    Args:
        reader: An open reader.
    """
    first, last = reader.library.execute(_FIRST_AND_LAST).fetchone()
    # What the first and the last path in order begin with, all paths between them begin with, too.
    return os.path.dirname(os.path.commonprefix([first, last])) if first else ""  # noqa: RUF071 - cut to a folder


def count_folders(reader: Reader, folder: str) -> list[tuple[str, int]]:
    """Return the names of the folders in a folder that have sources, in order, and how many are in each and below it.

    Args:
        reader: An open reader.
        folder: The path of the folder below that of all sources; empty for that one.
    """
    path = os.path.join(common_folder_of(reader), folder)
    begin = f"{path.rstrip('/')}/"
    values = {"start": len(begin) + 1, "begin": begin, "end": f"{begin[:-1]}0"}
    return reader.library.execute(_FOLDERS, values).fetchall()


def rows_in_order(reader: Reader, docs: Sequence[int]) -> list[SourceRow]:
    """Return the rows of sources in the order of their numbers; those that are gone are left out.

    Args:
        reader: An open reader.
        docs: The numbers of the sources.
    """
    rows = source_rows(reader, docs)
    return [rows[doc] for doc in docs if doc in rows]


def source_rows(reader: Reader, docs: Iterable[int]) -> dict[int, SourceRow]:
    """Return the rows of sources by their numbers; those that are gone are left out.

    Args:
        reader: An open reader.
        docs: The numbers of the sources, in any order.
    """
    wanted = list(set(docs))
    marks = ", ".join("?" * len(wanted))
    rows = reader.library.execute(f"SELECT * FROM sources WHERE doc IN ({marks})", wanted)  # noqa: S608 - question marks
    return {row[0]: SourceRow(*row) for row in rows}


def source_row(reader: Reader, id_: str) -> SourceRow | None:
    """Return the row of a source; None if there is no source with this id.

    Args:
        reader: An open reader.
        id_: The id of the source, 16 hexadecimal digits.
    """
    row = reader.library.execute("SELECT * FROM sources WHERE id = ?", [id_]).fetchone()
    return SourceRow(*row) if row else None


def find_texts(reader: Reader, terms: Sequence[Term], kinds: Sequence[TextKind]) -> FoundTexts:
    """Find the texts that have all terms of a query.

    Args:
        reader: An open reader.
        terms: The terms, at least one.
        kinds: The kinds of texts that count.
    """
    wanted, docs = {TEXT_KINDS.index(kind) for kind in kinds}, reader.build.docs
    numbers: list[int] = []
    for database in reader.texts:
        for (number,) in database.execute("SELECT rowid FROM texts WHERE texts MATCH ?", [match_expression(terms)]):
            doc, kind, _ = split_number(number)
            if kind in wanted and doc in docs:
                if len(numbers) == MOST_HITS:
                    return FoundTexts(numbers, more=True, build=reader.build)
                numbers.append(number)
    return FoundTexts(numbers, more=False, build=reader.build)


def _where(query: LibraryQuery, common_folder: str) -> tuple[str, list[Any]]:
    """Return the condition for the filters of a query, and its values."""
    low, high = query.seconds()
    conditions: list[tuple[str, Any]] = []
    if query.folder:
        # All paths that begin with the folder and "/" are before the folder and "0", the character after it.
        folder = os.path.join(common_folder, query.folder)
        conditions += [("path > ?", f"{folder}/"), ("path < ?", f"{folder}0")]
    if query.state == "missing":
        conditions.append(("missing = ?", 1))
    elif query.state:
        conditions.append(("state = ?", query.state))
    if query.error:
        conditions.append(("error_type = ?", query.error))
    conditions += [
        (f"instr({column}, ?)", f" {value} ")
        for column, value in (("languages", query.language), ("flags", query.flag))
        if value
    ]
    conditions += [("seconds >= ?", low)] if low else []
    conditions += [("seconds < ?", high)] if high is not None else []
    # The common folder itself would make each of its letters fit all sources.
    below = f"substr(found_by, {len(folded(common_folder)) + 1})"
    conditions += [(f"instr({below}, ?)", folded(word)) for word in query.words()]
    return " AND ".join(condition for condition, _ in conditions) or "1", [value for _, value in conditions]
