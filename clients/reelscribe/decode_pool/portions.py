"""A source that one process reads, or several: what is left of it, which attempt it is, and its merged batches.

A long video is read in portions, from one entry point to the next (`spans.py`), by processes that nobody waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from reelscribe.contract.source import Span
from reelscribe.decode_pool.commands import BatchT, DecodedBatch, OpenedT, ReadCommand
from reelscribe.decode_pool.spans import Portion, after, before_entry_point, join
from reelscribe.decode_pool.watched_process import DecodeProcess
from reelscribe.errors import DecoderDied, DecoderStalled

Item = TypeVar("Item")

ATTEMPTS = 2
"""Number of times that a source is tried; a process may die or hang for reasons other than the source."""


class ReadSource(Generic[OpenedT, BatchT]):
    """A source that is being read."""

    def __init__(self, command: ReadCommand[OpenedT, BatchT], spans: Sequence[Span], *, divide: bool) -> None:
        """Begin before the source is opened.

        Args:
            command: What to read, and how.
            spans: The spans to read, in ascending order.
            divide: Whether to divide the source into portions, if it has entry points.
        """
        self._command = command
        self._failures = 0
        self._left, self._divide = list(spans), divide
        self._opened: OpenedT | None = None
        self._entry_points: Sequence[int] = ()
        self.failure: DecoderDied | DecoderStalled | None = None
        """Why the source is given up: every attempt ended with the death of its process, or with one that hung."""

    @property
    def is_divided(self) -> bool:
        """True if what is left of it has portions, so that several processes can read it."""
        return bool(self._entry_points)

    @property
    def is_left(self) -> bool:
        """True if there is a portion that nobody reads, and that may still be tried."""
        return not self.failure and (self._opened is None or bool(self._left))

    async def read_portion(self, process: DecodeProcess) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read the next portion. What a process leaves of it when it dies or hangs is read by another one.

        Yields:
            Facts about the source, unless an earlier process has reported them and read another portion, and the
            batches of the portion in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if the process died or hung. Then
                `failure` says whether there is another attempt.
        """
        wanted, self._left = before_entry_point(self._left, self._entry_points if self.is_divided else ())
        attempt = self._failures
        try:
            items = process.read(self._portion(), wanted)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, DecodedBatch):
                        wanted = after(wanted, item.stop, item.anchor)
                    elif self._opened is None:
                        wanted = self._open(item, wanted)
                    elif self._entry_points:
                        continue
                    yield item
        except (DecoderDied, DecoderStalled) as error:
            self._left = join(self._left, wanted)
            if attempt == self._failures:  # of processes that end together, as when a disk does not answer, one counts
                self._failures += 1
            if self._failures == ATTEMPTS and not self.failure:
                self.failure = type(error)(f"{error}; like {self._failures - 1} before it")
            raise

    def _portion(self) -> ReadCommand[OpenedT, BatchT]:
        portion: Portion = "later" if self.is_divided else "all" if self._opened or not self._divide else "first"
        return self._command.for_portion(portion, self._opened)

    def _open(self, opened: OpenedT, wanted: Sequence[Span]) -> list[Span]:
        """Take note of the entry points, and return what the process that has found them reads."""
        self._opened = opened
        wanted, rest = before_entry_point(wanted, opened.entry_points)
        if rest:
            self._left, self._entry_points = join(self._left, rest), opened.entry_points
        return wanted


class Merged(Generic[Item]):
    """The items of several generators, as they come. None runs ahead: it goes on when its last item has been used."""

    def __init__(self) -> None:
        """Begin without generators."""
        self._coming: dict[asyncio.Future[Item], AsyncGenerator[Item, None]] = {}
        """The next item of each generator from which one is awaited."""
        self._closing = False
        self._arrived = asyncio.Queue[asyncio.Future[Item]]()

    def __len__(self) -> int:
        """Return how many generators have not ended."""
        return len(self._coming)

    def add(self, generator: AsyncGenerator[Item, None]) -> None:
        """Add a generator, which begins at once and is closed with the others. Once they are, it does not begin."""
        if self._closing:
            return
        coming = asyncio.ensure_future(anext(generator))
        self._coming[coming] = generator
        coming.add_done_callback(self._arrived.put_nowait)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield the items until all generators have ended. The error of one ends all."""
        try:
            while self._coming:
                arrived = await self._arrived.get()
                generator = self._coming.pop(arrived)
                try:
                    yield arrived.result()
                except StopAsyncIteration:
                    continue
                except BaseException:  # the item was not wanted any more
                    self._closing = True
                    await generator.aclose()
                    raise
                self.add(generator)
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close all generators, and release the batches that have come from them."""
        self._closing = True
        for coming in self._coming:
            coming.cancel()
        ended: list[Any] = await asyncio.gather(*self._coming, return_exceptions=True)
        for item in ended:
            if isinstance(item, DecodedBatch):
                item.release()
        for generator in self._coming.values():
            await generator.aclose()
        self._coming.clear()
