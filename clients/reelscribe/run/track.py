"""A track takes the sources of a run through one model.

It decodes each source, sends the batches to the model, and saves each answer in the ledger as soon as it arrives. This
module holds what frames and audio have in common; captioning.py and transcribing.py hold the rest. A track works on
many sources at once, and batches of short sources share requests. It needs no limits of its own: its client limits the
requests in flight, and a batch that may not be sent yet keeps its slot, so its decode process waits too.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from reelscribe.client import endpoint
from reelscribe.client.joining import JoinedRequests
from reelscribe.client.models import ModelClient
from reelscribe.contract.model import ModelDescription
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source, Span
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.process import ReadCommand
from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.reporting.forecast import Costs
from reelscribe.reporting.limits import Counts, Load, Resources
from reelscribe.reporting.meter import Meter
from reelscribe.reporting.track_meter import Readings, TrackMeter
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.ledger import Ledger
from reelscribe.results.records import Kind, Model
from reelscribe.results.schema import settings_text
from reelscribe.run.sender import Batch, Opened, Saved, SourceSender

Description = TypeVar("Description", bound=ModelDescription)
"""The model's description of itself."""
Answer = TypeVar("Answer")
"""The model's answer to an item of a batch."""


class Stopped(Exception):
    """The run was stopped before a source was done."""


class Track(ABC, Generic[Description, Opened, Batch, Answer, Saved]):
    """One model of a run. Use it as an async context manager.

    Entering it requests the model's description from the servers and creates the decode pool. It raises ServerError if
    no server answers, and UsageError if the model does not support the options.
    """

    kind: ClassVar[Kind]
    """The kind of annotations that the track makes."""
    counts: ClassVar[Counts]
    """Unit in which the track's progress is counted."""
    item: ClassVar[str]
    """What its requests are made of."""
    model: Model
    """Name and revision of the model. This attribute and the next two exist after entry."""
    settings: Mapping[str, Any]
    """Everything except the model that decides the results of a source, as JSON."""
    pool: DecodePool
    """The decode processes of the track."""
    settings_text: str
    """The JSON of the model with its settings, under which the ledger keeps them. It exists after `begin`."""
    held_batches = 1
    """Batches of a source that are decoded before the first of them is sent."""

    def __init__(self, client: ModelClient[Description], *, retry_failed: bool) -> None:
        """Create a track.

        Args:
            client: The open client of the model.
            retry_failed: Whether to retry sources that ended with an error in an earlier run.
        """
        self._client, self._retry_failed = client, retry_failed
        self._reopened: set[int] = set()
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._description = await self._client.describe()
        self.model = Model(self._description.name, self._description.revision)
        self.settings = self._read_settings(self._description)
        self.pool = self._create_pool(self._description)
        await self.pool.__aenter__()
        self._joined = self._create_joined(self._description)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._joined.close()
        await self.pool.__aexit__(kind, error, trace)

    def count_in(self, meter: Meter, costs: Costs | None = None) -> None:
        """Connect the track to the meter of a run. Call it once, after entry.

        Args:
            meter: Counts the frames or seconds that are done.
            costs: What earlier runs have learned about the cost of sources; None if nothing is known.
        """
        self._cpu_before = time.process_time()
        self._run_meter = meter
        self._meter: TrackMeter = meter.track(
            Resources(self.counts, self.pool.workers, self._description.workers, self._client.requests_in_flight),
            Readings(
                load=self._load,
                decoded=lambda: self.pool.decoded,
                retries=lambda: self._client.retries,
                outage=lambda: self._client.outage,
            ),
            costs,
        )
        self._client.on_answer = self._count

    async def begin(self, ledger: Ledger) -> None:
        """Connect the track to the ledger of a run. Call it once, after `count_in`.

        Args:
            ledger: The open ledger in which results are saved.
        """
        self._ledger = ledger
        self.settings_text = settings_text(self.job_settings)
        self._settings_id = await ledger.settings_id(self.job_settings)

    @property
    def job_settings(self) -> dict[str, Any]:
        """The model with its settings, by which the ledger knows the track's jobs, as JSON. It exists after entry."""
        return {"model": [self.model.name, self.model.revision], **self.settings}

    @property
    def costs_key(self) -> str:
        """What the costs of sources depend on, as a key in the state of a run. It exists after entry."""
        settings = settings_text(self.job_settings).encode()
        return f"{self.counts}, {hashlib.sha256(settings).hexdigest()[:16]}, {self.pool.workers} processes"

    def stop(self) -> None:
        """Stop decoding. Requests in flight are still answered and saved; `work` raises Stopped for everything else."""
        self._stopping = True
        self.pool.stop()
        self._client.stop_waiting()

    def raise_if_stopping(self) -> None:
        """Raise Stopped after `stop`."""
        if self._stopping:
            raise Stopped

    async def job(self, source: Source) -> Job:
        """Return the job of a source for this model and its settings; the ledger adds it if it is new."""
        return await self._ledger.job(source.sha256, self._settings_id)

    async def job_to_do(self, source: Source) -> Job:
        """Return the job of a source. With `retry_failed`, a job that failed in an earlier run is reopened first."""
        job = await self.job(source)
        retry = job.done and job.error and self.retries(job.error.type)
        if retry and job.id not in self._reopened:
            self._reopened.add(job.id)  # once in a run, however many copies of the file there are
            await self._ledger.reopen(job.id)
            job = await self.job(source)
        return job

    def retries(self, error_type: str | None) -> bool:
        """Return whether a job is tried again that an earlier run has ended with an error of this type, or None."""
        return self._retry_failed and error_type is not None and not SourceError(error_type, "").is_missing_stream

    async def work(self, source: Source, job: Job) -> Job:
        """Decode and send the part of a job that has no results yet, and save its results.

        Args:
            source: The source file.
            job: Its job, not done yet.

        Returns:
            The job as it is now, with the error that it ends with. The ledger does not know yet that it is done.

        Raises:
            Stopped: The run was stopped before the job was done.
            ServerError: No server can be used.
            OutputError: The ledger cannot be written.
        """
        try:
            if job.missing:
                await self._decode_and_send(source.path, job)
        except MediaError as error:
            self.raise_if_stopping()
            return replace(await self.job(source), done=True, error=source_error(error))
        job, failures = await self._ledger.outcome(source.sha256, self._settings_id)
        return replace(job, done=True, error=self._verdict(job, failures))

    def read(
        self, path: str, spans: Sequence[Span], begun: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Opened | Batch, None]:
        """Decode a file in a process of the pool.

        Args:
            path: The file.
            spans: The ranges of chosen frames, or of samples, to decode.
            begun: Called when a process begins to read.

        Yields:
            What is known about the opened file, once or more, and its batches in order. Release each batch.

        Raises:
            MediaError: The file cannot be read, or not to its end.
        """
        return self.pool.read(self._read_command(path), spans, begun)

    async def send(self, batch: Batch) -> asyncio.Task[Saved]:
        """Wait until a request has room for a batch, which may be shared with other sources, and let the batch join it.

        Until then, its decode process fills one more slot at most, so little is decoded that cannot be sent.

        Returns:
            The task that returns the results of the batch. When it ends, the batch is released.

        Raises:
            Stopped: The run was stopped.
        """
        batch = batch.unless_small()
        with ExitStack() as stack:
            stack.callback(batch.release)
            self.raise_if_stopping()
            items = self._items(batch)
            answers = await self._joined.add(items) if len(items) else None
            request = asyncio.create_task(self._answer(batch, answers))
            at_end = stack.pop_all()
        request.add_done_callback(lambda _: at_end.close())  # also if it is cancelled before it starts
        return request

    @property
    @abstractmethod
    def choice(self) -> str:
        """What the track takes from sources, in words."""

    @property
    @abstractmethod
    def items_per_count(self) -> float:
        """How many of what jobs are counted in, frames or samples, there are in what `counts` names."""

    @abstractmethod
    def likely_items(self, seconds: float, frames_per_second: float) -> float | None:
        """Return how many items a source of this duration and frame rate likely has; None if nobody can tell."""

    @abstractmethod
    def _read_settings(self, description: Description) -> Mapping[str, Any]:
        """Return `settings`. Raises UsageError if the model does not support the options."""

    @abstractmethod
    def _create_pool(self, description: Description) -> DecodePool:
        """Return a decode pool whose slots suit the model and the options."""

    @abstractmethod
    def _read_command(self, path: str) -> ReadCommand[Opened, Batch]:
        """Return the command that makes a decode process read this file."""

    @abstractmethod
    def _create_joined(self, description: Description) -> JoinedRequests[Any, Answer]:
        """Return what joins the batches of different sources to requests, within the limits of a slot."""

    @abstractmethod
    def _items(self, batch: Batch) -> Any:
        """Return the frames or chunks of a batch that are sent; there may be none."""

    @abstractmethod
    def _to_save(self, batch: Batch, answers: Sequence[Answer | RequestRefused]) -> Saved:
        """Return the results of a batch, as the ledger keeps them."""

    @abstractmethod
    def _amount(self, saved: Saved) -> float:
        """Return the number of frames, or of seconds of audio, in a saved batch that did not fail."""

    @abstractmethod
    def _unsent(self, saved: Saved) -> float:
        """Return the number of frames, or of seconds of audio, in a saved batch that were not sent to a server."""

    @abstractmethod
    def _opened_to_save(self, opened: Opened) -> tuple[SavedSource, int | None]:
        """Return what the ledger keeps about an opened file, and its number of chosen frames or samples if known."""

    @abstractmethod
    def _share(self, opened: Opened, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of a source from `first` to before `stop`, as a fraction (0 to 1) and in seconds."""

    @abstractmethod
    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return the error that a job ends with after its last request; None if it has all results.

        `failures` is the number of failed frames or chunks by reason.
        """

    async def _decode_and_send(self, path: str, job: Job) -> None:
        sender = SourceSender[Opened, Batch, Saved](self, path, job)
        decoding_failed: MediaError | None = None
        try:
            try:
                async with aclosing(self.read(path, job.missing, lambda: self._meter.begun(path))) as items:
                    async for item in items:
                        if isinstance(item, DecodedBatch):
                            share, _ = self._share(sender.opened, item.first, item.stop)
                            self._meter.decoded(path, share)
                            await sender.send(item)  # type: ignore[arg-type]  # no Opened is a DecodedBatch
                        else:
                            sender.open(item)
            except MediaError as error:
                decoding_failed = error  # raised later: the batches before it are still sent and saved
            self._meter.ended(path)
            await sender.finish()
            if decoding_failed:
                raise decoding_failed
        except asyncio.CancelledError:
            sender.cancel()
            raise
        finally:
            await sender.close()

    def save_opened(self, path: str, job: Job, opened: Opened) -> asyncio.Future[None]:
        """Save what is known about an opened source; the future is done when it is on the disk."""
        saved, total = self._opened_to_save(opened)
        if saved.info.duration_seconds > 0:
            self._run_meter.learn_duration(path, saved.info.duration_seconds)
        if not self._meter.is_open(path):
            missing = sum(self._share(opened, span.first, span.stop)[0] for span in job.missing)
            self._meter.opened(path, max(0.0, 1 - missing))
        return self._ledger.save_opened(job.id, saved, total)

    async def _answer(self, batch: Batch, answers: asyncio.Future[list[Answer | RequestRefused]] | None) -> Saved:
        return self._to_save(batch, await answers if answers else [])

    async def save(self, path: str, job: Job, opened: Opened, saved: Saved) -> None:
        """Save the results of a batch of an opened source; returns when they are on the disk."""
        await self._ledger.save_batch(job.id, saved)
        share, seconds = self._share(opened, saved.first, saved.stop)
        self._meter.saved(path, self._amount(saved), share, seconds, self._unsent(saved))

    def _load(self) -> Load:
        """Return how long the decode processes and the client were busy; the meter adds what requests took."""
        return Load(
            with_file=self.pool.lent_seconds,
            busy=self.pool.busy_seconds,
            digesting=self.pool.digesting_seconds,
            client_cpu=time.process_time() - self._cpu_before,
        )

    def _count(self, answer: endpoint.Answer) -> None:
        self._meter.answered(answer.network_seconds, answer.queue_seconds, answer.compute_seconds)


def source_error(error: MediaError) -> SourceError:
    """Return the entry in the ledger and in records for an exception."""
    return SourceError(type(error).__name__, str(error))


def incomplete(job: Job, items: str) -> SourceError:
    """Return the error of a job for which a decode process has skipped frames or samples.

    Args:
        job: The job.
        items: "frames" or "samples".
    """
    left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
    return SourceError(
        "MediaError", f"incomplete: nothing is known of the {items} {left}; try again with --retry-failed"
    )
