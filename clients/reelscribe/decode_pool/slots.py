"""The memory that decoded frames and samples arrive in, shared with the processes that decode.

It is an anonymous file (`memfd_create`), so no death leaves anything behind, and is only as large as what was written.
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
    """A fixed number of slots of `slot_bytes` bytes each."""

    def __init__(self, count: int, slot_bytes: int, ready: int = 0) -> None:
        """The memory of the first `ready` slots is taken now, so that a machine without it says so at once."""
        self.count, self.slot_bytes = count, slot_bytes
        self.fd = os.memfd_create("reelscribe-media")
        os.ftruncate(self.fd, count * slot_bytes)
        self._memory = mmap.mmap(self.fd, count * slot_bytes)
        np.frombuffer(self._memory, np.uint8, min(ready, count) * slot_bytes)[:: mmap.PAGESIZE] = 0
        # Here, as decode processes, whose start is waited for, import this module for its parts alone.
        import asyncio

        # The last one given back is the first to be taken, so that few are ever touched where few are enough.
        self._free = asyncio.LifoQueue[int]()
        for slot in reversed(range(count)):
            self._free.put_nowait(slot)

    async def take(self) -> int:
        """A slot that nobody uses, as soon as there is one."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        """It may be written over."""
        self._free.put_nowait(slot)

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """What lies at the start of a slot, as a view."""
        return np.ndarray(shape, dtype, self._memory, offset=slot * self.slot_bytes)

    def close(self) -> None:
        """Processes that were started keep their own hold on the memory; views do, too."""
        os.close(self.fd)


@dataclass(frozen=True, kw_only=True)
class DecodedBatch:
    """A stretch of what was asked for of a source, from number `first` to before `stop`; it may lie in a slot."""

    first: int
    stop: int
    anchor: int | None = None
    """What the next part needs to know of this one and those before it."""
    slot: int | None
    slots: Slots

    def release(self) -> None:
        """Let a process write over it."""
        if self.slot is not None:
            self.slots.give_back(self.slot)


MAX_REQUEST_BYTES = 8 * 10**6
"""TorchServe moves bodies of 2 to 24 MB equally fast and larger ones ever more slowly; small ones share load best."""

MAX_FRAMES_PER_REQUEST = 32


def request_bytes(item_bytes: int, most: int) -> int:
    """Room for a request: for `most` items of up to `item_bytes`, within MAX_REQUEST_BYTES, but at least for one."""
    if most < 1:
        raise UsageError(f"items per request: expected 1 or more, got {most}")
    return max(item_bytes, min(MAX_REQUEST_BYTES, most * item_bytes))


def items_per_request(room: int, item_bytes: int, most: int) -> int:
    """As many items of `item_bytes` as fit `room` bytes, at least one and at most `most`."""
    return max(1, min(most, room // item_bytes))
