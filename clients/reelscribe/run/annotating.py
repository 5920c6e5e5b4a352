"""One source of a run: digested once, worked on by every track at the same time, until its record can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from reelscribe.contract.annotations import SourceError
from reelscribe.contract.source import Source
from reelscribe.errors import MediaError
from reelscribe.results.jobs import Job
from reelscribe.results.ledger import Ledger, file_stat
from reelscribe.results.records import Record
from reelscribe.run.meter import Meter
from reelscribe.run.track import Stopped, Track, source_error


class Annotator:
    """Annotates sources with the models of a run, many sources at once."""

    def __init__(self, tracks: Sequence[Track[Any, Any, Any, Any, Any]], *, ledger: Ledger, meter: Meter) -> None:
        """Take the parts of a run.

        Args:
            tracks: One for each model, begun.
            ledger: Where digests and jobs are saved.
            meter: Counts finished sources.
        """
        self._tracks, self._ledger, self._meter = tracks, ledger, meter
        self._pool = tracks[0].pool
        self._contents: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Few at once, or everything that is open would be read for its digest before the first of it is decoded.
        self._digesting = asyncio.Semaphore(max(1, self._pool.workers // 2))

    def stop(self) -> None:
        """Decode no more. Requests that are in flight are still saved; sources that are not done raise Stopped."""
        for track in self._tracks:
            track.stop()

    async def annotate(self, path: str) -> Record:
        """Work on a source until all of it is done, and return its record.

        A source that cannot be read, or that no model can answer, is done as well: its record holds the error.

        Raises:
            Stopped: The run was told to stop.
            OutputError: The ledger cannot be written.
            ServerError: No server can be used.
        """
        self._tracks[0].raise_if_stopping()
        try:
            stat = await asyncio.to_thread(_stat, path)
            source = await self._digest(path, stat)
            lock = self._contents.setdefault(source.sha256, asyncio.Lock())
            async with lock:  # copies of a file are annotated once
                jobs = await self._finished_jobs(source, stat)
        except MediaError as error:
            self._tracks[0].raise_if_stopping()
            record = Record(Source(path))
            for track in self._tracks:
                record = track.add_error(record, source_error(error))
        else:
            record = Record(source)
            for track, job in zip(self._tracks, jobs, strict=True):
                record = track.add_to(record, job)
        self._meter.finished(path, failed=record.status == "error")
        return record

    async def _digest(self, path: str, stat: str | None) -> Source:
        """Return size and digest, from the ledger if the file has not been touched since it was read for them."""
        if stat and (sha256 := await self._ledger.find_digest(path, stat)):
            return Source(path, int(stat.split()[0]), sha256)
        async with self._digesting:
            self._tracks[0].raise_if_stopping()
            source = await self._pool.digest_file(path)
        if stat:
            await self._ledger.save_digest(path, stat, source)
        return source

    async def _finished_jobs(self, source: Source, stat: str | None) -> list[Job]:
        jobs = [await track.job_to_do(source) for track in self._tracks]
        todo = [(track, job) for track, job in zip(self._tracks, jobs, strict=True) if not job.done]
        if not todo:
            return jobs
        errors = await _gather([asyncio.create_task(track.work(source, job)) for track, job in todo])
        await self._check_unchanged(source, [job for _, job in todo], stat)
        for (_, job), error in zip(todo, errors, strict=True):
            await self._ledger.finish(job.id, error)
        return [await track.job(source) for track in self._tracks]

    async def _check_unchanged(self, source: Source, jobs: Sequence[Job], stat: str | None) -> None:
        """Raise MediaError if the file that was decoded is not the file that was digested."""
        now = await asyncio.to_thread(_stat, source.path)
        if now == stat:
            return
        if now is None:
            raise MediaError("it is not there any more; what was done of it is kept for when it is")
        if (await self._digest(source.path, now)).sha256 != source.sha256:
            for job in jobs:
                await self._ledger.forget(job.id)
            raise MediaError("it was changed while it was being read; run the same command again")


async def _gather(tasks: Sequence[asyncio.Task[SourceError | None]]) -> list[SourceError | None]:
    """Return the results of all tasks. An error cancels the others, but Stopped lets them save what is in flight."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(isinstance(task.exception(), Stopped) for task in done):
            done, _ = await asyncio.wait(tasks)
        # The reason why a run cannot go on is worth more than that it was stopped.
        for error in sorted(filter(None, (task.exception() for task in done)), key=lambda e: isinstance(e, Stopped)):
            raise error
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _stat(path: str) -> str | None:
    """Return None for what cannot be looked at; the decode process that digests it says why."""
    try:
        return file_stat(path)
    except (OSError, ValueError):
        return None
