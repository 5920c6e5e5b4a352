"""The list of all sources of a run: each once, taken while more of them are being found."""

import asyncio
import threading

from reelscribe.results.known_files import KnownFile
from reelscribe.run import listing
from reelscribe.run.file_search import Found
from reelscribe.run.listing import NAMES_AT_ONCE, Listing
from support.patience import PATIENCE


async def nothing_known(files) -> list[KnownFile]:
    return [KnownFile()] * len(files)


async def all_of(names) -> list[str]:
    """The paths that are taken of a list, a few at a time."""
    with Listing(names, ()) as sources:
        await asyncio.wait_for(sources.find((), nothing_known), PATIENCE)
        found: list[str] = []
        while more := sources.take(300):
            found += [source.path for source in more]
        assert sources.is_used_up
        assert sources.count == len(found)
    return found


async def test_all_sources_are_taken_in_the_order_in_which_they_are_found(monkeypatch):
    names = [f"/videos/{number}.mp4" for number in range(2 * NAMES_AT_ONCE + 5)]
    monkeypatch.setattr(listing, "find_sources", lambda *_: map(Found, names))
    assert await all_of(names) == names


async def test_of_a_source_with_several_names_the_first_one_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).touch()
    (tmp_path / "x").mkdir()
    names = ["b.mp4", f"{tmp_path}/b.mp4", "./b.mp4", "a.mp4", "x/../a.mp4"]
    assert await all_of(names) == ["b.mp4", "a.mp4"]


async def test_names_may_be_any_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["caf\udce9.mp4", "a\nb.mp4"]
    for name in names:
        (tmp_path / name).touch()
    assert await all_of(names) == names


async def test_only_the_suffix_of_a_recording_says_that_a_source_has_no_pictures(monkeypatch):
    names = ["a.MP3", "b.mp4", "https://films.example/watch?v=1", "film.dat", "clip.mp4.part", "bare"]
    monkeypatch.setattr(listing, "find_sources", lambda *_: map(Found, names))
    with Listing(names, ()) as sources:
        await sources.find((), nothing_known)
        assert [source.size.kind for source in sources.take(9)] == ["audio", *["video"] * 5]


async def test_an_empty_list_is_used_up_at_once():
    with Listing([], ()) as sources:
        await sources.find((), nothing_known)
        assert (sources.is_complete, sources.is_used_up, sources.count, sources.take(9)) == (True, True, 0, [])


async def test_the_first_sources_can_be_taken_while_others_are_being_found(monkeypatch):
    go_on, more = threading.Event(), asyncio.Event()

    def finding(*_):
        yield from (Found(f"{number}.mp4") for number in range(NAMES_AT_ONCE))
        assert go_on.wait(PATIENCE)
        yield Found("late.mp4")

    monkeypatch.setattr(listing, "find_sources", finding)
    with Listing([], ()) as sources:
        finding_all = asyncio.create_task(sources.find((), nothing_known, on_more=lambda _: more.set()))
        await asyncio.wait_for(more.wait(), PATIENCE)
        assert len(sources.take(2 * NAMES_AT_ONCE)) == NAMES_AT_ONCE
        assert sources.take(9) == []
        assert not sources.is_complete
        assert not sources.is_used_up
        go_on.set()
        await asyncio.wait_for(finding_all, PATIENCE)
        assert sources.is_complete
        assert not sources.is_used_up
        assert [source.path for source in sources.take(9)] == ["late.mp4"]
        assert sources.is_used_up


async def test_with_a_limit_nothing_can_be_taken_before_all_are_listed(monkeypatch):
    paths = [f"{number}.mp4" for number in range(NAMES_AT_ONCE + 1)]
    monkeypatch.setattr(listing, "find_sources", lambda *_: map(Found, paths))
    taken_early = []

    async def look_up(files) -> list[KnownFile]:
        taken_early.extend(sources.take(9))
        return [KnownFile(was_unreadable=path == "1.mp4") for path, *_ in files]

    with Listing([], ()) as sources:
        await sources.find((), look_up, limit=NAMES_AT_ONCE)
        assert taken_early == []
        assert (sources.count, sources.excluded) == (NAMES_AT_ONCE, 1)
        taken = [source.path for source in sources.take(2 * NAMES_AT_ONCE)]
    assert taken == [path for path in paths if path != "1.mp4"]
