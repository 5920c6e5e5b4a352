"""The way of all sources through one model: decoded, sent batch by batch, and saved as soon as it is answered.

What is the same for frames and for audio is here; captioning.py and transcribing.py hold what is not. A track works on
many sources at once. The slots of its decode pool bound what is decoded ahead, and its client bounds the requests that
are in flight, so a track itself only passes batches on.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from reelscribe.client.endpoint import Answer
from reelscribe.client.models import ModelClient
from reelscribe.contract.annotations import SourceError
from reelscribe.contract.model import ModelDescription
from reelscribe.contract.source import Source, Span
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.process import ReadCommand
from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import MediaError, ServerError
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.ledger import Ledger, LedgerReader
from reelscribe.results.records import Model, Record
from reelscribe.run.meter import Counts, Meter, TrackMeter

Description = TypeVar("Description", bound=ModelDescription)
Opened = TypeVar("Opened")
Batch = TypeVar("Batch", bound=DecodedBatch)
Answers = TypeVar("Answers")
Saved = TypeVar("Saved", bound=SavedBatch)


class Stopped(Exception):
    """The run was told to stop before a source was done."""


class Track(ABC, Generic[Description, Opened, Batch, Answers, Saved]):
    """One model of a run. Use it as an async context manager.

    Entering it asks the servers for the model's description and creates the decode pool. It raises ServerError if no
    server answers, and UsageError if the model cannot do what the options ask for.
    """

    counts: ClassVar[Counts]
    pool: DecodePool
    held_batches = 1
    """Batches of a source that are decoded before the first of them is sent."""

    def __init__(self, client: ModelClient[Description], *, retry_failed: bool) -> None:
        """Take a client and the option that tracks have in common.

        Args:
            client: The model on its servers.
            retry_failed: Whether sources that ended with an error in an earlier run are tried again.
        """
        self._client, self._retry_failed = client, retry_failed
        self._reopened: set[int] = set()
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._description = await self._client.describe()
        self.model = Model(self._description.name, self._description.revision)
        self.settings, self.pool = self._prepare(self._description)
        await self.pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pool.__aexit__(kind, error, trace)

    async def begin(self, ledger: Ledger, reader: LedgerReader, meter: Meter) -> None:
        """Begin a run.

        Args:
            ledger: Where answers are saved.
            reader: The same ledger, from which records are made.
            meter: Counts what is done.
        """
        self._ledger, self._reader = ledger, reader
        self._meter: TrackMeter = meter.track(
            self.counts,
            decode_workers=self.pool.workers,
            server_workers=self._description.workers,
            decode_seconds=lambda: self.pool.busy_seconds,
            decoded=lambda: self.pool.decoded,
            waiting_for=lambda: self._client.waiting_for,
        )
        self._client.on_answer = self._count
        model = [self.model.name, self.model.revision]
        self._settings_id = await ledger.settings_id({"model": model, **self.settings})

    def stop(self) -> None:
        """Decode no more. Requests that are in flight are still answered and saved; other sources raise Stopped."""
        self._stopping = True
        self.pool.stop()
        self._client.stop_waiting()

    def raise_if_stopping(self) -> None:
        """Raise Stopped after `stop`."""
        if self._stopping:
            raise Stopped

    async def job(self, source: Source) -> Job:
        """Return what the ledger has of a source for this model and these settings."""
        return await self._ledger.job(source.sha256, self._settings_id)

    async def job_to_do(self, source: Source) -> Job:
        """Return the job of a source, begun anew if it failed in an earlier run and `retry_failed` is set."""
        job = await self.job(source)
        failed = job.done and job.error and not job.error.is_missing_stream
        if failed and self._retry_failed and job.id not in self._reopened:
            self._reopened.add(job.id)  # once in a run, however many copies of the file there are
            await self._ledger.reopen(job.id)
            job = await self.job(source)
        return job

    async def work(self, source: Source, job: Job) -> SourceError | None:
        """Do what is missing of a job.

        Returns:
            The error that the job ends with, or None.

        Raises:
            Stopped: The run was told to stop.
            ServerError: No server can be used.
            OutputError: The ledger cannot be written.
        """
        try:
            if job.missing:
                await self._decode_and_send(source.path, job)
        except MediaError as error:
            self.raise_if_stopping()
            return source_error(error)
        job = await self.job(source)
        return self._verdict(job, await self._ledger.failures(job.id))

    def read(self, path: str, spans: Sequence[Span]) -> AsyncGenerator[Opened | Batch, None]:
        """Decode a file in a process of the pool: yields what the file is, and then its batches, each to be released.

        Args:
            path: The file.
            spans: Which of the chosen frames, or which samples, are wanted.

        Raises:
            MediaError: The file cannot be read, or not to its end.
        """
        return self.pool.read(self._read_command(path), spans)

    def send(self, batch: Batch) -> asyncio.Task[Saved]:
        """Send a batch to the model; the task returns what came of it. Its slot is released when the task ends."""
        request = asyncio.create_task(self._answer(batch))
        request.add_done_callback(partial(_release, batch))  # also if it is cancelled before it starts
        return request

    @abstractmethod
    def add_to(self, record: Record, job: Job) -> Record:
        """Return the record with what came of a job that is done."""

    @abstractmethod
    def add_error(self, record: Record, error: SourceError) -> Record:
        """Return the record with the error of a source that cannot be read."""

    @abstractmethod
    def _prepare(self, description: Description) -> tuple[Mapping[str, Any], DecodePool]:
        """Return everything but the weights that decides what is answered, and the pool for these options."""

    @abstractmethod
    def _read_command(self, path: str) -> ReadCommand[Opened, Batch]:
        """Return what a decode process is asked for."""

    @abstractmethod
    async def _ask(self, batch: Batch) -> Answers:
        """Return the model's answer for each item of a batch."""

    @abstractmethod
    def _to_save(self, batch: Batch, answers: Answers) -> Saved:
        """Return what came of a batch, as the ledger keeps it."""

    @abstractmethod
    def _amount(self, saved: Saved) -> float:
        """Return how many frames, or seconds of audio, of a saved batch count as done."""

    @abstractmethod
    def _opened_to_save(self, opened: Opened) -> tuple[SavedSource, int | None]:
        """Return what the ledger keeps of an opened file, and its number of frames or samples if that is known."""

    @abstractmethod
    def _share(self, opened: Opened, first: int, stop: int | None) -> tuple[float, float]:
        """Return how much of a source lies from `first` to before `stop`: a fraction (0 to 1), and seconds."""

    @abstractmethod
    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return the error of a job of which nothing more can be done, or None if it went well."""

    async def _decode_and_send(self, path: str, job: Job) -> None:
        sender = _Sender[Opened, Batch, Saved](self, path, job)
        decoding_failed: MediaError | None = None
        try:
            try:
                async with aclosing(self.read(path, job.missing)) as items:
                    async for item in items:
                        if isinstance(item, DecodedBatch):
                            await sender.send(item)  # type: ignore[arg-type]  # no Opened is a DecodedBatch
                        else:
                            sender.opened = item
                            await self._save_opened(path, job, item)
            except MediaError as error:
                decoding_failed = error  # what was decoded before it is sent all the same
            await sender.finish()
            if decoding_failed:
                raise decoding_failed
        except asyncio.CancelledError:
            sender.cancel()
            raise
        finally:
            await sender.close()

    async def _save_opened(self, path: str, job: Job, opened: Opened) -> None:
        await self._ledger.save_opened(job.id, *self._opened_to_save(opened))
        if not self._meter.is_open(path):
            missing = sum(self._share(opened, span.first, span.stop)[0] for span in job.missing)
            self._meter.opened(path, max(0.0, 1 - missing))

    async def _answer(self, batch: Batch) -> Saved:
        return self._to_save(batch, await self._ask(batch))

    async def save(self, path: str, job: Job, opened: Opened, saved: Saved) -> None:
        """Save what came of a batch of an opened source; returns when it is on the disk."""
        await self._ledger.save_batch(job.id, saved)
        share, seconds = self._share(opened, saved.first, saved.stop)
        self._meter.saved(path, self._amount(saved), share, seconds)

    def _count(self, answer: Answer) -> None:
        self._meter.answered(answer.network_seconds, answer.queue_seconds, answer.compute_seconds)


class _Sender(Generic[Opened, Batch, Saved]):
    """The batches of one source on their way to the model and into the ledger."""

    opened: Opened

    def __init__(self, track: Track[Any, Opened, Batch, Any, Saved], path: str, job: Job) -> None:
        self._track, self._path, self._job = track, path, job
        self._held: list[Batch] = []
        self._requests: dict[asyncio.Task[None], asyncio.Task[Saved]] = {}

    async def send(self, batch: Batch) -> None:
        """Send a batch, with those that were held before it, once there are enough of them."""
        self._held.append(batch)
        if len(self._held) >= self._track.held_batches:
            self._send_held()
        for saving in [saving for saving in self._requests if saving.done()]:
            del self._requests[saving]
            saving.result()  # raises: a source whose batches cannot be saved is not read any further

    async def finish(self) -> None:
        """Send the rest, and return when everything is saved."""
        self._send_held()
        await asyncio.gather(*self._requests)

    def cancel(self) -> None:
        """Cancel the requests that are in flight."""
        for task in (*self._requests, *self._requests.values()):
            task.cancel()

    async def close(self) -> None:
        """Wait for the requests that are in flight: what they bring is saved, whatever else went wrong."""
        for batch in self._held:
            batch.release()
        await asyncio.gather(*self._requests, *self._requests.values(), return_exceptions=True)

    def _send_held(self) -> None:
        while self._held:
            self._track.raise_if_stopping()
            request = self._track.send(self._held.pop(0))
            self._requests[asyncio.create_task(self._save(request))] = request

    async def _save(self, request: asyncio.Task[Saved]) -> None:
        try:
            saved = await request
        except ServerError:
            self._track.raise_if_stopping()
            raise
        await self._track.save(self._path, self._job, self.opened, saved)


def _release(batch: DecodedBatch, _: asyncio.Task[Any]) -> None:
    batch.release()


def source_error(error: MediaError) -> SourceError:
    """Return an exception as records have it."""
    return SourceError(type(error).__name__, str(error))


def incomplete(job: Job, items: str) -> SourceError:
    """Return the error of a job whose decode process left something out.

    Args:
        job: The job.
        items: What is missing: "frames" or "samples".
    """
    left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
    return SourceError(
        "MediaError", f"incomplete: nothing is known of the {items} {left}; try again with --retry-failed"
    )
