"""The limit on the number of requests in flight: what the servers take, and more as long as that raises throughput.

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

FIRST_REQUESTS = 8
"""The limit as long as nobody has said how many requests the servers take."""

MOST_REQUESTS = 4096
"""Highest limit where the user sets none: two calls of 16 requests for each of 128 GPUs. A server may claim any number
of workers, and a run reserves addresses for the frames of so many requests."""

MIN_GAIN = 1.05
"""Factor by which a higher limit must raise the throughput to be kept. Smaller gains may be chance."""

STEP = 8
"""A higher limit that is tried is higher by one part of so many, and at least by one, as less brings no such gain."""

BUSY = 0.9
"""If workers compute for at least this fraction of a round (0 to 1), more requests would only wait longer. Answers come
in bursts, those of a call at once, so what looks like a gain then is chance."""

ROUND_ANSWERS = 4
"""Number of answers in a round, for each permit."""

BEST_RATE_DECAY = 0.99
"""Factor by which the best rate decays per round, because servers may become slower for good."""

HOLD_ROUNDS = 8
"""Number of rounds until a higher limit is tried again after it did not help, because servers and networks change."""

BACK_OFF = 0.75
"""Factor by which the limit is lowered when the queue of a server is full."""

MOST_PATIENCE = 64
"""Largest number of rounds until a limit that was lowered is raised again."""


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

    The limit is what the servers take. If requests wait for permits all the same, and workers do not compute all the
    time, it is raised by a step. If that raises the throughput, the limit is kept; otherwise it is lowered again,
    because requests would only wait longer at the server.

    A full queue at a server lowers the limit by a quarter. It is raised again after a round, after two if the queue is
    full again then, after four, and so on. So a moment is soon made up for, and clients that share a server meet a full
    queue less and less often.
    """

    def __init__(self, most: int | None = None) -> None:
        """Begin with a few requests.

        Args:
            most: Highest limit, at least 1, that the user has set; None for as many as the servers take.
        """
        self._most_of_user = most
        self.parts = 1
        """Number of clients, this one among them, that share the servers."""
        self._taken, self._most_taken = FIRST_REQUESTS, MOST_REQUESTS
        self.limit = min(self.wanted, self.most)
        self.used = 0
        """Number of requests in flight now."""
        self._waiters: list[_Waiter] = []
        self._full = False
        """True if requests have waited in this round because of the limit."""
        self._stopped = False
        self._backed_off = False
        self._settle()
        self._begin_round()

    def set_taken(self, requests: int, most: int) -> None:
        """Set how many requests the servers take, if that has changed.

        Args:
            requests: Number of requests that keep all workers busy.
            most: Number of requests above which the limit is not raised, although more might raise the throughput,
                unless the user has set another.
        """
        before, self._taken, self._most_taken = self.wanted, requests, most
        self._follow(before)

    def share(self, parts: int) -> None:
        """Use one of so many equal parts of all permits, as that many clients share the servers."""
        before, self.parts = self.wanted, parts
        self._follow(before)

    @property
    def wanted(self) -> int:
        """Number of requests that keep all workers busy, or this client's part of them, whatever limit the user set."""
        return max(1, min(self._taken, MOST_REQUESTS) // self.parts)

    @property
    def most(self) -> int:
        """The highest limit that there may be now, for this client: below `wanted` only if the user has set it so."""
        return max(1, (self._most_of_user or min(self._most_taken, MOST_REQUESTS)) // self.parts)

    def _follow(self, before: int) -> None:
        """Let the limit follow `wanted`, which was `before`. Requests that are in flight already are not affected."""
        if self.wanted != before:
            self.limit = self.wanted
            self._settle()
        self.limit = min(self.limit, self.most)
        self.grant()

    def _settle(self) -> None:
        """Forget what was tried with another number of workers."""
        self._raised_from: int | None = None
        """The limit before it was raised for this round; None if it was not."""
        self._hold_rounds, self._best_rate = 1, 0.0  # the first round, in which all begins, is slower than others
        self._patience = 1
        """Number of rounds until the limit is raised after a queue was full the next time."""

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
            self.used += 1
        elif self._stopped or not await self._wait(fewer_than):
            raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")
        return Permit(self.release)

    def grant(self) -> None:
        """Give free permits to the requests that have waited longest, among those that may have one."""
        for waiter in list(self._waiters):
            if self.used >= self.limit:
                return
            if waiter.granted.done():
                self._waiters.remove(waiter)
            elif self._may_have_permit(waiter.fewer_than):
                self._waiters.remove(waiter)
                self.used += 1
                waiter.granted.set_result(True)

    def release(self) -> None:
        """Give back a permit. `Permit` does this at the end of its context."""
        self.used -= 1
        self.grant()

    def answered(self, items: int, compute_seconds: float = 0.0) -> bool:
        """Count an answered request, and adapt the limit at the end of a round.

        Args:
            items: Number of frames or chunks in the request.
            compute_seconds: How long the average worker has computed for it, in seconds; 0 if nobody says it.

        Returns:
            Whether a round has ended.
        """
        self._answers += 1
        self._items += items
        self._compute_seconds += compute_seconds
        if is_over := self._answers >= ROUND_ANSWERS * self.limit:
            seconds = max(time.monotonic() - self._began, 1e-9)
            self._adapt(self._items / seconds, is_busy=self._compute_seconds >= BUSY * seconds)
            self._begin_round()
        return is_over

    def refused(self) -> None:
        """Lower the limit, because a server's queue was full."""
        if self._backed_off:  # only once for requests that are refused in the same round
            return
        self.limit, self._raised_from = self._raised_from or max(1, int(self.limit * BACK_OFF)), None
        self._hold_rounds, self._patience = self._patience - 1, min(2 * self._patience, MOST_PATIENCE)
        self._begin_round()
        self._backed_off = True

    def _may_have_permit(self, fewer_than: Callable[[], float]) -> bool:
        return self.used < min(self.limit, fewer_than())

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

    def _adapt(self, rate: float, *, is_busy: bool) -> None:
        raised_from, self._raised_from = self._raised_from, None
        if raised_from:  # and no queue was full
            self._patience = max(1, self._patience // 2)
        target = min(self.wanted, self.most)
        if raised_from and self.limit > target and rate < MIN_GAIN * self._best_rate:
            self.limit, self._hold_rounds = raised_from, HOLD_ROUNDS
        elif self._hold_rounds:
            self._hold_rounds -= 1
        elif self.limit < target:
            self._raised_from, self.limit = self.limit, min(target, math.ceil(self.limit / BACK_OFF))
        elif self._full and not is_busy and self.limit < self.most:
            self._raised_from, self.limit = self.limit, min(self.limit + max(1, self.limit // STEP), self.most)
        # This is not simply the last rate, because after a slow round anything would look like a gain.
        self._best_rate = max(rate, BEST_RATE_DECAY * self._best_rate)
        self.grant()

    def _begin_round(self) -> None:
        self._began, self._answers, self._items, self._compute_seconds = time.monotonic(), 0, 0, 0.0
        self._full = any(waiter.fewer_than() > self.limit for waiter in self._waiters)
        self._backed_off = False
