"""What the tracks of models have in common: frames and audio on their way to a model, and its answers into the ledger.

Such a track decodes each source, sends the batches to the model, and saves each answer as soon as it arrives. Batches
of short sources share requests. It needs no limits of its own: its client limits the requests in flight, and a batch
that may not be sent yet keeps its slot, so its decode process waits too.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

from reelscribe.client import endpoint
from reelscribe.client.joining import JoinedRequests
from reelscribe.client.models import ModelClient
from reelscribe.contract.model import ModelDescription
from reelscribe.contract.source import Source, Span
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.process import ReadCommand
from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, RequestRefused
from reelscribe.reporting.bottleneck import Resources
from reelscribe.reporting.track_meter import Readings
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.records import Model
from reelscribe.run.tracks.sender import Batch, Opened, Saved, SourceSender
from reelscribe.run.tracks.track import Track
from reelscribe.thumbnails.store import ThumbnailTask

Description = TypeVar("Description", bound=ModelDescription)
"""The model's description of itself."""
Answer = TypeVar("Answer")
"""The model's answer to an item of a batch."""


class ModelTrack(Track[Opened], Generic[Description, Opened, Batch, Answer, Saved]):
    """What a run makes of each source with a model."""

    item: ClassVar[str]
    held_batches = 1
    """Batches of a source that are decoded before the first of them is sent."""

    def __init__(self, client: ModelClient[Description], *, retry_failed: bool) -> None:
        """Create a track.

        Args:
            client: The open client of the model.
            retry_failed: Whether to retry sources that ended with an error in an earlier run.
        """
        super().__init__(retry_failed=retry_failed)
        self._client = client
        self._thumbnails: tuple[str, int | None] | None = None
        """The folder and the number of thumbnails that are kept; None if none are."""
        self._until_exit = ExitStack()
        self._reading = 0
        """Number of sources that are being decoded, or wait for a process."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._joined.close()
        self._until_exit.close()
        await super().__aexit__(kind, error, trace)

    async def _prepare(self) -> None:
        self._description = await self._client.describe()
        self.model = Model(self._description.name, self._description.revision)
        self.settings = self._read_settings(self._description)
        self.pool = self._create_pool(self._description)
        self._until_exit.enter_context(self._client.sharing(self.pool.memory))
        self._joined = self._create_joined(self._description)

    def stop(self) -> None:
        """Stop decoding. Requests in flight are still answered and saved; `work` raises Stopped for everything else."""
        super().stop()
        self._client.stop_waiting()

    def limit_requests(self, most: int) -> None:
        """Set the largest number of unanswered requests, at least 1, within that of the client."""
        self._client.in_flight.set_max_limit(min(most, self._client.requests_in_flight))

    def keep_thumbnails(self, out: Path, most: int | None) -> None:
        """Keep thumbnails of sources in an output folder, as far as pictures are decoded anyway.

        Args:
            out: The output folder.
            most: Number of thumbnails of a source; None for one of each shot or, if shots are
                not known, one in 5 seconds, at most 12.
        """
        self._thumbnails = os.path.abspath(out), most

    def read(
        self,
        source: Source,
        spans: Sequence[Span],
        begun: Callable[[], None] = lambda: None,
        opened: SavedSource | None = None,
        thumbnails: ThumbnailTask | None = None,
    ) -> AsyncGenerator[Opened | Batch, None]:
        """Decode a file in a process of the pool, or in several where none of them is wanted for another file.

        Args:
            source: The file. If its `stat` is known, it must have it.
            spans: The ranges of chosen frames, or of samples, to decode.
            begun: Called when a process begins to read.
            opened: What is known about the file from an earlier run; None if nothing is.
            thumbnails: Which thumbnails to keep; None for none.

        Yields:
            What is known about the opened file, once or more, and its batches: in order, if the pool has one process.
            Release each batch.

        Raises:
            MediaError: The file cannot be read, or not to its end.
            SourceChanged: The file has another `file_stat`.
        """
        return self.pool.read(self._read_command(source, opened, thumbnails), spans, begun)

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
            request = asyncio.create_task(self._answer(batch, items, answers))
            at_end = stack.pop_all()
        request.add_done_callback(lambda _: at_end.close())  # also if it is cancelled before it starts
        return request

    @abstractmethod
    def _read_settings(self, description: Description) -> Mapping[str, Any]:
        """Return `settings`. Raises UsageError if the model does not support the options."""

    @abstractmethod
    def _create_pool(self, description: Description) -> DecodePool:
        """Return a decode pool whose slots suit the model and the options."""

    @abstractmethod
    def _read_command(
        self, source: Source, opened: SavedSource | None, thumbnails: ThumbnailTask | None
    ) -> ReadCommand[Opened, Batch]:
        """Return the command that makes a decode process read this file, with what is known about it."""

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

    async def _take(self, source: Source, job: Job) -> None:
        path = source.path
        thumbnails = self._thumbnails and ThumbnailTask(self._thumbnails[0], source.sha256, self._thumbnails[1])
        sender = SourceSender[Opened, Batch, Saved](self, path, job)
        decoding_failed: MediaError | None = None

        def begun() -> None:
            self._meter.begun(path)

        try:
            try:
                with self._reads():
                    async with aclosing(self.read(source, job.missing, begun, job.opened, thumbnails)) as items:
                        async for item in items:
                            if isinstance(item, DecodedBatch):
                                share, _ = self._share_of(sender.opened, item)
                                self._meter.decoded(path, share)
                                await sender.send(item)  # type: ignore[arg-type]  # no Opened is a DecodedBatch
                            else:
                                sender.open(item)
            except MediaError as error:
                decoding_failed = error  # raised later: the batches before it are still sent and saved
            self._meter.ended(path)
            await sender.finish(died=isinstance(decoding_failed, DecoderDied | DecoderStalled))
            if decoding_failed:
                raise decoding_failed
        except asyncio.CancelledError:
            sender.cancel()
            raise
        finally:
            await sender.close()

    @contextmanager
    def _reads(self) -> Iterator[None]:
        """Count a source as one that is being read. When none is, no batch is coming that requests could wait for."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            if not self._reading:
                self._joined.wait_no_longer()

    def _share_of(self, opened: Opened, batch: Any) -> tuple[float, float]:
        """Return which part of a source a decoded or a saved batch is, as a fraction (0 to 1) and in seconds."""
        return self._share(opened, batch.first, batch.stop)

    async def _answer(
        self, batch: Batch, items: Any, answers: asyncio.Future[list[Answer | RequestRefused]] | None
    ) -> Saved:
        return self._to_save(batch, await self._accepted(items, await answers) if answers else [])

    async def _accepted(self, items: Any, answers: list[Answer | RequestRefused]) -> list[Answer | RequestRefused]:  # noqa: ARG002
        """Return the answers that are kept; a track may ask again about some of the items."""
        return answers

    async def save(self, path: str, job: Job, opened: Opened, saved: Saved) -> None:
        """Save the results of a batch of an opened source; returns when they are on the disk."""
        await self._store.save_batch(job.id, saved)
        share, seconds = self._share_of(opened, saved)
        self._meter.saved(path, self._amount(saved), share, seconds, self._unsent(saved))

    def _resources(self) -> Resources:
        workers, in_flight = self._description.workers, self._client.requests_in_flight
        on_cpu = set(self._description.devices) == {"cpu"}
        return Resources(self.counts, self.pool.workers, workers, in_flight, on_cpu)

    def _readings(self) -> Readings:
        self._client.on_answer = self._count
        return replace(super()._readings(), retries=lambda: self._client.retries, outage=lambda: self._client.outage)

    def _count(self, answer: endpoint.Answer) -> None:
        self._meter.answered(answer.network_seconds, answer.queue_seconds, answer.compute_seconds)
