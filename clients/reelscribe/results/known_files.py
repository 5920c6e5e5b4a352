"""The knowledge of a ledger about files before a run begins: how long they are, and how much of them is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reelscribe.contract.fields import check_types, read_number
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Header, is_key
from reelscribe.results.jobs import source_error_from_json
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import Kind
from reelscribe.results.schema import NAME, path_key, row_errors

_FILES = "SELECT path, stat, sha256 FROM files WHERE path IN ({})"
_HEADERS = "SELECT path, stat, seconds, frames_per_second FROM headers WHERE path IN ({})"
_SOURCES = "SELECT path, error IS NOT NULL FROM sources WHERE path IN ({})"
# The batches of a job that ended well hold all of it, so they need not be added up. What is known of a source can be
# long, and is read only for jobs that choose nothing.
_JOB_COLUMNS = """
    sha256, jobs.id, total, done, error, CASE WHEN done AND error IS NULL THEN total ELSE
        (SELECT coalesce(sum(stop - first), 0) FROM batches WHERE job = jobs.id) END,
        CASE total WHEN 0 THEN
            json_extract(opened, '$.info.end_seconds') - json_extract(opened, '$.info.start_seconds') END
"""
_SETTINGS = "SELECT id, value FROM settings WHERE value IN ({})"
_SETTINGS_BY_NUMBER = "SELECT id, value FROM settings WHERE id IN ({})"
# The plus keeps SQLite from looking up each pair of a content and of settings.
_JOBS = f"""
    SELECT settings, {_JOB_COLUMNS} FROM jobs WHERE sha256 IN ({{}}) AND +settings IN ({{}})
"""  # noqa: S608 - the text is our own
# What records show.
_RESULTS = f"""
    SELECT results.path, kind, settings, {_JOB_COLUMNS}
    FROM results JOIN jobs ON jobs.id = results.job WHERE results.path IN ({{}}) AND done
"""  # noqa: S608 - the text is our own

Select = Callable[..., list[Any]]
"""Runs a query, given its text and its values, and returns the rows."""


class AskedFile(NamedTuple):
    """A file that is looked up."""

    path: str
    """Its path, or its address."""
    stat: str
    """Its `file_stat` now; empty if there is none."""
    models: Mapping[Kind, str]
    """The model of each kind of annotations that the run makes of it, with its settings as `settings_text`."""


class KnownJob(NamedTuple):
    """How far the annotation of a content by one model with its settings is."""

    id: int
    """Number of the job in the ledger."""
    total: int | None
    """Number of its chosen frames or samples; None if it is not known."""
    saved: int
    """Number of these that have a result."""
    searched: float
    """Seconds of the video that was searched for shots alone; 0 for a job that chooses frames or samples."""
    done: bool
    """True if nothing is left to do, because it went well or ended with an error."""
    error: SourceError | None
    """The error that it ended with, also while it is tried again; None if it ended well or never ended."""

    @property
    def error_type(self) -> str | None:
        """Type of the error that it ended with; None if it ended well or never ended."""
        return self.error.type if self.error else None


class ShownJob(NamedTuple):
    """The result that the record of a source shows, made with other settings than those of the run."""

    settings: Mapping[str, Any]
    """The model with its settings."""
    job: KnownJob
    """How far it is."""


@dataclass(frozen=True)
class KnownFile:
    """The knowledge of a ledger about a file."""

    sha256: str | None = None
    """Digest of its content, in hexadecimal digits; None if it was never read, or was written to since."""
    header: Header | None = None
    """The content of its header; None if it was never read, or the file was written to since."""
    has_record: bool = False
    """True if a run has finished it."""
    was_unreadable: bool = False
    """True if it could not be read when a run last tried."""
    jobs: Mapping[Kind, KnownJob] = field(default_factory=dict)
    """The jobs of its content for the models of the run that there are."""
    shown: Mapping[Kind, ShownJob] = field(default_factory=dict)
    """The results in its record that were made with other settings than those of the run."""


def look_up(select: Select, files: Sequence[AskedFile]) -> list[KnownFile]:
    """Look up files by a few queries for all of them. Nothing is added.

    Args:
        select: Runs a query on an open ledger.
        files: At most 5,000 files; some hundreds are best, as everything else that is asked of the ledger waits
            meanwhile.

    Returns:
        The knowledge about each file.
    """
    keys = [path_key(file.path) for file in files]
    digests = {key: (stat, sha256) for key, stat, sha256 in _select(select, _FILES, keys) if is_key(sha256)}
    headers = {key: (stat, Header(*header)) for key, stat, *header in _select(select, _HEADERS, keys)}
    for _, header in headers.values():
        check_types(header)
    sources = dict(_select(select, _SOURCES, keys))
    wanted = list({text for file in files for text in file.models.values()})
    numbers = {text: number for number, text in _select(select, _SETTINGS, wanted)}
    contents = list({sha256 for _, sha256 in digests.values()})
    jobs: dict[tuple[str, int], KnownJob] = {}
    for settings, sha256, *columns in _select(select, _JOBS, contents, list(numbers.values())):
        jobs[sha256, settings] = _known_job(*columns)
    results: dict[tuple[bytes, str], list[tuple[Kind, int, list[Any]]]] = {}
    shown: set[int] = set()
    for key, kind, settings, sha256, *columns in _select(select, _RESULTS, keys):
        results.setdefault((key, sha256), []).append((kind, settings, columns))
        shown.add(settings)
    texts = dict(_select(select, _SETTINGS_BY_NUMBER, list(shown)))
    found = []
    for key, file in zip(keys, files, strict=True):
        digest, header_read = digests.get(key, ("", "")), headers.get(key)
        sha256 = digest[1] if file.stat and digest[0] == file.stat else ""
        settings_of = {kind: numbers.get(text, 0) for kind, text in file.models.items()}
        found.append(
            KnownFile(
                sha256 or None,
                header_read[1] if header_read and header_read[0] == file.stat else None,
                has_record=key in sources,
                was_unreadable=bool(sources.get(key)),
                jobs={kind: job for kind, number in settings_of.items() if (job := jobs.get((sha256, number)))},
                shown={
                    kind: ShownJob(dict(json.loads(texts[number])), _known_job(*columns))
                    for kind, number, columns in results.get((key, sha256), ())
                    if kind in settings_of and number != settings_of[kind]
                },
            )
        )
    return found


async def look_up_in(out: Path, reader: LedgerReader | None, files: Sequence[AskedFile]) -> list[KnownFile]:
    """Look up files in the ledger of a folder that nobody needs to write to; see `look_up`.

    Args:
        out: The folder.
        reader: The open reader of its ledger; None if there is none.
        files: The files.

    Raises:
        OutputError: The ledger cannot be read.
    """
    if reader is None:
        return [KnownFile()] * len(files)
    with row_errors(out / NAME):
        return await asyncio.to_thread(look_up, reader.select, files)


def _select(select: Select, statement: str, *values: Sequence[Any]) -> list[Any]:
    """Run a query with a list of values in the place of each pair of braces."""
    places = (", ".join("?" * len(each)) for each in values)
    return select(statement.format(*places), *(value for each in values for value in each))


def _known_job(
    number: int, total: int | None, done: int, error: str | None, saved: int | None, searched: float | None
) -> KnownJob:
    for each in (total, saved, searched):
        read_number("number", each or 0)
    return KnownJob(number, total, saved or 0, searched or 0.0, bool(done), source_error_from_json(error))
