"""Reservations of contents: whoever works on one has it alone, and others wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

Reservation = asyncio.Future[None]
"""Done as soon as the content is reserved."""


class Reservations:
    """The reservations of all contents. A million of them cost neither locks nor tasks that wait."""

    def __init__(self) -> None:
        """Begin without reservations."""
        self._queues: dict[str, deque[Reservation]] = {}
        """For each content, the reservation that is in force, and then those that wait."""

    def reserve(self, content: str) -> Reservation:
        """Queue up for a content. `release` must follow, also if the reservation has never come into force."""
        reservation: Reservation = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(content, deque())
        queue.append(reservation)
        if len(queue) == 1:
            reservation.set_result(None)
        return reservation

    def release(self, content: str, reservation: Reservation) -> None:
        """End a reservation of a content, so that the next one comes into force."""
        queue = self._queues[content]
        queue.remove(reservation)
        if not queue:
            del self._queues[content]
        elif not queue[0].done():  # it is done if it was in force already, or was cancelled and is about to be released
            queue[0].set_result(None)

    @asynccontextmanager
    async def hold(self, content: str) -> AsyncGenerator[None, None]:
        """Reserve a content for the block, which waits for its turn."""
        reservation = self.reserve(content)
        try:
            await reservation
            yield
        finally:
            self.release(content, reservation)
