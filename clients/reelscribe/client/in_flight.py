"""An adaptive limit on the number of requests in flight: as many as raise throughput, found while they are answered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType

from reelscribe.errors import ServerUnreachable

MIN_GAIN = 1.05
"""A higher limit is kept if it answers 5 % more items per second; less is within what rates vary by."""

ROUND_ANSWERS = 4
"""A rate is measured over so many answers for each request in flight."""

BEST_RATE_DECAY = 0.99
"""Factor of the best rate so far, per round: what was possible once need not be possible now."""

HOLD_ROUNDS = 8
"""Rounds until a higher limit is tried again after it did not help, as servers and networks change."""

BACK_OFF = 0.75
"""Factor of the limit when a server says that its queue is full."""


class InFlight:
    """An adaptive semaphore, as an asynchronous context manager: ``async with in_flight:`` around each request.

    While all permits are in use, a limit that is higher by one is tried. If it raises throughput it is kept, otherwise
    it is taken back, as requests would only wait longer. A full queue at a server lowers the limit by a quarter.
    """

    def __init__(self, start: int, most: int) -> None:
        """Set the limit.

        Args:
            start: Limit to begin with.
            most: Highest limit; at least 1.
        """
        self.limit = max(1, min(start, most))
        self._most = most
        self._used = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._started = self._stopped = False
        self._raised = self._backed_off = False
        self._best_rate = 0.0
        self._hold_rounds = 0
        self._begin_round()

    def start(self, limit: int) -> None:
        """Begin with another limit. If it was started before, keep a limit that has become higher since."""
        limit = max(1, min(limit, self._most))
        self.limit = max(self.limit, limit) if self._started else limit
        self._started = True
        self._grant()

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
        """Wait for a permit, first come, first served. Raises ServerUnreachable if waiting was stopped."""
        if self._used < self.limit and not self._waiting:
            self._used += 1
        elif self._stopped or not await self._turn():
            raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")

    def release(self) -> None:
        """Give back a permit after a request, whether it was answered or not."""
        self._used -= 1
        self._grant()

    def answered(self, items: int) -> None:
        """Count an answered request, and adapt the limit at the end of a round.

        Args:
            items: Number of frames or chunks in the request.
        """
        self._answers += 1
        self._items += items
        if self._answers >= ROUND_ANSWERS * self.limit:
            self._adapt(self._items / max(time.monotonic() - self._began, 1e-9))
            self._begin_round()

    def refused(self) -> None:
        """Lower the limit, because a server's queue was full."""
        if not self._backed_off:  # once for all requests that are refused together
            self.limit = max(1, int(self.limit * BACK_OFF))
            self._raised, self._hold_rounds = False, HOLD_ROUNDS
            self._begin_round()
            self._backed_off = True

    async def _turn(self) -> bool:
        """Wait for a permit; returns False if waiting was stopped."""
        self._full = True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._waiting:  # `_grant` may have passed over it already
                    self._waiting.remove(turn)
            elif turn.result():  # the permit came while the request was cancelled
                self.release()
            raise

    def _adapt(self, rate: float) -> None:
        if self._raised and rate < MIN_GAIN * self._best_rate:
            self.limit, self._raised, self._hold_rounds = self.limit - 1, False, HOLD_ROUNDS
        elif self._hold_rounds:
            self._hold_rounds -= 1
        else:
            self._raised = self._full and self.limit < self._most
            self.limit += self._raised
        # Not simply the last rate: after a round that happened to be slow, anything would look like a gain.
        self._best_rate = max(rate, BEST_RATE_DECAY * self._best_rate)
        self._grant()

    def _begin_round(self) -> None:
        self._began, self._answers, self._items = time.monotonic(), 0, 0
        self._full = bool(self._waiting)
        self._backed_off = False

    def _grant(self) -> None:
        """Grant free permits to the requests that have waited longest."""
        while self._waiting and self._used < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(True)
