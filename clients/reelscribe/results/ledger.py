"""What is done, in OUT/ledger.sqlite: each answered request, when it is answered, so that no work is done twice.

A job is the content of a file (its SHA-256), a model and the settings; change any of them and it is another job. A part
is a stretch of the chosen frames, or of the sound, of a job with what came of it. Records are made from parts, whenever
they are made.

SQLite keeps a write-ahead log and waits for the disk at each commit (synchronous=FULL): what was committed outlives a
loss of power, and what was not is done again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from reelscribe.contract.annotations import Caption, Failure, Silence, SpeechFailure, Utterance
from reelscribe.contract.source import Source, Span
from reelscribe.errors import OutputError
from reelscribe.results.batches import SavedAudioBatch, SavedFrameBatch, timeline, unfold
from reelscribe.results.records import SourceError

NAME = "ledger.sqlite"
VERSION = 2

_SCHEMA = f"""
CREATE TABLE files (path BLOB PRIMARY KEY, stat TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, settings INTEGER NOT NULL REFERENCES settings,
    opened TEXT, total INTEGER, done INTEGER NOT NULL DEFAULT 0, error TEXT, UNIQUE (sha256, settings)
);
CREATE TABLE parts (
    job INTEGER NOT NULL REFERENCES jobs, first INTEGER NOT NULL, stop INTEGER NOT NULL, anchor INTEGER,
    results TEXT NOT NULL, PRIMARY KEY (job, first)
) WITHOUT ROWID;
CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""

T = TypeVar("T")


class SavedBatch(Protocol):
    """What is saved at a time; `results_to_json` gives three lists, of which the third holds failures (.., .., why)."""

    @property
    def first(self) -> int:
        """Number of its first frame or sample."""

    @property
    def stop(self) -> int:
        """Of the one after its last."""

    @property
    def anchor(self) -> int | None:
        """What is told of it when what comes after it is asked for."""

    def results_to_json(self) -> str:
        """What came of it."""


@dataclass(frozen=True)
class Job:
    """One content, model and settings, as the ledger has it."""

    id: int
    opened: dict[str, Any] | None
    """What is known of the source; None until it has been opened once."""
    total: int | None
    """Of its frames or samples; None until it is known."""
    done: bool
    error: SourceError | None
    missing: Sequence[Span]
    """What is not done of them."""


@contextmanager
def _told(path: Path, what: str = "written") -> Iterator[None]:
    """Around what touches the disk: the reason, and what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if type(error) is sqlite3.DatabaseError:  # so SQLite calls what is damaged, or no file of its own
            advice = "choose another --out"
        else:
            advice = "what was saved before is kept, and the same command goes on from there"
        raise OutputError(f"{path}: cannot be {what}: {error}; {advice}") from error


class Ledger:
    """The ledger of one run, which writes it from a thread of its own. Use it as an async context manager.

    Every method raises OutputError if the disk is full or fails.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / NAME
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._waiting: list[tuple[str, tuple[Any, ...], asyncio.Future[None]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Ledger:
        try:
            await self._do(self._open)
        except OutputError:
            self._thread.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._flusher:
            await self._flusher
        await self._do(self._close)
        self._thread.shutdown()

    async def recall(self, path: str, stat: str) -> str | None:
        """The digest of a file that was identified before, if its `file_stat` is the same."""
        rows = await self._do(self._select, "SELECT sha256 FROM files WHERE path = ? AND stat = ?", _name(path), stat)
        return str(rows[0][0]) if rows else None

    async def remember(self, path: str, stat: str, source: Source) -> None:
        """The digest of a file whose `file_stat` was so before it was read."""
        await self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", _name(path), stat, source.sha256)

    async def settings(self, settings: Mapping[str, Any]) -> int:
        """A number for everything, the model included, that decides what becomes of a content."""
        text = json.dumps(settings, sort_keys=True)
        await self._write("INSERT OR IGNORE INTO settings (value) VALUES (?)", text)
        ((number,),) = await self._do(self._select, "SELECT id FROM settings WHERE value = ?", text)
        return int(number)

    async def job(self, sha256: str, settings: int) -> Job:
        """The job of a content with some settings."""
        rows = await self._do(self._select, _JOB, sha256, settings)
        if not rows:
            await self._write("INSERT OR IGNORE INTO jobs (sha256, settings) VALUES (?, ?)", sha256, settings)
            rows = await self._do(self._select, _JOB, sha256, settings)
        number, opened, total, done, error = rows[0]
        parts = await self._do(
            self._select, "SELECT first, stop, anchor FROM parts WHERE job = ? ORDER BY first", number
        )
        saved = None if opened is None else json.loads(opened)
        return Job(number, saved, total, bool(done), _error(error), _missing(parts, total))

    async def opened(self, job: int, opened: Mapping[str, Any], total: int | None) -> None:
        """Save what is known of a source, and how many frames or samples there are.

        Of sound that is known at its end alone: what is known at a start takes the place of no end.
        """
        statement = "UPDATE jobs SET opened = ?, total = ? WHERE id = ? AND (total IS NULL OR ? IS NOT NULL)"
        await self._write(statement, json.dumps(opened), total, job, total)

    async def add(self, job: int, part: SavedBatch) -> None:
        """Save a part; returns when it is on the disk."""
        values = (job, part.first, part.stop, part.anchor, part.results_to_json())
        await self._write("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", *values)

    async def failures(self, job: int) -> dict[str, int]:
        """How many frames or chunks of a job failed, by the reason."""
        return dict(await self._do(self._select, _FAILURES, job))

    async def finish(self, job: int, error: SourceError | None) -> None:
        """Save that a job is done, and the type and message of the error that it ended with."""
        await self._write("UPDATE jobs SET done = 1, error = ? WHERE id = ?", json.dumps(error) if error else None, job)

    async def reopen(self, job: int) -> None:
        """Try what failed of a job again: its error and the parts with failures are forgotten."""
        await self._write("DELETE FROM parts WHERE job = ? AND json_array_length(results, '$[2]') > 0", job)
        await self._write("UPDATE jobs SET done = 0, error = NULL, opened = NULL, total = NULL WHERE id = ?", job)

    async def forget(self, job: int) -> None:
        """Nothing that was saved of a job can be trusted."""
        await self._write("DELETE FROM parts WHERE job = ?", job)
        await self._write("DELETE FROM jobs WHERE id = ?", job)

    async def set_run(self, state: dict[str, Any]) -> None:
        """Save how the run gets on, for `read_run`."""
        await self._write("INSERT OR REPLACE INTO run VALUES (1, ?)", json.dumps(state))

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        with _told(self._path):
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _write(self, statement: str, *values: Any) -> None:
        """Run a statement; all that come while the disk is busy share the next commit."""
        saved = asyncio.get_running_loop().create_future()
        self._waiting.append((statement, values, saved))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        with _told(self._path):
            await asyncio.shield(saved)

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                for _, _, saved in batch:
                    saved.set_exception(error)
                    saved.exception()  # whoever waited may have been cancelled
            else:
                for _, _, saved in batch:
                    saved.set_result(None)

    def _open(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._set_up()
        except (sqlite3.Error, OutputError):
            self._database.close()
            raise

    def _set_up(self) -> None:
        version = _check_version(self._database, self._path)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        if version == 0:
            self._database.executescript(f"BEGIN; {_SCHEMA} COMMIT;")

    def _close(self) -> None:
        self._database.close()

    def _select(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def _commit(self, batch: list[tuple[str, tuple[Any, ...], asyncio.Future[None]]]) -> None:
        self._database.execute("BEGIN")
        try:
            for statement, values, _ in batch:
                self._database.execute(statement, values)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


class LedgerReader:
    """A ledger, read while a run may be writing it. Use it as a context manager, in one thread."""

    def __init__(self, out: Path) -> None:
        self._path = out / NAME

    def __enter__(self) -> LedgerReader:
        if not self._path.exists():
            raise OutputError(f"{self._path}: no such file; expected the folder of a run")
        with _told(self._path, "read"):
            self._database = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            try:
                _check_version(self._database, self._path)
            except BaseException:
                self._database.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def frames(self, job: int) -> Iterator[Caption | Failure]:
        """What came of each chosen frame of a job, in order; little is in memory at a time."""
        with _told(self._path, "read"):
            yield from unfold(SavedFrameBatch.from_json(*row) for row in self._parts(job))

    def sound(self, job: int) -> Iterator[Utterance | Silence | SpeechFailure]:
        """What came of the sound of a job, in order; little is in memory at a time."""
        with _told(self._path, "read"):
            yield from timeline(SavedAudioBatch.from_json(*row) for row in self._parts(job))

    def _parts(self, job: int) -> Iterator[tuple[int, int, int | None, str]]:
        return self._database.execute(
            "SELECT first, stop, anchor, results FROM parts WHERE job = ? ORDER BY first", (job,)
        )

    def run(self) -> dict[str, Any] | None:
        """How the run that writes it got on when it last said so."""
        with _told(self._path, "read"):
            row = self._database.execute("SELECT state FROM run").fetchone()
        return json.loads(row[0]) if row else None


_FAILURES = """
    SELECT json_extract(failure.value, '$[2]'), count(*) FROM parts, json_each(parts.results, '$[2]') AS failure
    WHERE job = ? GROUP BY 1 ORDER BY min(first)
"""
_JOB = "SELECT id, opened, total, done, error FROM jobs WHERE sha256 = ? AND settings = ?"


def _check_version(database: sqlite3.Connection, path: Path) -> int:
    """0 for a ledger that is just being made."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise OutputError(f"{path}: expected a ledger of version {VERSION}, got {version}; choose another --out")
    return int(version)


def file_stat(path: str) -> str:
    """What changes whenever somebody writes to a file or puts another in its place. Raises OSError."""
    stat = os.stat(path)
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev}"


def _name(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))


def _error(text: str | None) -> SourceError | None:
    if text is None:
        return None
    return SourceError(*json.loads(text))


def _missing(parts: Sequence[tuple[int, int, int | None]], total: int | None) -> list[Span]:
    """The gaps between parts, and what comes after the last."""
    spans, at, before = [], 0, None
    for first, stop, anchor in parts:
        if first > at:
            spans.append(Span(at, first, before))
        at, before = stop, anchor
    if total is None or at < total:
        spans.append(Span(at, total, before))
    return spans
