"""Turns of a slow function: what is asked while it is busy is answered by its next call, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
"""What is asked."""
Answer = TypeVar("Answer")


class Turns(Generic[Item, Answer]):
    """Answers items in the order in which they come, by one call at a time of a function for many of them."""

    def __init__(self, answer: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        """Begin with no items.

        Args:
            answer: Returns the answer to each item, or its error. An error that it raises is that of all these items.
        """
        self._answer = answer
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._turn: asyncio.Task[None] | None = None

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """Queue an item, and return the future of its answer. The item is also answered if nobody waits for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._turn is None or self._turn.done():
            self._turn = asyncio.create_task(self._take_turns())
        return future

    async def end(self) -> None:
        """Wait until all items have been answered."""
        if self._turn:
            await self._turn

    async def _take_turns(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            answers: Sequence[Answer | Exception]
            try:
                answers = await self._answer([item for item, _ in waiting])
            except Exception as error:  # noqa: BLE001 - any error must reach those who wait
                answers = [error] * len(waiting)
            for (_, future), answer in zip(waiting, answers, strict=True):
                _resolve(future, answer)


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # it was cancelled
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # marks it as retrieved: asyncio would log a warning if nobody waits for it
    else:
        future.set_result(answer)
