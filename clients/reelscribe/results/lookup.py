"""Looks up many files in the ledger at once: their digests, and how far the jobs of their contents are."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from reelscribe.results.jobs import Job, job_from_row
from reelscribe.results.schema import path_key

_FIND_FILES = "SELECT path, stat, sha256 FROM files WHERE path IN ({})"
_FIND_JOBS = """
    SELECT sha256, settings, id, opened, total, done, error FROM jobs WHERE sha256 IN ({}) AND settings IN ({})
"""
_FIND_SPANS_OF_JOBS = "SELECT job, first, stop, anchor FROM parts WHERE job IN ({}) ORDER BY job, first"


class FoundFile(NamedTuple):
    """What the ledger knows about a file that has been digested."""

    stat: str
    """Its `file_stat` before it was read. If it is another one now, the file has been written to since."""
    sha256: str
    """Digest of its content then, in hexadecimal digits."""
    jobs: Sequence[Job | None]
    """The job of that content for each of the settings that were asked for; None where there is none yet."""


def look_up(database: sqlite3.Connection, paths: Sequence[str], settings: Sequence[int]) -> list[FoundFile | None]:
    """Look up files by a few queries for all of them.

    Args:
        database: An open ledger of this version.
        paths: Paths of the files, at most 10,000.
        settings: Numbers of models with their settings.

    Returns:
        What is known about each file; None if it was never digested.
    """
    keys = [path_key(path) for path in paths]
    files = {key: (stat, sha256) for key, stat, sha256 in _select(database, _FIND_FILES, keys)}
    digests = list({sha256 for _, sha256 in files.values()})
    rows = _select(database, _FIND_JOBS, digests, settings)
    saved: dict[int, list[tuple[int, int, int | None]]] = {}
    unfinished = [job for _, _, job, _, total, done, error in rows if not _holds_all(total, done, error)]
    for job, *span in _select(database, _FIND_SPANS_OF_JOBS, unfinished):
        saved.setdefault(job, []).append((span[0], span[1], span[2]))
    jobs = {}
    for sha256, settings_id, job, opened, total, done, error in rows:
        spans = [(0, total, None)] if _holds_all(total, done, error) else saved.get(job, [])
        jobs[sha256, settings_id] = job_from_row((job, opened, total, done, error), spans)
    return [
        FoundFile(*files[key], [jobs.get((files[key][1], each)) for each in settings]) if key in files else None
        for key in keys
    ]


def _holds_all(total: int | None, done: int, error: str | None) -> bool:
    """Return whether the saved batches of a job are known to hold all of it, so that they need not be read."""
    return bool(done) and error is None and total is not None


def _select(database: sqlite3.Connection, statement: str, *values: Sequence[Any]) -> list[Any]:
    """Run a query with a list of values in the place of each pair of braces."""
    places = (", ".join("?" * len(each)) for each in values)
    return database.execute(statement.format(*places), [value for each in values for value in each]).fetchall()
