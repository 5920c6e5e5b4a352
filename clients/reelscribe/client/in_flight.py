"""How many requests are at the servers at once: as many as help, found out while they are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

GAIN = 1.05
"""One request more is kept if it brings 5 % more frames a second; less is within what answers vary by."""

ROUND = 4
"""A rate is measured over so many answers for each request in flight."""

MEMORY = 0.99
"""Of the best rate so far, so much counts in the next round: what was possible once need not be possible now."""

PATIENCE = 8
"""Rounds until another request more is tried again: servers and networks change."""

BACK_OFF = 0.75
"""What is kept of the limit when a server says that its queue is full."""


class InFlight:
    """A limit that moves; `acquire` before a request, then `release`.

    One more is tried while all are in use. If that brings no more frames a second, requests only wait longer, so it is
    taken back. A full queue takes away a quarter.
    """

    def __init__(self, start: int, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = max(1, min(start, most))
        self._most = most
        self._now = now
        self._used = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._raised = False
        self._backed_off = False
        self._best = 0.0
        self._hold = 0
        self._new_round()

    def begin_with(self, limit: int) -> None:
        """At least so many from now on."""
        self.limit = max(self.limit, min(limit, self._most))
        self._wake()

    async def acquire(self) -> None:
        """Wait until one request more may be sent."""
        if self._used >= self.limit or self._waiting:
            self._full = True
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release()
                elif turn in self._waiting:  # a release may have passed over it already
                    self._waiting.remove(turn)
                raise
        else:
            self._used += 1

    def release(self) -> None:
        """A request is over, for better or worse."""
        self._used -= 1
        self._wake()

    def answered(self, frames: int) -> None:
        """A request was answered."""
        self._answers += 1
        self._frames += frames
        if self._answers >= ROUND * self.limit:
            self._adapt(self._frames / max(self._now() - self._began, 1e-9))
            self._new_round()

    def refused(self) -> None:
        """A server's queue was full."""
        if not self._backed_off:  # all that are refused together say it once
            self.limit = max(1, int(self.limit * BACK_OFF))
            self._raised, self._hold = False, PATIENCE
            self._new_round()
            self._backed_off = True

    def _adapt(self, rate: float) -> None:
        if self._raised and rate < GAIN * self._best:
            self.limit, self._raised, self._hold = self.limit - 1, False, PATIENCE
        elif self._hold:
            self._hold -= 1
        else:
            self._raised = self._full and self.limit < self._most
            self.limit += self._raised
        # Not the last rate alone: after an unlucky round anything would look like a gain.
        self._best = max(rate, MEMORY * self._best)
        self._wake()

    def _new_round(self) -> None:
        self._began, self._answers, self._frames = self._now(), 0, 0
        self._full = bool(self._waiting)
        self._backed_off = False

    def _wake(self) -> None:
        while self._waiting and self._used < self.limit:
            turn = self._waiting.pop(0)
            if not turn.done():
                self._used += 1
                turn.set_result(None)
