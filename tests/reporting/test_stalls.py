"""How long the event loop was kept from its work."""

import asyncio
from types import SimpleNamespace

import pytest

from reelscribe.reporting import meter as stalls
from reelscribe.reporting.meter import Stalls


async def watch(monkeypatch, late_seconds: list[float]) -> Stalls:
    """A watch that wakes up so late, one time after the other, on a clock of its own."""
    clock = SimpleNamespace(now=0.0)
    waits = iter(late_seconds)

    async def sleep(seconds):
        if (late := next(waits, None)) is None:
            raise asyncio.CancelledError
        clock.now += seconds + late

    monkeypatch.setattr(stalls, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(stalls, "asyncio", SimpleNamespace(sleep=sleep))
    watched = Stalls()
    with pytest.raises(asyncio.CancelledError):
        await watched.watch()
    return watched


def test_before_anything_was_seen_there_was_no_stall():
    assert (Stalls().longest_ms, Stalls().p99_ms) == (0, 0)


async def test_the_longest_stall_is_told_in_whole_milliseconds(monkeypatch):
    watched = await watch(monkeypatch, [0.0, 0.0205, 0.0035])
    assert watched.longest_ms == 20


async def test_one_wait_of_a_hundred_may_be_longer_than_the_99th_percentile(monkeypatch):
    waits = [0.0005] * 98 + [0.0305, 0.5005]
    watched = await watch(monkeypatch, waits)
    assert (watched.p99_ms, watched.longest_ms) == (30, 500)
    watched = await watch(monkeypatch, [*waits[1:], 0.7005])
    assert (watched.p99_ms, watched.longest_ms) == (500, 700)
