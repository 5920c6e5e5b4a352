"""The ledger as a node sees it: what came with a lease needs no call, and all other calls go to the driver in order."""

import asyncio

from reelscribe.cluster.mail import Call
from reelscribe.cluster.store_link import StoreLink
from reelscribe.contract.source import Source
from reelscribe.reporting.time_left import SourceSize
from reelscribe.results.jobs import Job
from reelscribe.run.messages import Lease

DONE = Job(1, opened=None, total=None, done=True, error=None, missing=())
CONTENT = "ab" * 32
LEASE = Lease("a.mp4", SourceSize("video", 3), "3 0", CONTENT)


class Driver:
    """Keeps the calls of a link."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.link = StoreLink(self.calls.append, lambda _: None)

    @property
    def methods(self) -> list[str]:
        return [call.method for call in self.calls]

    def answer(self, value) -> None:
        """Answer the last call."""
        self.link.answered([(self.calls[-1].number, value)])


async def test_calls_are_queued_at_once_and_in_order_awaited_or_not():
    driver = Driver()
    saved = driver.link.save_digest("a.mp4", "3 0", Source("a.mp4", 3, CONTENT))
    job = driver.link.job(CONTENT, 5)
    assert driver.methods == ["save_digest", "job"]
    assert len({call.number for call in driver.calls}) == 2
    driver.link.answered([(driver.calls[1].number, DONE), (driver.calls[0].number, None)])
    assert await asyncio.gather(saved, job) == [None, DONE]


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped():
    driver = Driver()
    job = driver.link.job(CONTENT, 5)
    job.cancel()
    driver.answer(DONE)
    assert job.cancelled()


async def test_the_digest_that_came_with_a_lease_counts_while_the_file_is_unchanged():
    driver = Driver()
    driver.link.learn(LEASE)
    assert await driver.link.find_digest("a.mp4", "3 0") == CONTENT
    assert await driver.link.find_digest("a.mp4", "3 1") is None
    assert driver.calls == []


async def test_a_content_is_held_and_released_however_the_block_ends():
    driver = Driver()
    driver.link.learn(LEASE)
    waiting = asyncio.create_task(driver.link.hold(CONTENT).__aenter__())
    await asyncio.sleep(0)
    assert driver.methods == ["hold"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert driver.methods == ["hold", "release"]
    assert driver.calls[1].arguments == (driver.calls[0].number,)
