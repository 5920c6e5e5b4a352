"""The batches of one source on their way to the model and into the ledger, several at a time."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import ServerError
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job

Opened = TypeVar("Opened")
"""What a decode process reports about a file that it has opened."""
Batch = TypeVar("Batch", bound=DecodedBatch)
"""A batch as it comes from a decode process."""
Saved = TypeVar("Saved", bound=SavedBatch)
"""The results of a batch, as the ledger keeps them."""


SentOpened = TypeVar("SentOpened", contravariant=True)
SentBatch = TypeVar("SentBatch", bound=DecodedBatch, contravariant=True)


class Sending(Protocol[SentOpened, SentBatch, Saved]):
    """What a sender needs of a track."""

    held_batches: int
    """Batches of a source that are decoded before the first of them is sent."""

    async def send(self, batch: SentBatch) -> asyncio.Task[Saved]:
        """Wait until a batch may be sent; return the task that returns its results and releases it."""

    def save_opened(self, path: str, job: Job, opened: SentOpened) -> asyncio.Future[None]:
        """Save what is known about an opened source; the future is done when it is on the disk."""

    async def save(self, path: str, job: Job, opened: SentOpened, saved: Saved) -> None:
        """Save the results of a batch of an opened source; return when they are on the disk."""

    def raise_if_stopping(self) -> None:
        """Raise Stopped if the run was stopped."""


class SourceSender(Generic[Opened, Batch, Saved]):
    """The batches of one source on their way to the model and into the ledger."""

    opened: Opened
    """What is known about the file, set before the first batch is sent."""

    def __init__(self, track: Sending[Opened, Batch, Saved], path: str, job: Job) -> None:
        """Begin before the source is opened.

        Args:
            track: The track that takes the source through its model.
            path: The source.
            job: Its job.
        """
        self._track, self._path, self._job = track, path, job
        self._is_saved = True
        """Whether all that is known about the file is saved, or being saved."""
        self._held: list[Batch] = []
        """Batches that wait until there are `held_batches` of them."""
        self._requests: dict[asyncio.Future[None], asyncio.Task[Saved] | None] = {}
        """The requests in flight, by the futures of their results on the disk; None where what was opened is saved."""

    def open(self, opened: Opened) -> None:
        """Take note of what is known about the file. It is saved with its first batch, or at its end.

        A decode process that dies before its first batch may or may not have told what it has opened, and what is
        saved must not depend on that.
        """
        self.opened = opened
        self._is_saved = False

    async def send(self, batch: Batch) -> None:
        """Hold a batch, and send all held batches once there are `held_batches` of them."""
        self._save_opened()
        self._held.append(batch)
        if len(self._held) >= self._track.held_batches:
            await self._send_held()
        for saving in [saving for saving in self._requests if saving.done()]:
            del self._requests[saving]
            saving.result()  # raises its error, so that a source whose results cannot be saved is not decoded further

    async def finish(self, *, died: bool) -> None:
        """Send the batches that are still held, and return when all results are saved.

        Args:
            died: Whether the decode process died or hung before the end of the file.
        """
        if not died:
            self._save_opened()
        await self._send_held()
        await asyncio.gather(*self._requests)

    def cancel(self) -> None:
        """Cancel the requests that are in flight."""
        for future in self._futures():
            future.cancel()

    async def close(self) -> None:
        """Release the batches that are still held, and wait until the requests in flight are saved or have failed."""
        for batch in self._held:
            batch.release()
        await asyncio.gather(*self._futures(), return_exceptions=True)

    def _futures(self) -> list[asyncio.Future[Any]]:
        return [*self._requests, *(request for request in self._requests.values() if request)]

    def _save_opened(self) -> None:
        if not self._is_saved:
            self._requests[self._track.save_opened(self._path, self._job, self.opened)] = None
            self._is_saved = True

    async def _send_held(self) -> None:
        while self._held:
            request = await self._track.send(self._held.pop(0))
            self._requests[asyncio.create_task(self._save(request))] = request

    async def _save(self, request: asyncio.Task[Saved]) -> None:
        try:
            saved = await request
        except ServerError:
            self._track.raise_if_stopping()
            raise
        await self._track.save(self._path, self._job, self.opened, saved)
