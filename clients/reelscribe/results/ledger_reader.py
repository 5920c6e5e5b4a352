"""Reads the ledger: the records of its sources, and the state of the latest run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

from reelscribe.contract.fields import check_types
from reelscribe.contract.outcomes import AudioResult, ClipResult, FrameResult, SourceError, SourceSummary
from reelscribe.contract.source import Source, digest_in
from reelscribe.errors import OutputError, brief
from reelscribe.results.batches import (
    SavedAudioBatch,
    SavedClipBatch,
    SavedFrameBatch,
    SavedSummaryBatch,
    audio_results,
    clip_results,
    frame_results,
)
from reelscribe.results.jobs import Job, SavedVideo, job_from_row, source_error_from_json
from reelscribe.results.records import (
    FinishedSource,
    Kind,
    KnownSource,
    Model,
    ModelSettings,
    Record,
    ShotResult,
    error_of,
    video_fields,
    with_job,
)
from reelscribe.results.schema import FIND_SPANS, NAME, open_to_read, output_errors, path_key, row_errors
from reelscribe.results.shots import SavedShotBatch, shots_of_job
from reelscribe.storage.address import absolute_name, is_address, is_member

Batch = TypeVar("Batch", SavedFrameBatch, SavedAudioBatch, SavedClipBatch, SavedShotBatch, SavedSummaryBatch)

_BEFORE_ALL = -math.inf  # SQLite orders numbers before texts and bytes, so an edited row is found, too
_BATCHES_READ_AT_ONCE = 16
_SOURCES_READ_AT_ONCE = 1024

_FIND_BATCHES = "SELECT first, stop, anchor, results FROM batches WHERE job = ? AND first > ? ORDER BY first LIMIT ?"
_SOURCE_COLUMNS = "SELECT path, name, bytes, sha256, error, missing FROM sources"
_FIND_SOURCE = f"{_SOURCE_COLUMNS} WHERE path = ?"
_FIND_SOURCES = f"{_SOURCE_COLUMNS} WHERE path > ? ORDER BY path LIMIT ?"
_COUNT_SOURCES = "SELECT count(*) FROM sources"
_FIND_NAMES = "SELECT path, name, sha256, missing FROM sources ORDER BY path"
# A file that was changed keeps no result of its earlier content.
_FIND_RESULTS = """
    SELECT kind, settings.value, jobs.id, opened, total, done, error
    FROM results JOIN jobs ON jobs.id = results.job JOIN settings ON settings.id = jobs.settings
    WHERE results.path = ? AND jobs.sha256 = ?
"""
_FIND_OUTCOMES = """
    SELECT results.path, kind, settings.value, jobs.error
    FROM results JOIN sources USING (path) JOIN jobs ON jobs.id = results.job
    JOIN settings ON settings.id = jobs.settings
    WHERE results.path > ? AND results.path <= ? AND jobs.sha256 = sources.sha256
"""
_FIND_STAT = "SELECT stat FROM files WHERE path = ?"
_FIND_EXTRA = "SELECT value FROM extras WHERE path = ?"
_FIND_SETTINGS = "SELECT value FROM settings"
_FIND_RUN_STATE = "SELECT state FROM run"


class LedgerReader:
    """Reads a ledger, also while a run is writing it. Use it as a context manager; every method raises OutputError.

    Any thread may use an open reader: a lock lets in one query at a time. Results are read a few batches at a time, so
    they take little memory. No query is left open meanwhile, so several iterations may take turns, and each sees all
    batches that were saved before its next query.
    """

    def __init__(self, out: Path) -> None:
        """Prepare to read the ledger in the folder `out`; it is opened when the block begins."""
        self._path = out / NAME
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
        return frame_results(self._parsed_batches(job, SavedFrameBatch.from_json))

    def audio_results(self, job: int) -> Iterator[AudioResult]:
        """Yield the results of the audio of a speech model's job, in the order of time."""
        return audio_results(self._parsed_batches(job, SavedAudioBatch.from_json))

    def clip_results(self, job: int) -> Iterator[ClipResult]:
        """Yield the result of each clip of a clip model's job, in the order of the clips."""
        return clip_results(self._parsed_batches(job, SavedClipBatch.from_json))

    def summaries(self, job: int) -> Iterator[SourceSummary]:
        """Yield the summary of a chat model's job, if it has one."""
        batches = self._parsed_batches(job, SavedSummaryBatch.from_json)
        return (batch.summary for batch in batches if batch.summary)

    def sources(self) -> list[KnownSource]:
        """Return all sources that runs have finished, in the order of their absolute paths."""
        rows = self._select(_FIND_NAMES)
        with row_errors(self._path):
            return [
                KnownSource(_path(path), os.fsdecode(name), sha256, bool(missing))
                for path, name, sha256, missing in rows
            ]

    def finished(self) -> Iterator[FinishedSource]:
        """Yield what all sources that runs have finished are, without reading their results, in the order of paths."""
        last: Any = _BEFORE_ALL
        while rows := self._select(_FIND_SOURCES, last, _SOURCES_READ_AT_ONCE):
            outcomes = self._select(_FIND_OUTCOMES, last, rows[-1][0])
            with row_errors(self._path):
                finished = _finished_sources(rows, outcomes)
            yield from finished
            last = rows[-1][0]

    def records(self) -> Iterator[Record]:
        """Yield the record of each source that runs have finished, in the order of the absolute paths."""
        last: Any = _BEFORE_ALL
        while rows := self._select(_FIND_SOURCES, last, _SOURCES_READ_AT_ONCE):
            for row in rows:
                yield self._record(*row)
            last = rows[-1][0]

    def record(self, path: str) -> Record:
        """Return the record of a source. Raises KeyError if no run has finished it."""
        rows = self._select(_FIND_SOURCE, path_key(path))
        if not rows:
            raise KeyError(path)
        return self._record(*rows[0])

    def stat_of(self, path: bytes) -> str | None:
        """Return the `file_stat` that a source had when a run read it last; None if none has."""
        rows = self._select(_FIND_STAT, path)
        return rows[0][0] if rows else None

    def settings(self) -> list[ModelSettings]:
        """Return all models and settings that any results were made with."""
        return [_model_settings(text) for (text,) in self._select(_FIND_SETTINGS)]

    def select(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a query, for `known_files.look_up`."""
        return self._select(statement, *values)

    def count(self) -> int:
        """Return the number of sources that runs have finished."""
        return int(self._select(_COUNT_SOURCES)[0][0])

    def run_state(self) -> dict[str, Any] | None:
        """Return the state that the latest run saved last; None if no run has saved any."""
        rows = self._select(_FIND_RUN_STATE)
        with row_errors(self._path):
            return dict(json.loads(rows[0][0])) if rows else None

    def _record_of(self, source: Source, jobs: Iterable[tuple[Kind, str, Job]]) -> Record:
        """Return the record of a source from its kinds of annotations, their settings and jobs.

        The results of the jobs are read when they are asked for.
        """
        record = Record(source, absolute_path=absolute_name(source.path), folder=self._path.parent)
        results: dict[Kind, Callable[[int], Iterator[Any]]] = {
            "captions": self.frame_results,
            "clips": self.clip_results,
            "transcript": self.audio_results,
            "speakers": lambda _: iter(()),  # the turns are among the facts about the opened source
            "summary": self.summaries,
        }
        for kind, settings, job in jobs:
            if kind == "shots":
                record = replace(record, shot_result=self._shot_result(settings, job))
            else:
                record = with_job(record, kind, _model_settings(settings), job, partial(results[kind], job.id))
        return record

    def _record(
        self, key: bytes, name: bytes, size: int | None, sha256: str | None, error: str | None, missing: int
    ) -> Record:
        rows = self._select(_FIND_RESULTS, key, sha256)
        with row_errors(self._path):
            jobs = [(kind, text, job_from_row(job, self._select(FIND_SPANS, job[0]))) for kind, text, *job in rows]
            source = Source(os.fsdecode(name), size, sha256 or "")
            check_types(source)
            return replace(
                self._record_of(source, jobs),
                unreadable=source_error_from_json(error),
                version=self._version_of(key) if sha256 else None,
                extra=self._extra_of(key),
                missing=bool(missing),
                absolute_path=os.fsdecode(_path(key)),
            )

    def _version_of(self, key: bytes) -> str | None:
        """Return the version of the object that a run read last, or of its archive; None for what is in a file."""
        name = os.fsdecode(key)
        stat = self.stat_of(key) if is_address(name) else None
        if not stat:
            return None
        before = 3 if is_member(name) else 1  # its size, and for a member its place and the size of the archive
        return " ".join(stat.split(" ")[before:]) or None

    def _extra_of(self, key: bytes) -> dict[str, Any] | None:
        rows = self._select(_FIND_EXTRA, key)
        return dict(json.loads(rows[0][0])) if rows else None

    def _shot_result(self, settings: str, job: Job) -> ShotResult:
        result = ShotResult(_model_settings(settings), **video_fields(job))
        if not isinstance(job.opened, SavedVideo) or job.missing:
            return result
        batches = self._parsed_batches(job.id, SavedShotBatch.from_json)
        shots, transitions = shots_of_job(job.opened, result.settings.settings, batches)
        return replace(result, shots=shots, transitions=transitions)

    def _parsed_batches(self, job: int, parse: Callable[[int, int, int | None, str], Batch]) -> Iterator[Batch]:
        """Yield the batches of a job, in order."""
        for row in self._batches(job):
            with row_errors(self._path):
                batch = parse(*row)
            yield batch

    def _batches(self, job: int) -> Iterator[tuple[int, int, int | None, str]]:
        """Yield first, stop, anchor and results of each batch, in order."""
        last = -1
        while rows := self._select(_FIND_BATCHES, job, last, _BATCHES_READ_AT_ONCE):
            yield from rows
            if len(rows) < _BATCHES_READ_AT_ONCE:
                return
            last = rows[-1][0]

    def _select(self, statement: str, *values: Any) -> list[Any]:
        with output_errors(self._path, "read"), self._lock:
            if self._closed:
                raise OutputError(f"{self._path}: closed; read the results of a record before its run ends")
            return self._database.execute(statement, values).fetchall()


def earlier_run_state(out: Path) -> dict[str, Any] | None:
    """Return the state that the latest run into a folder saved last; None if there was none.

    Raises:
        OutputError: The ledger cannot be read.
    """
    if not (out / NAME).exists():
        return None
    with LedgerReader(out) as reader:
        return reader.run_state()


def _path(value: Any) -> bytes:
    """Return the path of a source, as the ledger has it; raise TypeError for anything else."""
    if not isinstance(value, bytes):
        raise TypeError(f"path: expected bytes, got {brief(value)}")
    return value


@lru_cache
def _model_settings(text: str) -> ModelSettings:
    """Return the model and the settings that `Ledger.settings_id` was given."""
    settings = dict(json.loads(text))
    model = Model(*settings.pop("model"))
    check_types(model)
    return ModelSettings(text, model, settings)


def _finished_sources(rows: Iterable[Any], outcomes: Iterable[Any]) -> list[FinishedSource]:
    """Return sources by their rows, and the rows of what came of each kind: path, kind, settings and error."""
    kinds: dict[bytes, dict[Kind, tuple[str, SourceError | None]]] = {}
    for path, kind, settings, error in outcomes:
        kinds.setdefault(path, {})[kind] = _model_settings(settings).id, source_error_from_json(error)
    return [
        FinishedSource(
            path=_path(path),
            name=os.fsdecode(name),
            bytes=size,
            sha256=digest_in(sha256),
            missing=bool(missing),
            error=source_error_from_json(error)
            or error_of({kind: each[1] for kind, each in kinds.get(path, {}).items()}),
            settings={kind: each[0] for kind, each in kinds.get(path, {}).items()},
        )
        for path, name, size, sha256, error, missing in rows
    ]
