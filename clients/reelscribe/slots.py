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
class SlotPart:
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
