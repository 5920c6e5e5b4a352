"""The ledger, OUT/ledger.sqlite: every result is saved as soon as it is known, so that no work is done twice.

A job is the annotation of one content (identified by the SHA-256 of the file) by one model with its settings; a change
of any of them makes another job. Records are made from the saved batches of a job, at any time. SQLite keeps a
write-ahead log and waits for the disk at each commit (synchronous=FULL): a commit survives a loss of power, and the
next run repeats what was not committed.

The tables are:

    files     The digest of each file, with the `file_stat` that the file had before it was read. A path is stored as
              the bytes of its absolute name.
    settings  Each model with its settings, as JSON with sorted keys.
    jobs      One row for each content and settings: what is known of the opened source (JSON), its total number of
              chosen frames or samples, whether the job is done, and the error that it ended with (JSON).
    parts     The saved batches of a job: the frames or samples from `first` to before `stop`, and their results (JSON;
              see batches.py).
    run       A single row: the state of the latest run, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

from reelscribe.contract.outcomes import AudioResult, FrameResult, SourceError
from reelscribe.contract.source import Source
from reelscribe.errors import OutputError
from reelscribe.results.batches import SavedAudioBatch, SavedBatch, SavedFrameBatch, audio_results, frame_results
from reelscribe.results.jobs import Job, SavedSource, missing_spans, saved_source_from_json

_NAME = "ledger.sqlite"
_VERSION = 2
_BATCHES_READ_AT_ONCE = 16

_CREATE_TABLES = f"""
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
PRAGMA user_version = {_VERSION};
"""

_FIND_DIGEST = "SELECT sha256 FROM files WHERE path = ? AND stat = ?"
_SAVE_DIGEST = "INSERT OR REPLACE INTO files VALUES (?, ?, ?)"
_FIND_DURATION = "SELECT seconds FROM durations WHERE path = ? AND stat = ?"
_SAVE_DURATION = "INSERT OR REPLACE INTO durations VALUES (?, ?, ?)"
_ADD_DURATIONS = """
    CREATE TABLE IF NOT EXISTS durations (path BLOB PRIMARY KEY, stat TEXT NOT NULL, seconds REAL) WITHOUT ROWID
"""
_FIND_SETTINGS = "SELECT id FROM settings WHERE value = ?"
_ADD_SETTINGS = "INSERT OR IGNORE INTO settings (value) VALUES (?)"
_FIND_JOB = "SELECT id, opened, total, done, error FROM jobs WHERE sha256 = ? AND settings = ?"
_ADD_JOB = "INSERT OR IGNORE INTO jobs (sha256, settings) VALUES (?, ?)"
_SAVE_OPENED = "UPDATE jobs SET opened = ?, total = ? WHERE id = ? AND (total IS NULL OR ? IS NOT NULL)"
_FINISH_JOB = "UPDATE jobs SET done = 1, error = ? WHERE id = ?"
_REOPEN_JOB = "UPDATE jobs SET done = 0, error = NULL, opened = NULL, total = NULL WHERE id = ?"
_FORGET_JOB = "DELETE FROM jobs WHERE id = ?"
_SAVE_BATCH = "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)"
_FIND_SPANS = "SELECT first, stop, anchor FROM parts WHERE job = ? ORDER BY first"
_FIND_BATCHES = "SELECT first, stop, anchor, results FROM parts WHERE job = ? AND first > ? ORDER BY first LIMIT ?"
_COUNT_FAILURES = """
    SELECT json_extract(failure.value, '$[2]'), count(*) FROM parts, json_each(parts.results, '$[2]') AS failure
    WHERE job = ? GROUP BY 1 ORDER BY min(first)
"""
_FORGET_FAILED_BATCHES = "DELETE FROM parts WHERE job = ? AND json_array_length(results, '$[2]') > 0"
_FORGET_BATCHES = "DELETE FROM parts WHERE job = ?"
_SAVE_RUN_STATE = "INSERT OR REPLACE INTO run VALUES (1, ?)"
_FIND_RUN_STATE = "SELECT state FROM run"

T = TypeVar("T")


class _Write(NamedTuple):
    """A statement that waits for the next commit."""

    statement: str
    values: tuple[Any, ...]
    committed: asyncio.Future[None]


class Ledger:
    """The ledger of a run, for the one process that writes it. Use it as an async context manager.

    A thread of its own works with the database, so that the event loop never waits for the disk. Every method raises
    OutputError if the disk is full or fails.
    """

    def __init__(self, out: Path) -> None:
        """Prepare the ledger in the folder `out`; it is created or opened when the block begins."""
        self._path = out / _NAME
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._waiting: list[_Write] = []
        self._flusher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._in_thread(self._open)
        except OutputError:
            self._thread.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._flusher:
            await self._flusher
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def find_digest(self, path: str, stat: str) -> str | None:
        """Return the digest of a file that was read before.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file now.

        Returns:
            The SHA-256 in hexadecimal digits; None if the file was never read, or was written to since.
        """
        rows = await self._in_thread(self._select, _FIND_DIGEST, _path_bytes(path), stat)
        return str(rows[0][0]) if rows else None

    async def save_digest(self, path: str, stat: str, source: Source) -> None:
        """Save the digest of a file.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file before it was read.
            source: The file with its digest.
        """
        await self._write(_SAVE_DIGEST, _path_bytes(path), stat, source.sha256)

    async def find_duration(self, path: str, stat: str) -> float | None:
        """Return the duration of a file whose header was read before.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file now.

        Returns:
            The duration in seconds; None if the file was never looked at, states none, or was written to since.
        """
        rows = await self._in_thread(self._select, _FIND_DURATION, _path_bytes(path), stat)
        return rows[0][0] if rows else None

    async def save_duration(self, path: str, stat: str, seconds: float | None) -> None:
        """Save the duration of a file in seconds, as its header states it; None if it states none.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file before its header was read.
            seconds: The duration.
        """
        await self._write(_SAVE_DURATION, _path_bytes(path), stat, seconds)

    async def settings_id(self, settings: Mapping[str, Any]) -> int:
        """Return the number of a model with its settings, which are added if they are new.

        Args:
            settings: Everything that decides the results of a content, the model included, as JSON. Equal settings
                have the same number in every run.
        """
        value = json.dumps(settings, sort_keys=True)
        await self._write(_ADD_SETTINGS, value)
        ((number,),) = await self._in_thread(self._select, _FIND_SETTINGS, value)
        return int(number)

    async def job(self, sha256: str, settings: int) -> Job:
        """Return the job of a content. If the ledger does not have it yet, it is added.

        Args:
            sha256: Digest of the content, in hexadecimal digits.
            settings: What `settings_id` returned.
        """
        rows = await self._in_thread(self._select, _FIND_JOB, sha256, settings)
        if not rows:
            await self._write(_ADD_JOB, sha256, settings)
            rows = await self._in_thread(self._select, _FIND_JOB, sha256, settings)
        number, opened, total, done, error = rows[0]
        saved = await self._in_thread(self._select, _FIND_SPANS, number)
        return Job(
            number,
            opened=None if opened is None else saved_source_from_json(json.loads(opened)),
            total=total,
            done=bool(done),
            error=None if error is None else SourceError(*json.loads(error)),
            missing=missing_spans(saved, total),
        )

    async def save_opened(self, job: int, opened: SavedSource, total: int | None) -> None:
        """Save what is known about a source that was opened.

        Args:
            job: Number of the job.
            opened: What is known about the source.
            total: Number of its chosen frames or samples. None if it is not known yet, as for audio before its end has
                been read; then nothing is saved if a total has been saved before.
        """
        await self._write(_SAVE_OPENED, json.dumps(opened.to_json()), total, job, total)

    async def save_batch(self, job: int, batch: SavedBatch) -> None:
        """Save the results of a batch, and return when they are on the disk.

        Args:
            job: Number of the job.
            batch: The results; they replace those of a batch that begins with the same frame or sample.
        """
        await self._write(_SAVE_BATCH, job, batch.first, batch.stop, batch.anchor, batch.results_to_json())

    async def failures(self, job: int) -> dict[str, int]:
        """Return the number of failed frames or chunks of a job by reason, the earliest reason first."""
        return dict(await self._in_thread(self._select, _COUNT_FAILURES, job))

    async def finish(self, job: int, error: SourceError | None) -> None:
        """Save that a job is done, and the error that it ended with (None if it ended well)."""
        await self._write(_FINISH_JOB, json.dumps(error) if error else None, job)

    async def reopen(self, job: int) -> None:
        """Delete the error of a job and its batches with failures, so that they are tried again."""
        await self._write(_FORGET_FAILED_BATCHES, job)
        await self._write(_REOPEN_JOB, job)

    async def forget(self, job: int) -> None:
        """Delete a job and all of its batches, because the file changed while it was being read."""
        await self._write(_FORGET_BATCHES, job)
        await self._write(_FORGET_JOB, job)

    async def save_run_state(self, state: Mapping[str, Any]) -> None:
        """Save the state of the run, as JSON, for `LedgerReader.run_state`."""
        await self._write(_SAVE_RUN_STATE, json.dumps(state))

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        with output_errors(self._path, "written"):
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _write(self, statement: str, *values: Any) -> None:
        """Run a statement; all statements that arrive while the disk is busy share the next commit."""
        write = _Write(statement, values, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        with output_errors(self._path, "written"):
            await asyncio.shield(write.committed)

    async def _flush(self) -> None:
        while self._waiting:
            writes, self._waiting = self._waiting, []
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, writes)
            except Exception as error:  # noqa: BLE001 - any error must reach the tasks that wait for the commit
                for write in writes:
                    write.committed.set_exception(error)
                    # Mark it as retrieved: if the waiting task was cancelled, asyncio would log a warning otherwise.
                    write.committed.exception()
            else:
                for write in writes:
                    write.committed.set_result(None)

    def _open(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            version = _check_version(self._database, self._path)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            if version == 0:
                self._database.executescript(f"BEGIN; {_CREATE_TABLES} COMMIT;")
            self._database.execute(_ADD_DURATIONS)
        except (sqlite3.Error, OutputError):
            self._database.close()
            raise

    def _close(self) -> None:
        self._database.close()

    def _select(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def _commit(self, writes: list[_Write]) -> None:
        self._database.execute("BEGIN")
        try:
            for write in writes:
                self._database.execute(write.statement, write.values)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


class LedgerReader:
    """Reads a ledger, also while a run is writing it. Use it as a context manager; every method raises OutputError.

    Any thread may use an open reader: a lock lets in one query at a time. Results are read a few batches at a time, so
    they take little memory. No query is left open meanwhile, so several iterations may take turns, and each sees all
    batches that were saved before its next query.
    """

    def __init__(self, out: Path) -> None:
        """Prepare to read the ledger in the folder `out`; it is opened when the block begins."""
        self._path = out / _NAME
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        if not self._path.exists():
            raise OutputError(f"{self._path}: no such file; expected the folder of a run")
        with output_errors(self._path, "read"):
            self._database = open_to_read(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            self._database.close()

    def frame_results(self, job: int) -> Iterator[FrameResult]:
        """Yield the result of each chosen frame of a captioner's job, in the order of the frames."""
        return frame_results(SavedFrameBatch.from_json(*row) for row in self._batches(job))

    def audio_results(self, job: int) -> Iterator[AudioResult]:
        """Yield the results of the audio of a speech model's job, in the order of time."""
        return audio_results(SavedAudioBatch.from_json(*row) for row in self._batches(job))

    def run_state(self) -> dict[str, Any] | None:
        """Return the state that the latest run saved last; None if no run has saved any."""
        rows = self._select(_FIND_RUN_STATE)
        return json.loads(rows[0][0]) if rows else None

    def _batches(self, job: int) -> Iterator[tuple[int, int, int | None, str]]:
        """Yield first, stop, anchor and results of each batch, in order."""
        last = -1
        while rows := self._select(_FIND_BATCHES, job, last, _BATCHES_READ_AT_ONCE):
            yield from rows
            last = rows[-1][0]

    def _select(self, statement: str, *values: Any) -> list[Any]:
        with output_errors(self._path, "read"), self._lock:
            if self._closed:
                raise OutputError(f"{self._path}: closed; read the results of a record before its run ends")
            return self._database.execute(statement, values).fetchall()


@contextmanager
def output_errors(path: Path, action: Literal["read", "written"]) -> Iterator[None]:
    """Turn an error of the disk or of SQLite into an OutputError that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if type(error) is sqlite3.DatabaseError:  # SQLite raises it for a file that is damaged or no database
            advice = "choose another --out"
        else:
            advice = "what was saved before is kept; run the same command again to continue"
        raise OutputError(f"{path}: cannot be {action}: {error}; {advice}") from error


def _check_version(database: sqlite3.Connection, path: Path) -> int:
    """Return the version of a ledger, which is 0 for a new one. Raises OutputError for an unknown version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        raise OutputError(f"{path}: expected a ledger of version {_VERSION}, got {version}; choose another --out")
    return int(version)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger to read it, also in a folder or on a file system that cannot be written to.

    SQLite refuses to read a database with a write-ahead log where it cannot create the log's files. Where there is no
    log, nobody writes, so the database is opened as one that does not change.

    Args:
        path: The ledger.

    Raises:
        OutputError: It is of a version that this program does not know.
        sqlite3.Error: It cannot be read.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        address += "&immutable=1"
    database = sqlite3.connect(address, uri=True, check_same_thread=False)
    try:
        _check_version(database, path)
    except BaseException:
        database.close()
        raise
    return database


def file_stat(path: str) -> str:
    """Return a text that changes whenever a file is written to or replaced. `size_in` reads the size from it.

    Raises:
        OSError: There is no such file, or its folder cannot be read.
    """
    stat = os.stat(path)
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev}"


def size_in(stat: str) -> int:
    """Return the size of a file, in bytes, from its `file_stat`."""
    return int(stat.split()[0])


def _path_bytes(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))
