"""The shared memory for decoded frames and audio, and the size of the requests that are sent from it.

The memory is an anonymous file (`memfd_create`): it disappears with the processes that use it, and pages that were
never written take no memory.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.errors import UsageError


class Slots:
    """A fixed number of equally large slots of shared memory."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        """Reserve the memory.

        Args:
            count: Number of slots.
            slot_bytes: Size of each slot in bytes.
        """
        self.count, self.slot_bytes = count, slot_bytes
        self.memory = SharedMemory(count * slot_bytes)
        # Imported here, because decode processes import this module too and start faster without asyncio.
        import asyncio

        # Last in, first out, so that slots are reused and no more memory is allocated than is in use at the same time.
        self._free = asyncio.LifoQueue[int]()
        for slot in reversed(range(count)):
            self._free.put_nowait(slot)

    def allocate(self, slots: int) -> None:
        """Allocate the memory of so many slots, before they are used, so that a lack of memory shows at the start."""
        np.frombuffer(self.memory.view, np.uint8, min(slots, self.count) * self.slot_bytes)[:: mmap.PAGESIZE] = 0

    async def take(self) -> int:
        """Wait for a free slot, and return its number."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        """Make a slot free again; it may be overwritten from now on."""
        self._free.put_nowait(slot)

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the beginning of a slot as an array, without a copy."""
        return np.ndarray(shape, dtype, self.memory.view, offset=slot * self.slot_bytes)

    def close(self) -> None:
        """Close the file. The memory remains as long as processes map it or arrays view it."""
        self.memory.close()


MAX_REQUEST_BYTES = 8 * 10**6
"""Largest size of a request in bytes, unless it holds a single larger item. TorchServe transfers bodies of 2 to 24 MB
equally fast, and larger ones more slowly; smaller requests balance the load better."""

MAX_FRAMES_PER_REQUEST = 32
"""Default limit on the number of frames in a request."""


def request_bytes(item_bytes: int, max_items: int) -> int:
    """Compute the size of a slot that holds a request.

    Args:
        item_bytes: Largest size of an item, which is a frame or a chunk, in bytes.
        max_items: Largest number of items in the request; at least 1.

    Returns:
        The size of `max_items` items in bytes, but at most MAX_REQUEST_BYTES, unless a single item is larger.

    Raises:
        UsageError: `max_items` is less than 1.
    """
    if max_items < 1:
        raise UsageError(f"items per request: expected 1 or more, got {max_items}")
    return max(item_bytes, min(MAX_REQUEST_BYTES, max_items * item_bytes))


def items_per_request(slot_bytes: int, item_bytes: int, max_items: int) -> int:
    """Compute the number of items of a size that fit into a slot.

    Args:
        slot_bytes: Size of the slot in bytes.
        item_bytes: Size of an item, which is a frame or a chunk, in bytes.
        max_items: Largest number of items in the request; at least 1.

    Returns:
        A number from 1 to `max_items`.
    """
    return max(1, min(max_items, slot_bytes // item_bytes))
