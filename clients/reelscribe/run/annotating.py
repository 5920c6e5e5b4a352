"""One source: identified once, then read for each model at the same time, until its record can be written."""

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
from reelscribe.run.track import Stopped, Track


class Annotator:
    """Annotates sources with the models of a run, many sources at once."""

    def __init__(self, tracks: Sequence[Track[Any, Any, Any]], *, ledger: Ledger, meter: Meter) -> None:
        self._tracks, self._ledger, self._meter = tracks, ledger, meter
        self._pool = tracks[0].pool
        self._contents: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Few, or all that is open would be read for its digest before the first of it is decoded.
        self._digesting = asyncio.Semaphore(max(1, self._pool.workers // 2))

    def stop(self) -> None:
        """Decode no more; what has been sent is still saved. Sources that are not done raise Stopped."""
        for track in self._tracks:
            track.stop()

    async def annotate(self, path: str) -> Record:
        """The record of a source, when all of it is done.

        A source that cannot be read or answered is done as well. Raises Stopped, OutputError, and ServerError if no
        server can be used.
        """
        self._tracks[0].raise_if_stopping()
        try:
            stat = await asyncio.to_thread(_stat, path)
            source = await self._digest_file(path, stat)
            lock = self._contents.setdefault(source.sha256, asyncio.Lock())
            async with lock:  # copies of a file are annotated once
                jobs = await self._jobs(source, stat)
        except MediaError as error:
            self._tracks[0].raise_if_stopping()
            record = Record(Source(path))
            for track in self._tracks:
                record = track.add_error(record, error)
        else:
            record = Record(source)
            for track, job in zip(self._tracks, jobs, strict=True):
                record = track.add_to(record, job)
        self._meter.finished(path, failed=record.status == "error")
        return record

    async def _digest_file(self, path: str, stat: str | None) -> Source:
        """Size and digest, from the ledger if the file has not been touched since it was read for them."""
        if stat and (sha256 := await self._ledger.find_digest(path, stat)):
            return Source(path, int(stat.split()[0]), sha256)
        async with self._digesting:
            self._tracks[0].raise_if_stopping()
            source = await self._pool.digest_file(path)
        if stat:
            await self._ledger.save_digest(path, stat, source)
        return source

    async def _jobs(self, source: Source, stat: str | None) -> list[Job]:
        """The jobs of a source, done."""
        jobs = [await track.job_to_do(source) for track in self._tracks]
        todo = [(track, job) for track, job in zip(self._tracks, jobs, strict=True) if not job.done]
        if not todo:
            return jobs
        errors = await _all([asyncio.create_task(track.work(source, job)) for track, job in todo])
        await self._check_unchanged(source, [job for _, job in todo], stat)
        for (_, job), error in zip(todo, errors, strict=True):
            await self._ledger.finish(job.id, error)
        return [await track.job(source) for track in self._tracks]

    async def _check_unchanged(self, source: Source, jobs: Sequence[Job], stat: str | None) -> None:
        """What was read is what was identified. Raises MediaError."""
        now = await asyncio.to_thread(_stat, source.path)
        if now == stat:
            return
        if now is None:
            raise MediaError("it is not there any more; what was done of it is kept for when it is")
        if (await self._digest_file(source.path, now)).sha256 != source.sha256:
            for job in jobs:
                await self._ledger.forget(job.id)
            raise MediaError("it was changed while it was being read; run the same command again")


async def _all(tasks: Sequence[asyncio.Task[SourceError | None]]) -> list[SourceError | None]:
    """What they return. An error ends the others too, but when the run is to end they save what has been sent."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(isinstance(task.exception(), Stopped) for task in done):
            done, _ = await asyncio.wait(tasks)
        # Why the run cannot go on comes before that it is to end.
        for error in sorted(filter(None, (task.exception() for task in done)), key=lambda e: isinstance(e, Stopped)):
            raise error
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _stat(path: str) -> str | None:
    """None for what cannot be looked at; whoever identifies it says why."""
    try:
        return file_stat(path)
    except (OSError, ValueError):
        return None
