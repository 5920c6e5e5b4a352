"""How long the event loop was ever kept from its work: a stall would hold up every request at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

TICK_SECONDS = 0.01


class Stalls:
    """Wakes up a hundred times a second and notes by how many milliseconds it comes late."""

    def __init__(self) -> None:
        self._late: Counter[int] = Counter()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._late[int((time.monotonic() - due) * 1000)] += 1

    @property
    def longest_ms(self) -> int:
        """The longest, in whole milliseconds."""
        return max(self._late, default=0)

    @property
    def p99_ms(self) -> int:
        """99 of 100 were not longer."""
        left = 0.01 * self._late.total()
        for milliseconds in sorted(self._late, reverse=True):
            left -= self._late[milliseconds]
            if left < 0:
                return milliseconds
        return 0
