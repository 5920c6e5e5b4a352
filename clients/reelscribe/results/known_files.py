"""What a ledger knows about files before a run begins: how long they are, and how much of them was done before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelscribe.contract.source import Header
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.schema import NAME, open_to_read, output_errors, path_key, settings_text

_FILES = "SELECT path, stat, sha256 FROM files"
_HEADERS = "SELECT path, stat, seconds, frames_per_second FROM headers"
_HAS_HEADERS = "SELECT count(*) FROM sqlite_master WHERE name = 'headers'"
# The batches of a job that ended well hold all of it, so they need not be added up.
_JOBS = """
    SELECT sha256, total, done, error, CASE WHEN done AND error IS NULL THEN total ELSE
        (SELECT coalesce(sum(stop - first), 0) FROM parts WHERE job = jobs.id) END
    FROM jobs WHERE settings = (SELECT id FROM settings WHERE value = ?)
"""


@dataclass(frozen=True)
class KnownJob:
    """How far the annotation of a content by one model with its settings is."""

    total: int | None
    """Number of its chosen frames or samples; None if it is not known."""
    saved: int
    """Number of these that have a result."""
    done: bool
    """Whether nothing is left to do, whether it went well or not."""
    error_type: str | None
    """Type of the error that it ended with, also while it is tried again; None if it ended well or never ended."""


def earlier_run_state(out: Path) -> dict[str, Any] | None:
    """Return the state that the latest run into a folder saved last; None if there was none.

    Raises:
        OutputError: The ledger cannot be read.
    """
    if not (out / NAME).exists():
        return None
    with LedgerReader(out) as reader:
        return reader.run_state()


class KnownFiles:
    """What a ledger knew about files when this was made."""

    def __init__(self, out: Path, settings: Sequence[Mapping[str, Any]]) -> None:
        """Read the ledger in a folder; there need not be one.

        Args:
            out: Folder of earlier runs.
            settings: The settings of each model, as `Ledger.settings_id` takes them.

        Raises:
            OutputError: The ledger cannot be read.
        """
        self._digests: dict[bytes, tuple[str, str]] = {}
        self._headers: dict[bytes, tuple[str, Header]] = {}
        self._jobs: list[dict[str, KnownJob]] = [{} for _ in settings]
        path = out / NAME
        if not path.exists():
            return
        with output_errors(path, "read"), closing(open_to_read(path)) as database:
            self._read(database, settings)

    def _read(self, database: sqlite3.Connection, settings: Sequence[Mapping[str, Any]]) -> None:
        self._digests = {key: (stat, sha256) for key, stat, sha256 in database.execute(_FILES)}
        if database.execute(_HAS_HEADERS).fetchone() != (0,):  # a ledger of an earlier version has none
            self._headers = {key: (stat, Header(*header)) for key, stat, *header in database.execute(_HEADERS)}
        self._jobs = [dict(_jobs(database, value)) for value in settings]

    def digest(self, path: str, stat: str) -> str | None:
        """Return the SHA-256 of a file; None if it was never read, or was written to since."""
        known_stat, sha256 = self._digests.get(path_key(path), ("", ""))
        return sha256 if known_stat == stat else None

    def header(self, path: str, stat: str) -> Header | None:
        """Return what the header of a file says; None if it was never read, or was written to since."""
        known_stat, header = self._headers.get(path_key(path), ("", None))
        return header if known_stat == stat else None

    def job(self, sha256: str, model: int) -> KnownJob | None:
        """Return the job of a content for the model with this number among the settings; None if there is none."""
        return self._jobs[model].get(sha256)


def _jobs(database: sqlite3.Connection, settings: Mapping[str, Any]) -> Iterator[tuple[str, KnownJob]]:
    for sha256, total, done, error, saved in database.execute(_JOBS, [settings_text(settings)]):
        yield sha256, KnownJob(total, saved or 0, bool(done), json.loads(error)[0] if error else None)
