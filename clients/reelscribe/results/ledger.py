"""The ledger, OUT/ledger.sqlite: every result is saved as soon as it is known, so that no work is done twice.

A job is the annotation of one content (identified by the SHA-256 of the file) by one model with its settings; a change
of any of them makes another job. Records are made from the saved batches of jobs, at any time (ledger_reader.py); the
tables are in schema.py. SQLite keeps a write-ahead log and waits for the disk at each commit (synchronous=FULL): a
commit survives a loss of power, and the next run repeats what was not committed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from reelscribe._tasks import CallBatcher, Reservations
from reelscribe.contract.outcomes import DescribedClip, Segment, SourceError, Utterance
from reelscribe.contract.source import Header, Section, Source, is_key
from reelscribe.errors import OutputError
from reelscribe.results.batches import (
    SavedAudioBatch,
    SavedBatch,
    SavedClipBatch,
    SavedFrameBatch,
    audio_results,
    clip_results,
    frame_results,
)
from reelscribe.results.jobs import Job, SavedSource, SavedVideo, job_from_row
from reelscribe.results.known_files import AskedFile, KnownFile, look_up
from reelscribe.results.records import Kind, KnownSource, caption_spans
from reelscribe.results.schema import FIND_SPANS, NAME, open_ledger, output_errors, path_key, row_errors, settings_text
from reelscribe.results.shots import SavedShotBatch, shots_of_job
from reelscribe.results.speakers import SavedVoiceBatch, TimedVoices
from reelscribe.storage.address import file_of

_FIND_DIGEST = "SELECT sha256 FROM files WHERE path = ? AND stat = ?"
_SAVE_DIGEST = "INSERT OR REPLACE INTO files VALUES (?, ?, ?)"
_SAVE_HEADER = "INSERT OR REPLACE INTO headers VALUES (?, ?, ?, ?)"
_FIND_SETTINGS = "SELECT id FROM settings WHERE value = ?"
_ADD_SETTINGS = "INSERT OR IGNORE INTO settings (value) VALUES (?)"
_FIND_JOB = "SELECT id, opened, total, done, error FROM jobs WHERE sha256 = ? AND settings = ?"
_FIND_OPENED = "SELECT opened, value FROM jobs JOIN settings ON settings.id = jobs.settings WHERE jobs.id = ?"
_FIND_SHOWN = """
    SELECT settings.value, jobs.id, opened, total, done, error
    FROM results JOIN jobs ON jobs.id = results.job JOIN settings ON settings.id = jobs.settings
    WHERE results.path = ? AND sha256 = ? AND kind = ? AND done
"""
_ADD_JOB = "INSERT INTO jobs (sha256, settings) VALUES (?, ?) RETURNING id"
_SAVE_OPENED = "UPDATE jobs SET opened = ?, total = ? WHERE id = ? AND (total IS NULL OR ? IS NOT NULL)"
_FINISH_JOB = "UPDATE jobs SET done = 1, error = ? WHERE id = ?"
_REOPEN_JOB = "UPDATE jobs SET done = 0, opened = NULL, total = NULL WHERE id = ?"
_FIND_BATCHES = "SELECT first, stop, anchor, results FROM batches WHERE job = ? ORDER BY first"
_SAVE_BATCH = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)"
_COUNT_FAILURES = """
    SELECT json_extract(failure.value, '$[2]'), count(*) FROM batches, json_each(batches.results, '$[2]') AS failure
    WHERE job = ? GROUP BY 1 ORDER BY min(first)
"""
_FORGET_FAILED_BATCHES = "DELETE FROM batches WHERE job = ? AND json_array_length(results, '$[2]') > 0"
_FORGET_BATCHES = "DELETE FROM batches WHERE job = ?"
_SAVE_SOURCE = """
    INSERT INTO sources (path, name, bytes, sha256, error) VALUES (?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET
        name = excluded.name, bytes = coalesce(excluded.bytes, bytes), sha256 = coalesce(excluded.sha256, sha256),
        error = excluded.error, missing = 0
"""
_SAVE_RESULT = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
_FIND_SOURCES = "SELECT path, missing, bytes FROM sources WHERE path > ? ORDER BY path LIMIT ?"
_SOURCES_AT_ONCE = 1024  # a library of millions does not fit into memory
_SAVE_MISSING = "UPDATE sources SET missing = ? WHERE path = ?"
_FORGET_SOURCE = (
    "DELETE FROM results WHERE path = ?1",
    "DELETE FROM headers WHERE path = ?1",
    "DELETE FROM extras WHERE path = ?1",
    "DELETE FROM files WHERE path = ?1",
    "DELETE FROM sources WHERE path = ?1",
)
_FORGET_CONTENT = (
    # A source whose content has changed may still have results of its earlier content.
    """
    DELETE FROM results WHERE job IN (SELECT id FROM jobs WHERE sha256 = ?1)
    AND NOT EXISTS (SELECT 1 FROM sources WHERE sha256 = ?1)
    """,
    """
    DELETE FROM batches WHERE job IN (SELECT id FROM jobs WHERE sha256 = ?1)
    AND NOT EXISTS (SELECT 1 FROM sources WHERE sha256 = ?1)
    """,
    "DELETE FROM jobs WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM sources WHERE sha256 = ?1)",
)
_SAVE_EXTRA = "INSERT OR REPLACE INTO extras VALUES (?, ?)"
_SAVE_RUN_STATE = "INSERT OR REPLACE INTO run VALUES (1, ?)"

T = TypeVar("T")


Query = Callable[[], Any]
"""Reads from the database or writes to it, in its thread and inside a transaction."""


class Ledger:
    """The ledger of a run, for the one process that writes it. Use it as an async context manager.

    A thread of its own works with the database, so that the event loop never waits for the disk. All that is asked
    while the thread is busy is its next transaction, so many short sources share its turns and the waits for the disk.
    Most methods return a future: what they ask is queued by the call, in the order of the calls, and the future is done
    when it is on the disk. Awaiting it raises OutputError if the disk is full or fails.
    """

    def __init__(self, out: Path) -> None:
        """Prepare the ledger in the folder `out`; it is created or opened when the block begins."""
        self._path = out / NAME
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._calls = CallBatcher[Query, Any](self._answer_all)
        self.reservations = Reservations()
        """The contents on which somebody works, by their digests."""
        self._reopened: set[int] = set()

    async def __aenter__(self) -> Self:
        try:
            with output_errors(self._path, "written"):
                self._database = await self._in_thread(open_ledger, self._path)
        except OutputError:
            self._thread.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._calls.end()
        with output_errors(self._path, "written"):
            await self._in_thread(self._database.close)
        self._thread.shutdown()

    async def find_digest(self, path: str, stat: str) -> str | None:
        """Return the digest of a file that was read before.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file now.

        Returns:
            The SHA-256 in hexadecimal digits; None if the file was never read, or was written to since, or if what is
            saved is no digest.
        """
        rows = await self._ask(self._select, _FIND_DIGEST, path_key(path), stat)
        return rows[0][0] if rows and is_key(rows[0][0]) else None

    def look_up(self, files: Sequence[AskedFile]) -> asyncio.Future[list[KnownFile]]:
        """Return what is known about files; see `known_files.look_up`."""
        return self._ask(look_up, self._select, files)

    def save_digest(self, path: str, stat: str, source: Source) -> asyncio.Future[None]:
        """Save the digest of a file.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file before it was read.
            source: The file with its digest.
        """
        return self._write(_SAVE_DIGEST, path_key(path), stat, source.sha256)

    def save_header(self, path: str, stat: str, header: Header) -> asyncio.Future[None]:
        """Save what the header of a file says.

        Args:
            path: Path of the file.
            stat: The `file_stat` of the file before its header was read.
            header: What it says.
        """
        return self._write(_SAVE_HEADER, path_key(path), stat, header.seconds, header.frames_per_second)

    def settings_id(self, settings: Mapping[str, Any]) -> asyncio.Future[int]:
        """Return the number of a model with its settings, which are added if they are new.

        Args:
            settings: Everything that decides the results of a content, the model included, as JSON. Equal settings
                have the same number in every run.
        """
        return self._ask(self._settings_id, settings_text(settings))

    def job(self, sha256: str, settings: int) -> asyncio.Future[Job]:
        """Return the job of a content. If the ledger does not have it yet, it is added.

        Args:
            sha256: Digest of the content, in hexadecimal digits.
            settings: What `settings_id` returned.
        """
        return self._ask(self._job, sha256, settings)

    def shown(self, path: str, sha256: str, kind: Kind) -> asyncio.Future[tuple[str, Job] | None]:
        """Return what the record of a source shows: the model with its settings as `settings_text`, and the job.

        Args:
            path: Path of the source.
            sha256: Digest of its content, in hexadecimal digits. Results of another content are not shown.
            kind: The kind of annotations.

        Returns:
            None if it shows nothing of this kind, or what is being tried again.
        """
        return self._ask(self._shown, path_key(path), sha256, kind)

    def outcome(self, sha256: str, settings: int) -> asyncio.Future[tuple[Job, dict[str, int]]]:
        """Return the job of a content, and the number of its failed frames or chunks by reason, the earliest first.

        Args:
            sha256: Digest of the content, in hexadecimal digits.
            settings: What `settings_id` returned.
        """
        return self._ask(self._outcome, sha256, settings)

    def hold(self, sha256: str) -> AbstractAsyncContextManager[None]:
        """Reserve a content for the block, so that copies of a file are annotated once: others wait until it ends.

        Args:
            sha256: Digest of the content, in hexadecimal digits.
        """
        return self.reservations.hold(sha256)

    def utterances(self, job: int) -> asyncio.Future[list[Utterance]]:
        """Return what is said in a content, in the order of time.

        Args:
            job: Number of the job of a speech model.
        """
        return self._ask(self._utterances, job)

    def texts(self, kind: Kind, job: int) -> asyncio.Future[list[Segment]]:
        """Return what a job has found to be seen or said in a content, in the order of time.

        Args:
            kind: "captions", of which equal ones in a row are one text, "clips" or "transcript".
            job: Number of the job.
        """
        return self._ask(self._texts, kind, job)

    def shots(self, job: int) -> asyncio.Future[list[Section]]:
        """Return the shots of a content, in order.

        Args:
            job: Number of a job that looks for shots, and that has all results.
        """
        return self._ask(self._shots, job)

    def voices(self, job: int) -> asyncio.Future[list[TimedVoices]]:
        """Return the voices of a content, in the order of time.

        Args:
            job: Number of the job of a speaker model.
        """
        return self._ask(self._voices, job)

    def save_opened(self, job: int, opened: SavedSource | None, total: int | None) -> asyncio.Future[None]:
        """Save what is known about a source that was opened.

        Args:
            job: Number of the job.
            opened: What is known about the source; None for a job that opens none.
            total: Number of its chosen frames or samples. None if it is not known yet, as for audio before its end has
                been read; then nothing is saved if a total has been saved before.
        """
        return self._write(_SAVE_OPENED, json.dumps(opened.to_json()) if opened else None, total, job, total)

    def save_batch(self, job: int, batch: SavedBatch) -> asyncio.Future[None]:
        """Save the results of a batch.

        Args:
            job: Number of the job.
            batch: The results; they replace those of a batch that begins with the same frame or sample.
        """
        return self._write(_SAVE_BATCH, job, batch.first, batch.stop, batch.anchor, batch.results_to_json())

    def reopen(self, job: int) -> asyncio.Future[None]:
        """Delete the batches of a job that have failures, so that they are tried again.

        The job keeps its error until it is done again, so that its record does not look well meanwhile. As long as this
        ledger is open, a job is reopened only once: later calls change nothing, however many copies of a file there
        are, and whoever asks.
        """
        if job in self._reopened:
            return self._write_all()
        self._reopened.add(job)
        return self._write_all((_FORGET_FAILED_BATCHES, (job,)), (_REOPEN_JOB, (job,)))

    def forget(self, job: int) -> asyncio.Future[None]:
        """Delete all batches of a job, because the file changed while it was being read.

        The job keeps its error until it is done again, so that the records of copies do not look well meanwhile.
        """
        return self._write_all((_FORGET_BATCHES, (job,)), (_REOPEN_JOB, (job,)))

    def save_source(self, source: Source, jobs: Mapping[Kind, Job]) -> asyncio.Future[None]:
        """Save that a source is done, and which jobs have its results from now on.

        Args:
            source: The source with its size and digest.
            jobs: The job for each kind of annotations that the run made, with the error that it ended with. Other kinds
                stay as they are.
        """
        key = path_key(source.path)
        return self._write_all(
            *((_FINISH_JOB, (json.dumps(job.error) if job.error else None, job.id)) for job in jobs.values()),
            (_SAVE_SOURCE, (key, os.fsencode(source.path), source.bytes, source.sha256, None)),
            *((_SAVE_RESULT, (key, kind, job.id)) for kind, job in jobs.items()),
        )

    def save_unreadable(self, path: str, error: SourceError) -> asyncio.Future[None]:
        """Save that a source could not be read. What is known of it from before stays."""
        return self._write(_SAVE_SOURCE, path_key(path), os.fsencode(path), None, None, json.dumps(error))

    async def mark_missing(self) -> int:
        """Save for each source whether it is not on the disk, and return how many are not that a run has read."""
        count, last = 0, b""
        while known := await self._ask(self._select, _FIND_SOURCES, last, _SOURCES_AT_ONCE):
            missing = await asyncio.to_thread(_missing, known)
            changed = [(path in missing, path) for path, was, _ in known if (path in missing) != bool(was)]
            if changed:
                await self._write_all(*((_SAVE_MISSING, values) for values in changed))
            count += sum(path in missing and size is not None for path, _, size in known)
            last = known[-1][0]
        return count

    def save_extras(self, extras: Mapping[str, str]) -> asyncio.Future[None]:
        """Save what lists say of sources besides their names, as JSON objects by the paths of the sources."""
        return self._write_all(*((_SAVE_EXTRA, (path_key(path), value)) for path, value in extras.items()))

    def forget_sources(self, sources: Collection[KnownSource]) -> asyncio.Future[None]:
        """Delete everything about sources, except for results that another source with the same content has."""
        return self._write_all(
            *((statement, (source.path,)) for source in sources for statement in _FORGET_SOURCE),
            *((statement, (source.sha256,)) for source in sources for statement in _FORGET_CONTENT),
        )

    def save_run_state(self, state: Mapping[str, Any]) -> asyncio.Future[None]:
        """Save the state of the run, as JSON, for `LedgerReader.run_state`."""
        return self._write(_SAVE_RUN_STATE, json.dumps(state))

    def _write(self, statement: str, *values: Any) -> asyncio.Future[None]:
        return self._write_all((statement, values))

    def _write_all(self, *statements: tuple[str, tuple[Any, ...]]) -> asyncio.Future[None]:
        return self._ask(self._execute_all, statements)

    def _ask(self, query: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a query in the next transaction. It is answered when the transaction is committed."""
        return self._calls.ask(partial(query, *arguments))

    async def _answer_all(self, queries: list[Query]) -> list[Any]:
        with output_errors(self._path, "written"):
            return await self._in_thread(self._commit, queries)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # What follows runs in the thread of the database.

    def _commit(self, queries: list[Query]) -> list[Any]:
        """Return the answers of all queries, which are committed together or not at all.

        The answer of a query that finds a row of which it makes nothing is its error; the others go on.
        """
        self._database.execute("BEGIN")
        try:
            answers = [self._answer(query) for query in queries]
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        return answers

    def _answer(self, query: Query) -> Any:
        try:
            with row_errors(self._path):
                return query()
        except OutputError as error:
            return error

    def _execute_all(self, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        for statement, values in statements:
            self._database.execute(statement, values)

    def _select(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def _settings_id(self, text: str) -> int:
        self._database.execute(_ADD_SETTINGS, (text,))
        return int(self._select(_FIND_SETTINGS, text)[0][0])

    def _job(self, sha256: str, settings: int) -> Job:
        for row in self._select(_FIND_JOB, sha256, settings):
            return job_from_row(row, self._select(FIND_SPANS, row[0]))
        (number,) = self._select(_ADD_JOB, sha256, settings)[0]
        return job_from_row((number, None, None, 0, None), ())

    def _shown(self, *key: Any) -> tuple[str, Job] | None:
        for text, *row in self._select(_FIND_SHOWN, *key):
            return str(text), job_from_row(tuple(row), self._select(FIND_SPANS, row[0]))
        return None

    def _outcome(self, sha256: str, settings: int) -> tuple[Job, dict[str, int]]:
        job = self._job(sha256, settings)
        return job, dict(self._select(_COUNT_FAILURES, job.id))

    def _utterances(self, job: int) -> list[Utterance]:
        batches = (SavedAudioBatch.from_json(*row) for row in self._database.execute(_FIND_BATCHES, (job,)))
        return [result for result in audio_results(batches) if isinstance(result, Utterance)]

    def _texts(self, kind: Kind, job: int) -> list[Segment]:
        if kind == "transcript":
            return [Segment(said.start, said.end, said.line) for said in self._utterances(job)]
        ((opened, _),) = self._select(_FIND_OPENED, job)
        rows = self._database.execute(_FIND_BATCHES, (job,))
        if kind == "captions":
            results = frame_results(SavedFrameBatch.from_json(*row) for row in rows)
            video = SavedVideo.from_json(json.loads(opened)) if opened else None
            return [*caption_spans(results, video.end_seconds, video.info.gaps or ())] if video else []
        clips = clip_results(SavedClipBatch.from_json(*row) for row in rows)
        return [Segment(clip.start, clip.end, clip.text) for clip in clips if isinstance(clip, DescribedClip)]

    def _shots(self, job: int) -> list[Section]:
        ((opened, settings),) = self._select(_FIND_OPENED, job)
        batches = (SavedShotBatch.from_json(*row) for row in self._database.execute(_FIND_BATCHES, (job,)))
        return [*shots_of_job(SavedVideo.from_json(json.loads(opened)), json.loads(settings), batches)[0]]

    def _voices(self, job: int) -> list[TimedVoices]:
        batches = (SavedVoiceBatch.from_json(*row) for row in self._database.execute(_FIND_BATCHES, (job,)))
        return [chunk for batch in batches for chunk in batch.chunks]


def _missing(known: Iterable[tuple[bytes, int, int | None]]) -> set[bytes]:
    """Return the paths that are not on the disk. No store is asked."""
    return {path for path, *_ in known if (file := file_of(os.fsdecode(path))) and not os.path.lexists(file)}
