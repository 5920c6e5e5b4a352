"""An adaptive limit on the number of requests in flight, which rises as long as that raises throughput.

A request that others may still join can ask for its permit only when fewer requests than a number are in flight. As
long as others are, their answers will come, and until then more may join (see `joining.py`).

The limit is adapted after each round, in which ROUND_ANSWERS requests for each permit are answered and the throughput
is measured, in items (frames or chunks) per second.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from reelscribe.errors import ServerUnreachable

MIN_GAIN = 1.05
"""Factor by which a higher limit must raise the throughput to be kept. Smaller gains may be chance."""

ROUND_ANSWERS = 4
"""Number of answers in a round, for each permit."""

BEST_RATE_DECAY = 0.99
"""Factor by which the best rate decays per round, because servers may become slower for good."""

HOLD_ROUNDS = 8
"""Number of rounds until a higher limit is tried again after it did not help, because servers and networks change."""

BACK_OFF = 0.75
"""Factor by which the limit is lowered when the queue of a server is full."""


class Permit:
    """Permission for one request to be in flight, from `InFlight.acquire`. Leaving the context gives it back."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()


def _any_number() -> float:
    return math.inf


class _Waiter(NamedTuple):
    """A request that waits for a permit."""

    fewer_than: Callable[[], float]
    granted: asyncio.Future[bool]
    """Becomes True with the permit, or False if waiting was stopped."""


class InFlight:
    """A semaphore with an adaptive limit. Each request needs a permit while it is in flight.

    If requests wait for permits, the limit is raised by one. If that raises the throughput, the limit is kept;
    otherwise it is lowered again, because requests would only wait longer at the server. A full queue at a server
    lowers the limit by a quarter.
    """

    def __init__(self, start: int, max_limit: int) -> None:
        """Set the limit.

        Args:
            start: Initial limit.
            max_limit: Highest limit; at least 1.
        """
        self.limit = max(1, min(start, max_limit))
        self._max_limit = max_limit
        self._initial = 1
        self._used = 0
        self._waiters: list[_Waiter] = []
        self._full = False
        """True if requests have waited in this round because of the limit."""
        self._initialized = self._stopped = False
        self._raised = self._backed_off = False
        self._best_rate = 0.0
        self._hold_rounds = 0
        self._begin_round()

    def set_initial_limit(self, limit: int) -> None:
        """Set the initial limit, once it is known. A later call only raises the limit."""
        self._initial = max(self._initial, limit, 1)
        limit = min(self._initial, self._max_limit)
        self.limit = max(self.limit, limit) if self._initialized else limit
        self._initialized = True
        self.grant()

    def set_max_limit(self, max_limit: int) -> None:
        """Set the highest limit, at least 1. Requests that are in flight already are not affected."""
        raised, self._max_limit = max_limit > self._max_limit, max_limit
        self.limit = min(max(self.limit, self._initial) if raised else self.limit, max_limit)
        self.grant()

    def stop_waiting(self) -> None:
        """From now on, raise ServerUnreachable where a request would wait for a permit."""
        self._stopped = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.granted.done():
                waiter.granted.set_result(False)

    @property
    def is_stopped(self) -> bool:
        """True if `stop_waiting` was called."""
        return self._stopped

    async def acquire(self, fewer_than: Callable[[], float] = _any_number) -> Permit:
        """Wait for a permit; requests that may have one get it in the order of the calls.

        Args:
            fewer_than: The request gets a permit only while fewer requests than this number are in flight. When the
                number changes, call `grant`.

        Raises:
            ServerUnreachable: There was no permit when waiting was stopped.
        """
        if self._may_have_permit(fewer_than):  # `grant` has left no request waiting that may have one, too
            self._used += 1
        elif self._stopped or not await self._wait(fewer_than):
            raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")
        return Permit(self.release)

    def grant(self) -> None:
        """Give free permits to the requests that have waited longest, among those that may have one."""
        for waiter in list(self._waiters):
            if self._used >= self.limit:
                return
            if waiter.granted.done():
                self._waiters.remove(waiter)
            elif self._may_have_permit(waiter.fewer_than):
                self._waiters.remove(waiter)
                self._used += 1
                waiter.granted.set_result(True)

    def release(self) -> None:
        """Give back a permit. `Permit` does this at the end of its context."""
        self._used -= 1
        self.grant()

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
        if not self._backed_off:  # only once for requests that are refused in the same round
            self.limit = max(1, int(self.limit * BACK_OFF))
            self._raised, self._hold_rounds = False, HOLD_ROUNDS
            self._begin_round()
            self._backed_off = True

    def _may_have_permit(self, fewer_than: Callable[[], float]) -> bool:
        return self._used < min(self.limit, fewer_than())

    async def _wait(self, fewer_than: Callable[[], float]) -> bool:
        """Wait for a permit. Return False if waiting was stopped."""
        self._full = self._full or fewer_than() > self.limit
        waiter = _Waiter(fewer_than, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                if waiter in self._waiters:  # `grant` may have removed it already
                    self._waiters.remove(waiter)
            elif waiter.granted.result():  # the permit came while the request was cancelled
                self.release()
            raise

    def _adapt(self, rate: float) -> None:
        if self._raised and rate < MIN_GAIN * self._best_rate:
            self.limit, self._raised, self._hold_rounds = self.limit - 1, False, HOLD_ROUNDS
        elif self._hold_rounds:
            self._hold_rounds -= 1
        else:
            self._raised = self._full and self.limit < self._max_limit
            if self._raised:
                self.limit += 1
        # This is not simply the last rate, because after a slow round anything would look like a gain.
        self._best_rate = max(rate, BEST_RATE_DECAY * self._best_rate)
        self.grant()

    def _begin_round(self) -> None:
        self._began, self._answers, self._items = time.monotonic(), 0, 0
        self._full = any(waiter.fewer_than() > self.limit for waiter in self._waiters)
        self._backed_off = False
