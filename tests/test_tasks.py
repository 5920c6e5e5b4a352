"""Calls of a slow function that many share."""

import asyncio

import pytest

from reelscribe._tasks import CallBatcher
from support.patience import PATIENCE


class Slow:
    """Doubles numbers, when it is allowed to; it has an error for 0, and fails over a negative number."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.allowed = asyncio.Event()

    async def double(self, numbers: list[int]) -> list[int | Exception]:
        self.calls.append(numbers)
        await self.allowed.wait()
        if min(numbers) < 0:
            raise RuntimeError("negative")
        return [2 * number or ValueError("nothing") for number in numbers]


async def asked_in_two_calls(slow: Slow, first: int, *others: int) -> list[int | BaseException]:
    """Ask for the first number, and for the others while it is being answered."""
    batcher = CallBatcher(slow.double)
    futures = [batcher.ask(first)]
    await asyncio.sleep(0)  # the first call has begun
    futures += map(batcher.ask, others)
    slow.allowed.set()
    answers = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE)
    await batcher.end()
    return answers


async def test_what_is_asked_during_a_call_is_answered_by_the_next_one():
    slow = Slow()
    assert await asked_in_two_calls(slow, 1, 2, 3) == [2, 4, 6]
    assert slow.calls == [[1], [2, 3]]


async def test_the_error_of_one_item_is_not_that_of_others():
    one, error, two = await asked_in_two_calls(Slow(), 1, 0, 2)
    assert (one, str(error), two) == (2, "nothing", 4)


async def test_an_error_of_a_call_is_that_of_its_items_and_the_next_call_comes():
    assert list(map(str, await asked_in_two_calls(Slow(), -1, 1))) == ["negative", "2"]


async def test_an_item_is_answered_although_nobody_waits_for_it():
    slow = Slow()
    batcher = CallBatcher(slow.double)
    batcher.ask(1).cancel()
    other = batcher.ask(2)
    slow.allowed.set()
    assert await asyncio.wait_for(other, PATIENCE) == 4
    assert slow.calls == [[1, 2]]
    with pytest.raises(asyncio.CancelledError):
        cancelled = batcher.ask(3)
        cancelled.cancel()
        await cancelled
    await batcher.end()
