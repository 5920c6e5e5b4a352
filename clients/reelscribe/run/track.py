"""What one model makes of sources: each is read by a decode process, sent part by part, and saved as it is answered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar, cast

from reelscribe.client.balancer import ModelClient
from reelscribe.client.endpoint import Answer, Description
from reelscribe.contract.annotations import SourceError
from reelscribe.contract.source import Source
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.process import Reading
from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import MediaError, ServerError
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.ledger import Ledger, LedgerReader
from reelscribe.results.records import Model, Record
from reelscribe.run.meter import Counts, Lane, Meter

Opened = TypeVar("Opened")
Batch = TypeVar("Batch", bound=DecodedBatch)
Answers = TypeVar("Answers")


class Stopped(Exception):
    """The run is to end, and a source is not done."""


class Track(ABC, Generic[Opened, Batch, Answers]):
    """One model of a run, which begins with `begin`.

    What is the same for frames and for sound is here; captioning.py and transcribing.py say what is not.
    """

    counts: Counts

    def __init__(
        self,
        client: ModelClient[Any],
        description: Description,
        settings: Mapping[str, Any],
        pool: DecodePool,
        *,
        held_batches: int = 1,
        retry_failed: bool,
    ) -> None:
        """So many parts are held before the first is sent."""
        self.pool = pool
        self._client, self._model, self._settings = client, Model(description.name, description.revision), settings
        self._workers, self._held_parts, self._retry_failed = description.workers, held_batches, retry_failed
        self._reopened: set[int] = set()
        self._stopping = False

    async def begin(self, ledger: Ledger, reader: LedgerReader, meter: Meter) -> None:
        """Where it saves, what its records read, and who counts."""
        self._ledger, self._reader = ledger, reader
        self._lane: Lane = meter.lane(
            self.counts,
            decode_workers=self.pool.workers,
            server_workers=self._workers,
            decode_seconds=lambda: self.pool.busy_seconds,
            decoded=lambda: self.pool.decoded,
            waiting_for=lambda: self._client.waiting_for,
        )
        self._client.on_answer = self._count
        model = [self._model.name, self._model.revision]
        self._settings_id = await ledger.settings_id({"model": model, **self._settings})

    def stop(self) -> None:
        """Decode no more; what has been sent is still saved, if there is a server. What is not done raises Stopped."""
        self._stopping = True
        self.pool.stop()
        self._client.stop_waiting()

    def raise_if_stopping(self) -> None:
        """Raises Stopped."""
        if self._stopping:
            raise Stopped

    async def job(self, source: Source) -> Job:
        """What is done of a source."""
        return await self._ledger.job(source.sha256, self._settings_id)

    async def job_to_do(self, source: Source) -> Job:
        """The same; one that failed in an earlier run is begun anew if that is wanted."""
        job = await self.job(source)
        failed = job.done and job.error and not job.error.is_missing_stream
        if failed and self._retry_failed and job.id not in self._reopened:
            self._reopened.add(job.id)  # once in a run, however many copies there are
            await self._ledger.reopen(job.id)
            job = await self.job(source)
        return job

    async def work(self, source: Source, job: Job) -> SourceError | None:
        """Do what is missing of a job; returns the error that it ends with."""
        try:
            if job.missing:
                await self._read_and_send(source.path, job)
        except MediaError as failure:
            self.raise_if_stopping()
            return told(failure)
        job = await self.job(source)
        return self._verdict(job, await self._ledger.failures(job.id))

    @abstractmethod
    def add_to(self, record: Record, job: Job) -> Record:
        """The record, with what came of a job that is done."""

    @abstractmethod
    def add_error(self, record: Record, error: MediaError) -> Record:
        """The record of a source that cannot be read."""

    @abstractmethod
    def ask(self, part: Batch) -> Coroutine[Any, Any, Answers]:
        """What the model says of a part."""

    @abstractmethod
    def _reading(self, path: str) -> Reading[Opened, Batch]:
        """What a decode process is asked for."""

    @abstractmethod
    def _to_save(self, opened: Opened) -> tuple[SavedSource, int | None]:
        """What is saved of a source that was opened, and how many frames or samples it has, if that is known."""

    @abstractmethod
    def _results(self, part: Batch, answers: Answers) -> tuple[SavedBatch, float]:
        """What came of a part, and how much of what this track counts that is."""

    @abstractmethod
    def _share(self, opened: Opened, first: int, stop: int | None) -> tuple[float, float]:
        """How much of a source lies from `first` to before `stop`, and how many seconds that takes to be played."""

    @abstractmethod
    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Whether a job of which nothing is missing any more went well."""

    def _count(self, answer: Answer) -> None:
        self._lane.answered(answer.network_seconds, answer.queue_seconds, answer.compute_seconds)

    async def _read_and_send(self, path: str, job: Job) -> None:
        sending = _Sending[Opened, Batch, Answers](self, path, job, self._client, self._held_parts)
        died: MediaError | None = None
        try:
            try:
                parts = self.pool.read(self._reading(path), job.missing)
                async with aclosing(parts):
                    async for part in parts:
                        if isinstance(part, DecodedBatch):
                            await sending.send(cast(Batch, part))
                        else:
                            sending.opened = part
                            await self._opened(path, job, part)
            except MediaError as error:
                died = error  # what came before it is asked about all the same
            await sending.finish()
            if died:
                raise died
        except asyncio.CancelledError:
            sending.cancel()
            raise
        finally:
            await sending.close()

    async def _opened(self, path: str, job: Job, opened: Opened) -> None:
        await self._ledger.save_opened(job.id, *self._to_save(opened))
        if not self._lane.is_open(path):
            missing = sum(self._share(opened, span.first, span.stop)[0] for span in job.missing)
            self._lane.opened(path, max(0.0, 1 - missing))

    async def save(self, path: str, job: Job, opened: Opened, part: Batch, answers: Answers) -> None:
        """Save what came of a part."""
        results, count = self._results(part, answers)
        await self._ledger.save_batch(job.id, results)
        share, seconds = self._share(opened, part.first, part.stop)
        self._lane.saved(path, count, share, seconds)


class _Sending(Generic[Opened, Batch, Answers]):
    """The parts of one source on their way to the model and into the ledger."""

    opened: Opened

    def __init__(
        self,
        track: Track[Opened, Batch, Answers],
        path: str,
        job: Job,
        client: ModelClient[Any],
        held_batches: int,
    ) -> None:
        self._track, self._path, self._job, self._client = track, path, job, client
        self._most = held_batches
        self._held: list[Batch] = []
        self._tasks: dict[asyncio.Task[None], asyncio.Task[Answers]] = {}

    async def send(self, part: Batch) -> None:
        """Send it, as soon as it may be, with those that were held before it."""
        self._held.append(part)
        if len(self._held) >= self._most:
            await self._send_held()
        for task in [task for task in self._tasks if task.done()]:
            del self._tasks[task]
            task.result()  # stop reading a source whose parts cannot be saved

    async def finish(self) -> None:
        """Send the rest, and wait until all is saved."""
        await self._send_held()
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """Give up what has been sent."""
        for task in (*self._tasks, *self._tasks.values()):
            task.cancel()

    async def close(self) -> None:
        """What has been sent is not lost, whatever else went wrong with the source."""
        for part in self._held:
            part.release()
        await asyncio.gather(*self._tasks, *self._tasks.values(), return_exceptions=True)

    async def _send_held(self) -> None:
        while self._held:
            await self._client.in_flight.acquire()
            try:
                self._track.raise_if_stopping()
            except Stopped:
                self._client.in_flight.release()
                raise
            part = self._held.pop(0)
            request = asyncio.create_task(self._track.ask(part))
            # Also if it is cancelled before it starts.
            request.add_done_callback(partial(self._answered, part))
            self._tasks[asyncio.create_task(self._save(part, request))] = request

    async def _save(self, part: Batch, request: asyncio.Task[Answers]) -> None:
        try:
            answers = await request
        except ServerError:
            self._track.raise_if_stopping()
            raise
        await self._track.save(self._path, self._job, self.opened, part, answers)

    def _answered(self, part: Batch, _: asyncio.Task[Answers]) -> None:
        part.release()
        self._client.in_flight.release()


def told(error: MediaError) -> SourceError:
    """As a record has it."""
    return SourceError(type(error).__name__, str(error))


def incomplete(job: Job, what: str) -> SourceError:
    """Of a job whose decode process left something out."""
    left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
    return SourceError(
        "MediaError", f"incomplete: nothing is known of the {what} {left}; try again with --retry-failed"
    )
