"""The adaptive limit: permits and their order, and how the limit moves with a simulated server and its clock."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from reelscribe.client import in_flight as module
from reelscribe.client.in_flight import MOST_REQUESTS, ROUND_ANSWERS, InFlight
from reelscribe.errors import ServerUnreachable
from support.patience import PATIENCE

ITEMS_PER_REQUEST = 8


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> SimpleNamespace:
    """The clock that limits are computed with; only tests move it."""
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


async def granted(task: asyncio.Task[None]) -> None:
    """Wait for a permit, and fail if it never comes."""
    await asyncio.wait_for(task, PATIENCE)


async def turn_of_the_loop() -> None:
    """Let every task go on that does not wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_as_many_permits_are_granted_as_the_limit_says():
    permits = InFlight(2)
    tasks = [asyncio.create_task(permits.acquire()) for _ in range(3)]
    await turn_of_the_loop()
    assert [task.done() for task in tasks] == [True, True, False]
    permits.release()
    await granted(tasks[2])


async def test_permits_are_granted_in_the_order_of_the_requests():
    permits, order = InFlight(1), []

    async def take(name):
        await permits.acquire()
        order.append(name)
        permits.release()

    await permits.acquire()
    waiting = [asyncio.create_task(take(name)) for name in "abc"]
    await turn_of_the_loop()
    permits.release()
    late = asyncio.create_task(take("late"))
    for task in (*waiting, late):
        await granted(task)
    assert order == ["a", "b", "c", "late"]


async def test_a_request_that_is_cancelled_while_it_waits_takes_no_permit():
    permits = InFlight(1)
    await permits.acquire()
    waiting = [asyncio.create_task(permits.acquire()) for _ in range(2)]
    await turn_of_the_loop()
    waiting[0].cancel()
    await turn_of_the_loop()
    permits.release()
    await granted(waiting[1])
    assert waiting[0].cancelled()


@pytest.mark.parametrize("release_first", [True, False])
async def test_a_permit_is_not_lost_if_it_is_granted_while_its_request_is_cancelled(release_first):
    permits = InFlight(1)
    await permits.acquire()
    waiting = [asyncio.create_task(permits.acquire()) for _ in range(2)]
    await turn_of_the_loop()
    for step in (permits.release, waiting[0].cancel)[:: 1 if release_first else -1]:
        step()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    await granted(waiting[1])
    permits.release()
    await granted(asyncio.create_task(permits.acquire()))


async def test_requests_that_wait_when_waiting_is_stopped_get_no_permit():
    permits = InFlight(1)
    await permits.acquire()
    waiting = [asyncio.create_task(permits.acquire()) for _ in range(2)]
    await turn_of_the_loop()
    waiting[0].cancel()
    permits.stop_waiting()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    with pytest.raises(ServerUnreachable, match="the request was not sent"):
        await waiting[1]


async def test_after_waiting_was_stopped_only_free_permits_are_granted():
    permits = InFlight(1)
    permits.stop_waiting()
    await permits.acquire()
    with pytest.raises(ServerUnreachable, match="the request was not sent"):
        await permits.acquire()
    permits.release()
    await permits.acquire()


def limit_of(taken: int, most: int | None = None) -> InFlight:
    """The limit for servers that take so many requests, and twice as many if more help."""
    permits = InFlight(most)
    permits.set_taken(taken, 2 * taken)
    return permits


def test_the_limit_follows_what_the_servers_take_up_to_the_limit_of_the_user():
    free, bound = InFlight(), InFlight(32)
    limits = []
    for taken in (32, 256, 8, 100_000):
        for permits in (free, bound):
            permits.set_taken(taken, 2 * taken)
        limits.append((free.limit, bound.limit))
    assert limits == [(32, 32), (256, 32), (8, 8), (MOST_REQUESTS, 32)]
    assert bound.wanted == MOST_REQUESTS


class Simulation:
    """Requests of equal size, of which one more wants a permit than there are, and a server.

    The server answers `rate(requests in flight)` requests per second.
    """

    def __init__(self, clock: SimpleNamespace, start: int, most: int, rate: Callable[[int], float]) -> None:
        self.clock, self.rate, self.compute_share = clock, rate, 0.0
        self.permits = InFlight(most)
        self.permits.set_taken(start, most)
        self._requests = deque(asyncio.create_task(self.permits.acquire()) for _ in range(most + 1))

    async def limits(self, answers: int) -> list[int]:
        """Answer so many requests, and return the limit after each."""
        limits = []
        for _ in range(answers):
            await granted(self._requests.popleft())
            self.clock.seconds += 1 / self.rate(self.permits.limit)
            self.permits.answered(ITEMS_PER_REQUEST, self.compute_share / self.rate(self.permits.limit))
            self.permits.release()
            self._requests.append(asyncio.create_task(self.permits.acquire()))
            limits.append(self.permits.limit)
        return limits

    async def end(self) -> None:
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)


async def limits_of(
    clock: SimpleNamespace, start: int, most: int, rate: Callable[[int], float], answers: int = 3000
) -> list[int]:
    simulation = Simulation(clock, start, most, rate)
    limits = await simulation.limits(answers)
    await simulation.end()
    return limits


async def test_the_limit_grows_while_throughput_grows(clock):
    limits = await limits_of(clock, 1, 20, lambda in_flight: in_flight)
    assert limits == sorted(limits)
    assert set(limits) == {*range(1, 17), 18, 20}


@pytest.mark.parametrize(("capacity", "start"), [(4, 1), (4, 4), (11, 2)])
async def test_the_limit_ends_where_the_server_has_no_more_capacity(capacity, start, clock):
    limits = await limits_of(clock, start, 32, lambda in_flight: min(in_flight, capacity))
    settled = Counter(limits[len(limits) // 2 :])
    assert set(settled) == {capacity, capacity + 1}  # one more is tried now and then
    assert settled[capacity] > 5 * settled[capacity + 1]


async def test_a_limit_of_the_user_takes_the_place_of_what_the_servers_take_at_most(clock):
    simulation = Simulation(clock, 4, 20, lambda in_flight: in_flight)
    simulation.permits.set_taken(4, 8)
    assert (await simulation.limits(1000))[-1] == 20
    await simulation.end()


async def test_one_more_that_brings_nothing_is_taken_back_and_tried_again_later(clock):
    limits = await limits_of(clock, 3, 32, lambda _: 5, answers=ROUND_ANSWERS * 200)
    changes = [limits[0], *(after for before, after in pairwise(limits) if after != before)]
    assert changes[:6] == [3, 4, 3, 4, 3, 4]


async def test_a_server_that_gets_slower_with_more_requests_gets_no_more(clock):
    assert set(await limits_of(clock, 2, 32, lambda in_flight: 10 / in_flight)) == {2, 3}


async def test_capacity_that_comes_later_is_found(clock):
    simulation = Simulation(clock, 2, 32, lambda in_flight: min(in_flight, 2))
    await simulation.limits(1000)
    simulation.rate = lambda in_flight: min(in_flight, 8)
    assert (await simulation.limits(3000))[-1] in (8, 9)
    await simulation.end()


async def test_the_limit_stays_while_requests_do_not_wait_for_permits(clock):
    permits = limit_of(2)
    for _ in range(200):
        await permits.acquire()
        clock.seconds += 1
        permits.answered(ITEMS_PER_REQUEST)
        permits.release()
        assert permits.limit == 2


async def test_while_workers_compute_all_the_time_no_more_are_tried(clock):
    simulation = Simulation(clock, 16, 32, lambda in_flight: in_flight)
    simulation.compute_share = 0.95
    assert set(await simulation.limits(1000)) == {16}
    simulation.compute_share = 0.8
    assert (await simulation.limits(1000))[-1] > 16
    await simulation.end()


async def test_a_full_queue_takes_away_a_quarter_once_for_all_that_are_refused_together(clock):
    simulation = Simulation(clock, 16, 16, lambda _: 5)
    for _ in range(10):
        simulation.permits.refused()
    assert simulation.permits.limit == 12
    assert (await simulation.limits(ROUND_ANSWERS * 12))[-1] == 16  # it was full for a moment
    await simulation.end()


async def test_a_queue_that_stays_full_is_met_less_and_less_often(clock):
    simulation, queue, refused_after = Simulation(clock, 256, 256, lambda _: 400), 160, []
    for answers in range(100_000):
        if simulation.permits.limit > queue:
            simulation.permits.refused()
            refused_after.append(answers)
        await simulation.limits(1)
    await simulation.end()
    pauses = [later - earlier for earlier, later in pairwise(refused_after)]
    assert pauses == sorted(pauses)
    assert len([after for after in refused_after if after > 50_000]) <= 2
    simulation.permits.set_taken(128, 256)  # half of the workers are gone, and their queue with them
    assert simulation.permits.limit == 128


async def test_a_higher_limit_that_fills_a_queue_is_taken_back_at_once(clock):
    simulation, limits = Simulation(clock, 16, 32, lambda in_flight: in_flight), []
    for _ in range(20_000):
        if simulation.permits.limit > 20:
            simulation.permits.refused()
            assert simulation.permits.limit == 20
        limits += await simulation.limits(1)
    await simulation.end()
    assert limits[10_000:].count(22) <= 3


async def test_permits_above_a_lowered_limit_are_not_granted_again():
    permits = InFlight(4)
    for _ in range(4):
        await permits.acquire()
    permits.refused()
    waiting = asyncio.create_task(permits.acquire())
    permits.release()
    await turn_of_the_loop()
    assert not waiting.done()
    permits.release()
    await granted(waiting)


@pytest.mark.parametrize("start", [0, 1, 5, 100])
async def test_the_limit_is_never_below_one_or_above_the_most(start, clock):
    simulation = Simulation(clock, start, 5, lambda in_flight: in_flight)
    limits = [simulation.permits.limit]
    for _ in range(20):
        simulation.permits.refused()
        limits += await simulation.limits(30)
    for _ in range(20):
        limits += await simulation.limits(30)
    await simulation.end()
    assert min(limits) == 1
    assert max(limits) == 5


def test_clients_that_share_servers_have_equal_parts_of_the_permits():
    free, bound = limit_of(32), limit_of(32, most=16)
    limits = []
    for parts in (1, 4, 100, 1):
        free.share(parts)
        bound.share(parts)
        limits.append((free.limit, bound.limit))
    assert limits == [(32, 16), (8, 4), (1, 1), (32, 16)]
