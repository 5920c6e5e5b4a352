"""Merge asynchronous generators into one, so that none runs ahead of whoever takes its items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

from reelscribe.decode_pool.slots import DecodedBatch

Item = TypeVar("Item")


class Merged(Generic[Item]):
    """The items of several generators, as they come. Each generator goes on when its last item has been used."""

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
