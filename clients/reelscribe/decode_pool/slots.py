"""The shared memory for decoded frames and audio, and the size of the requests that are sent from it.

The memory is an anonymous file (`memfd_create`): it disappears with the processes that use it, and pages that were
never written take no memory.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

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


@dataclass(frozen=True, kw_only=True)
class DecodedBatch(ABC):
    """A range of the chosen frames or the clips of a video, or of the samples of its audio, with what is to be sent."""

    first: int
    """Number of the first frame, clip or sample."""
    stop: int
    """Number of the first frame, clip or sample after the batch."""
    anchor: int | None = None
    """`Span.anchor` of a span that begins at `stop`."""
    slot: int | None
    """Number of the slot that holds the frames or samples to send; None if there are none."""
    slots: Slots
    """The shared memory that has the slot."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the frames or samples to send, in bytes."""

    @abstractmethod
    def _copied(self) -> Self:
        """Return this batch with copies of its frames or samples, and without a slot."""

    def release(self) -> None:
        """Give back the slot. The frames or samples in it must not be used afterwards."""
        if self.slot is not None:
            self.slots.give_back(self.slot)

    def unless_small(self) -> Self:
        """Return this batch or, if it fills at most half of its slot, a copy; then the slot is given back.

        Sources of a few frames would otherwise take all slots long before a request is full.
        """
        if self.slot is None or 2 * self.nbytes > self.slots.slot_bytes:
            return self
        copied = self._copied()
        self.release()
        return copied


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
