"""The list of all sources of a run: each once, taken while more of them are being found."""

import asyncio
import threading

import pytest
from reelscribe.cluster.listing import NAMES_AT_ONCE, Listing

from reelscribe.errors import UsageError
from support.patience import PATIENCE


async def all_of(names) -> list[str]:
    """What is taken of a list, a few names at a time."""
    async with Listing(names) as listing:
        await asyncio.wait_for(listing.finding, PATIENCE)
        found: list[str] = []
        while more := listing.take(300):
            found += more
        assert listing.is_used_up
        assert listing.count == len(found)
    return found


async def test_all_sources_are_taken_in_the_order_in_which_they_are_found():
    names = [f"/videos/{number}.mp4" for number in range(2 * NAMES_AT_ONCE + 5)]
    assert await all_of(names) == names


async def test_of_a_source_with_several_names_the_first_one_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["b.mp4", f"{tmp_path}/b.mp4", "./b.mp4", "a.mp4", "x/../a.mp4"]
    assert await all_of(names) == ["b.mp4", "a.mp4"]


async def test_names_may_be_any_bytes():
    assert await all_of(["caf\udce9.mp4", "a\nb.mp4"]) == ["caf\udce9.mp4", "a\nb.mp4"]


async def test_an_empty_list_is_used_up_at_once():
    async with Listing([]) as listing:
        assert (listing.is_complete, listing.is_used_up, listing.count, listing.take(9)) == (True, True, 0, [])


async def test_the_first_sources_can_be_taken_while_others_are_being_found():
    go_on, more = threading.Event(), asyncio.Event()

    def finding():
        yield from (f"{number}.mp4" for number in range(NAMES_AT_ONCE))
        assert go_on.wait(PATIENCE)
        yield "late.mp4"

    async with Listing(finding(), more.set) as listing:
        assert len(listing.take(2 * NAMES_AT_ONCE)) == NAMES_AT_ONCE
        assert listing.take(9) == []
        assert not listing.is_complete
        assert not listing.is_used_up
        go_on.set()
        await asyncio.wait_for(more.wait(), PATIENCE)
        assert listing.is_complete
        assert not listing.is_used_up
        assert listing.take(9) == ["late.mp4"]
        assert listing.is_used_up


async def test_a_name_that_stands_for_nothing_is_told_at_once_or_when_it_is_reached():
    def finding(before: int):
        yield from (f"{number}.mp4" for number in range(before))
        raise UsageError("gone: no such file")

    with pytest.raises(UsageError, match="no such file"):
        async with Listing(finding(3)):
            pytest.fail("the block began")
    async with Listing(finding(NAMES_AT_ONCE)) as listing:
        with pytest.raises(UsageError, match="no such file"):
            await asyncio.wait_for(listing.finding, PATIENCE)
        assert listing.count == NAMES_AT_ONCE


async def test_a_block_that_ends_early_does_not_wait_for_the_rest():
    def endless():
        number = 0
        while True:
            yield f"{number}.mp4"
            number += 1

    async with Listing(endless()) as listing:
        assert listing.take(1) == ["0.mp4"]
    assert listing.finding.done()
