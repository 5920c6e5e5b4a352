"""How tasks work together: many share calls of a slow function, one at a time has a content, and all end at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
"""The argument of a call."""
Answer = TypeVar("Answer")

Reservation = asyncio.Future[None]
"""Done as soon as the content is reserved."""


class CallBatcher(Generic[Item, Answer]):
    """Answers items in the order in which they come, by one call at a time of a function for many of them."""

    def __init__(self, answer: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        """Begin with no items.

        Args:
            answer: Returns the answer to each item, or its error. An error that it raises is that of all these items.
        """
        self._answer = answer
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._answering: asyncio.Task[None] | None = None

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """Queue an item, and return the future of its answer. The item is also answered if nobody waits for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_waiting())
        return future

    async def end(self) -> None:
        """Wait until all items have been answered."""
        if self._answering:
            await self._answering

    async def _answer_waiting(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            answers: Sequence[Answer | Exception]
            try:
                answers = await self._answer([item for item, _ in waiting])
            except Exception as error:  # noqa: BLE001 - any error must reach those who wait
                answers = [error] * len(waiting)
            for (_, future), answer in zip(waiting, answers, strict=True):
                resolve(future, answer)


def resolve(future: asyncio.Future[Any], answer: Any) -> None:
    """Give a future its answer, which is an exception for one that fails; nothing happens if it was cancelled."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # marks it as retrieved: asyncio would log a warning if nobody waits for it
    else:
        future.set_result(answer)


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


async def cancel_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are ignored."""
    ending = list(tasks)  # a set of tasks may lose those that end
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
