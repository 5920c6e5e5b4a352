"""How many requests are at the servers at once: as many as help, found out while they are answered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from reelscribe.errors import ServerUnreachable

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
    """A limit that moves, as an asynchronous context manager: ``async with in_flight:`` around each request.

    One more is tried while all are in use. If that brings no more frames a second, requests only wait longer, so it is
    taken back. A full queue takes away a quarter.
    """

    def __init__(self, start: int, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = max(1, min(start, most))
        self._most = most
        self._now = now
        self._used = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._begun = self._stopped = False
        self._raised = False
        self._backed_off = False
        self._best = 0.0
        self._hold = 0
        self._new_round()

    def begin_with(self, limit: int) -> None:
        """Start with this limit; if it was started before, keep a limit that has become higher since."""
        limit = max(1, min(limit, self._most))
        self.limit = max(self.limit, limit) if self._begun else limit
        self._begun = True
        self._wake()

    def stop_waiting(self) -> None:
        """From now on, raise ServerUnreachable for requests that would have to wait for a permit."""
        self._stopped = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(False)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def acquire(self) -> None:
        """Wait until one more request may be sent. Raises ServerUnreachable if waiting was stopped."""
        if self._used < self.limit and not self._waiting:
            self._used += 1
        elif self._stopped or not await self._turn():
            raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")

    def release(self) -> None:
        """Give back a permit after a request, whether it was answered or not."""
        self._used -= 1
        self._wake()

    async def _turn(self) -> bool:
        """Wait for a permit; returns False if waiting was stopped."""
        self._full = True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._waiting:  # `_wake` may have passed over it already
                    self._waiting.remove(turn)
            elif turn.result():  # the permit came while the request was cancelled
                self.release()
            raise

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
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(True)
