"""A run on one node does and shows the same, whether the node is in the process of the driver or on another machine."""

import asyncio
import re
import shutil
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.reporting.plan import Plan
from reelscribe.reporting.progress import Progress
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster
from support.patience import PATIENCE

NAMES = ["full-chroma.mkv", "old.avi", "same-480x270.mp4", "variable-rate.mp4"]
EVERY_SECOND = CaptionOptions(Sampling(fps=1), decode_workers=1)


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for name in NAMES:
        shutil.copy(media / name, folder)
    (folder / "bad.mp4").write_text("no video")
    return folder


class Announced(Progress):
    """Keeps what a run announces, and does not let it be answered before."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def announce(self, plan: Plan) -> None:
        self.line = str(plan)
        self.came.set()


class Both:
    """The same runs with their node here and elsewhere, each into a folder of its own."""

    def __init__(self, server: FakeTorchServe, library: Path, folder: Path) -> None:
        self.server, self.library = server, library
        self.outs = folder / "here", folder / "elsewhere"

    async def do(self, what: str, options: CaptionOptions = EVERY_SECOND, **choice) -> list:
        """Do the same with a run of each kind, one after the other."""
        spec = ModelSpec(options, [FoundServer(Server(self.server.url))], "captioner", 8)
        done = []
        for out in self.outs:
            async with AsyncExitStack() as stack:
                here = out.name == "here"
                tracks = [await spec.open(stack)] if here else RemoteNodes([spec], LocalCluster("a"))
                chosen = {name: value() if callable(value) else value for name, value in choice.items()}
                doing = getattr(Run(tracks, out, **chosen), what)([str(self.library)])
                done.append(await asyncio.wait_for(doing, PATIENCE))
        return done

    def files(self, pattern: str) -> list[dict[str, bytes]]:
        """The files of each folder that fit a glob."""
        return [
            {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob(pattern)) if path.is_file()}
            for out in self.outs
        ]


@pytest.fixture
async def both(library, tmp_path):
    async with FakeTorchServe() as server:
        yield Both(server, library, tmp_path)


async def test_a_dry_run_says_the_same_and_writes_nothing(both):
    here, elsewhere = await both.do("plan")
    assert str(here) == str(elsewhere)
    assert str(here).startswith("5 sources, 46 s of media (1 of unknown length); one frame a second: about 47 frames")
    assert not any(out.exists() for out in both.outs)


async def test_a_dry_run_after_a_run_says_the_same(both):
    await both.do("run", limit=2)
    for options in (EVERY_SECOND, CaptionOptions(Sampling(fps=2), decode_workers=1)):
        here, elsewhere = [_without_time_left(str(each)) for each in await both.do("plan", options)]
        assert here == elsewhere
    assert "2 records will show other results than now" in here


async def test_the_line_at_the_start_is_the_same(both):
    shown: list[Announced] = []

    def announced() -> Announced:
        shown.append(Announced())
        return shown[-1]

    answer = both.server.answer

    async def after_that(request):
        await shown[-1].came.wait()
        return await answer(request)

    both.server.answer = after_that
    await both.do("run", progress=announced)
    here, elsewhere = shown
    assert _without_time_left(here.line) == _without_time_left(elsewhere.line)


async def test_thumbnails_are_the_same_files(both):
    await both.do("run", thumbnails=4)
    here, elsewhere = both.files("thumbnails/**/*")
    assert len(here) == 4 * len(NAMES)
    assert here == elsewhere


async def test_the_summary_and_all_bytes_are_the_same(both):
    here, elsewhere = await both.do("run", limit=4)
    assert _without_times(str(here)) == _without_times(str(elsewhere))
    assert (here.failed, here.interrupted, here.snapshot.sources) == (1, False, 4)
    again_here, again_elsewhere = await both.do("run")
    assert _without_times(str(again_here)) == _without_times(str(again_elsewhere))
    for name in ("annotations.jsonl", "run.json", "failures.txt"):
        files_here, files_elsewhere = both.files(name)
        assert list(files_here.values()) == list(files_elsewhere.values())
        assert files_here
    before = [asdict(each.snapshot)["sources_before"] for each in (again_here, again_elsewhere)]
    assert before == [4, 4]


async def test_costs_are_kept_for_the_time_left_of_the_next_run(both):
    await both.do("run", limit=2)
    assert all(plan.left is not None for plan in await both.do("plan"))


def _without_time_left(plan: str) -> str:
    return re.sub(r"; [^;]* (to go|not known yet)$", "", plan)


def _without_times(summary: str) -> str:
    """A summary without what depends on the clock: speeds, limits, and how many short sources share a request."""
    summary = re.sub(r"; [^;]* (is|are) the limit[^;]*", "", summary)
    return re.sub(r"[\d.,]+ (a second|s of time|ms of time|times real time|requests?)", "", summary)
