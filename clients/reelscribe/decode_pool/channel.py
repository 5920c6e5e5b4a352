"""What a decode process hears and says, and the memory that it fills: its end of what `decoder` is the other end of."""

from __future__ import annotations

import json
import mmap
import sys
import time
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

HEARTBEAT_SECONDS = 1.0


class WorkerChannel:
    """WorkerChannel and answers, one JSON object a line; slots of `slot_bytes` bytes each in `memory`."""

    def __init__(self, memory: mmap.mmap, slot_bytes: int, orders: IO[str], answers: IO[str]) -> None:
        self.slot_bytes = slot_bytes
        self._memory, self._orders, self._answers = memory, orders, answers
        self._slot: int | None = None
        self._last_beat = 0.0

    def next(self) -> dict[str, Any]:
        """The next order that is more than a slot. Ends the process when the parent is gone."""
        while "slot" in (order := self._read()):
            self._slot = order["slot"]
        return order

    def take_slot(self) -> int:
        """The slot to fill next, as soon as there is one."""
        while self._slot is None:
            self._slot = self._read()["slot"]
        slot, self._slot = self._slot, None
        return slot

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """What lies at the start of a slot, as a view."""
        return np.ndarray(shape, dtype, self._memory, offset=slot * self.slot_bytes)

    def say(self, **answer: Any) -> None:
        """Answer."""
        self._last_beat = time.monotonic()
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def heartbeat(self) -> None:
        """A sign of life, if there was none for a while."""
        if time.monotonic() - self._last_beat > HEARTBEAT_SECONDS:
            self.say(heartbeat={})

    def _read(self) -> dict[str, Any]:
        line = self._orders.readline()
        if not line:
            sys.exit()  # the parent is gone
        order: dict[str, Any] = json.loads(line)
        return order
