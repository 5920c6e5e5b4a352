"""The memory that decoded frames arrive in, shared with the processes that decode.

It is an anonymous file (`memfd_create`), so no death leaves anything behind, and is only as large as what was written.
"""

from __future__ import annotations

import asyncio
import mmap
import os

import numpy as np

from reelscribe.media import FrameArray


class Slots:
    """A fixed number of slots of `slot_bytes` bytes each."""

    def __init__(self, count: int, slot_bytes: int, ready: int = 0) -> None:
        """The memory of the first `ready` slots is taken now, so that a machine without it says so at once."""
        self.count, self.slot_bytes = count, slot_bytes
        self.fd = os.memfd_create("reelscribe-frames")
        os.ftruncate(self.fd, count * slot_bytes)
        self._memory = mmap.mmap(self.fd, count * slot_bytes)
        np.frombuffer(self._memory, np.uint8, min(ready, count) * slot_bytes)[:: mmap.PAGESIZE] = 0
        # The last one given back is the first to be taken, so that few are ever touched where few are enough.
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(count)):
            self._free.put_nowait(slot)

    async def take(self) -> int:
        """A slot that nobody uses, as soon as there is one."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        """It may be written over."""
        self._free.put_nowait(slot)

    def frames(self, slot: int, shape: tuple[int, ...]) -> FrameArray:
        """The frames at the start of a slot, (N, H, W, 3) uint8, as a view."""
        return np.ndarray(shape, np.uint8, self._memory, offset=slot * self.slot_bytes)

    def close(self) -> None:
        """Processes that were started keep their own hold on the memory; views do, too."""
        os.close(self.fd)
