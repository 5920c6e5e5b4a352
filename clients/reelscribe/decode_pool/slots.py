"""The shared memory that decoded frames and audio arrive in, and how much of it a request needs.

The memory is an anonymous file (`memfd_create`): nothing is left behind when a process dies, and pages that were never
written take no memory.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from reelscribe.errors import UsageError


class Slots:
    """A fixed number of equally large slots of shared memory."""

    def __init__(self, count: int, slot_bytes: int, ready: int = 0) -> None:
        """Reserve the memory.

        Args:
            count: Number of slots.
            slot_bytes: Size of each slot.
            ready: How many slots are written to at once, so that a machine without the memory fails now and not later.
        """
        self.count, self.slot_bytes = count, slot_bytes
        self.fd = os.memfd_create("reelscribe-media")
        os.ftruncate(self.fd, count * slot_bytes)
        self._memory = mmap.mmap(self.fd, count * slot_bytes)
        np.frombuffer(self._memory, np.uint8, min(ready, count) * slot_bytes)[:: mmap.PAGESIZE] = 0
        # Imported here: decode processes import this module too, have no use for asyncio, and should start fast.
        import asyncio

        # Last in, first out, so that only as many slots are ever touched as are in use at the same time.
        self._free = asyncio.LifoQueue[int]()
        for slot in reversed(range(count)):
            self._free.put_nowait(slot)

    async def take(self) -> int:
        """Wait for a free slot, and return its number."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        """Let a slot be overwritten."""
        self._free.put_nowait(slot)

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """View the start of a slot as an array."""
        return np.ndarray(shape, dtype, self._memory, offset=slot * self.slot_bytes)

    def close(self) -> None:
        """Close the file. Processes that have mapped it, and views on it, keep the memory."""
        os.close(self.fd)


@dataclass(frozen=True, kw_only=True)
class DecodedBatch:
    """A stretch of a source, from number `first` to before `stop`, with what was decoded of it.

    Numbers count the chosen frames of a video, or the samples of its audio.
    """

    first: int
    stop: int
    anchor: int | None = None
    """What a process needs to know of earlier batches to go on after this one (see `Span`)."""
    slot: int | None
    """The slot that holds the frames or samples; None if there are none."""
    slots: Slots

    def release(self) -> None:
        """Give back the slot. Its frames or samples must not be used any more."""
        if self.slot is not None:
            self.slots.give_back(self.slot)


MAX_REQUEST_BYTES = 8 * 10**6
"""TorchServe moves bodies of 2 to 24 MB equally fast and larger ones ever more slowly; small ones share load best."""

MAX_FRAMES_PER_REQUEST = 32
"""Default number of frames that travel together."""


def request_bytes(item_bytes: int, most: int) -> int:
    """Compute the size of a slot that holds a request.

    Args:
        item_bytes: Largest size of a frame or chunk.
        most: Largest number of items in the request; at least 1.

    Returns:
        Room for `most` items, but no more than MAX_REQUEST_BYTES unless a single item is larger.

    Raises:
        UsageError: `most` is less than 1.
    """
    if most < 1:
        raise UsageError(f"items per request: expected 1 or more, got {most}")
    return max(item_bytes, min(MAX_REQUEST_BYTES, most * item_bytes))


def items_per_request(room: int, item_bytes: int, most: int) -> int:
    """Compute how many items of `item_bytes` fit into `room` bytes: at least 1 and at most `most`."""
    return max(1, min(most, room // item_bytes))
