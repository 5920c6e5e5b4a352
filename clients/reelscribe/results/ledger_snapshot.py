"""The state of a ledger before a run begins, for its plan: how long files are, and how much of them is done."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelscribe.contract.fields import check_types, read_number, read_text
from reelscribe.contract.source import Header
from reelscribe.results.records import Kind
from reelscribe.results.schema import (
    NAME,
    open_to_read,
    output_errors,
    path_key,
    row_errors,
    settings_text,
)

_FILES = "SELECT path, stat, sha256 FROM files"
_HEADERS = "SELECT path, stat, seconds, frames_per_second FROM headers"
_UNREADABLE = "SELECT path FROM sources WHERE error IS NOT NULL"
# The batches of a job that ended well hold all of it, so they need not be added up. What is known of a source can be
# long, and is read only for jobs that choose nothing.
_JOB_COLUMNS = """
    sha256, total, done, error, CASE WHEN done AND error IS NULL THEN total ELSE
        (SELECT coalesce(sum(stop - first), 0) FROM batches WHERE job = jobs.id) END,
        CASE total WHEN 0 THEN
            json_extract(opened, '$.info.end_seconds') - json_extract(opened, '$.info.start_seconds') END
"""
_JOBS = f"SELECT {_JOB_COLUMNS} FROM jobs WHERE settings = (SELECT id FROM settings WHERE value = ?)"  # noqa: S608 - the text is our own
# What records show that was made with other settings.
_SHOWN = f"""
    SELECT results.path, settings.value, {_JOB_COLUMNS}
    FROM results JOIN jobs ON jobs.id = results.job JOIN settings ON settings.id = jobs.settings
    WHERE kind = ? AND settings.value != ? AND done
"""  # noqa: S608 - the text is our own


@dataclass(frozen=True)
class ShownJob:
    """The job that the record of a source shows, made with other settings than those of the run."""

    sha256: str
    """Digest of the content that it was made of."""
    settings: Mapping[str, Any]
    """The model with its settings."""
    job: KnownJob
    """The progress of this job."""


@dataclass(frozen=True)
class KnownJob:
    """The progress of the annotation of a content by one model with its settings."""

    total: int | None
    """Number of its chosen frames or samples; None if it is not known."""
    saved: int
    """Number of these that have a result."""
    searched: float
    """Seconds of the video that was searched for shots alone; 0 for a job that chooses frames or samples."""
    done: bool
    """True if nothing is left to do, because it went well or ended with an error."""
    error_type: str | None
    """Type of the error that it ended with, also while it is tried again; None if it ended well or never ended."""


class LedgerSnapshot:
    """All that a ledger knew about files when this was made."""

    def __init__(self, out: Path, models: Sequence[tuple[Kind, Mapping[str, Any]]]) -> None:
        """Read the ledger in a folder; there need not be one.

        Args:
            out: Folder of earlier runs.
            models: The kind of annotations and the settings of each model, as `Ledger.settings_id` takes them.

        Raises:
            OutputError: The ledger cannot be read.
        """
        self._digests: dict[bytes, tuple[str, str]] = {}
        self._headers: dict[bytes, tuple[str, Header]] = {}
        self._unreadable: set[bytes] = set()
        self._jobs: list[dict[str, KnownJob]] = [{} for _ in models]
        self._shown: list[dict[bytes, ShownJob]] = [{} for _ in models]
        path = out / NAME
        if not path.exists():
            return
        with output_errors(path, "read"), row_errors(path), closing(open_to_read(path)) as database:
            self._read(database, models)

    def _read(self, database: sqlite3.Connection, models: Sequence[tuple[Kind, Mapping[str, Any]]]) -> None:
        self._digests = {key: (stat, sha256) for key, stat, sha256 in database.execute(_FILES)}
        self._unreadable = {key for (key,) in database.execute(_UNREADABLE)}
        self._shown = [dict(_shown(database, kind, settings)) for kind, settings in models]
        self._headers = {key: (stat, Header(*header)) for key, stat, *header in database.execute(_HEADERS)}
        for _, header in self._headers.values():
            check_types(header)
        self._jobs = [dict(_jobs(database, settings)) for _, settings in models]

    def digest(self, path: str, stat: str) -> str | None:
        """Return the SHA-256 of a file; None if it was never read, or was written to since."""
        known_stat, sha256 = self._digests.get(path_key(path), ("", ""))
        return sha256 if known_stat == stat else None

    def header(self, path: str, stat: str) -> Header | None:
        """Return what the header of a file says; None if it was never read, or was written to since."""
        known_stat, header = self._headers.get(path_key(path), ("", None))
        return header if known_stat == stat else None

    def was_unreadable(self, path: str) -> bool:
        """Return whether a file could not be read when a run last tried."""
        return path_key(path) in self._unreadable

    def shown(self, path: str, sha256: str, model: int) -> ShownJob | None:
        """Return what the record of a source shows, if it was made with other settings than those of the model.

        Args:
            path: Path of the source.
            sha256: Digest of its content, in hexadecimal digits. Results of another content are not shown.
            model: Number of the model among the models.
        """
        shown = self._shown[model].get(path_key(path))
        return shown if shown and shown.sha256 == sha256 else None

    def job(self, sha256: str, model: int) -> KnownJob | None:
        """Return the job of a content for the model with this number among the settings; None if there is none."""
        return self._jobs[model].get(sha256)


def _jobs(database: sqlite3.Connection, settings: Mapping[str, Any]) -> Iterator[tuple[str, KnownJob]]:
    for sha256, *columns in database.execute(_JOBS, [settings_text(settings)]):
        yield sha256, _known_job(*columns)


def _shown(database: sqlite3.Connection, kind: Kind, settings: Mapping[str, Any]) -> Iterator[tuple[bytes, ShownJob]]:
    parsed: dict[str, dict[str, Any]] = {}
    for path, value, sha256, *columns in database.execute(_SHOWN, [kind, settings_text(settings)]):
        parsed.setdefault(value, dict(json.loads(value)))
        yield path, ShownJob(sha256, parsed[value], _known_job(*columns))


def _known_job(total: int | None, done: int, error: str | None, saved: int | None, searched: float | None) -> KnownJob:
    error_type = read_text("type", json.loads(error)[0]) if error else None
    for number in (total, saved, searched):
        read_number("number", number or 0)
    return KnownJob(total, saved or 0, searched or 0.0, bool(done), error_type)
