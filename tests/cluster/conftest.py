"""Small sources for runs over many machines, and what a run on one machine makes of them."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from reelscribe.run.bulk import BulkRun
from support.cluster_runs import caption_spec
from support.fake_torchserve import FakeTorchServe
from support.videos import write_pictures

LEVELS = range(40, 240, 20)


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A folder of ten videos of one frame, each of another grey, and named after it: 40.mkv to 220.mkv."""
    folder = tmp_path_factory.mktemp("sources")
    for level in LEVELS:
        write_pictures(folder / f"{level}.mkv", "libx264", [np.full((16, 16, 3), level, np.uint8)])
    return folder


@pytest.fixture(scope="session")
def expected(sources, tmp_path_factory) -> bytes:
    """The records of these sources, of a run on one machine."""
    out = tmp_path_factory.mktemp("one machine") / "out"
    asyncio.run(_on_one_machine(sources, out))
    return (out / "annotations.jsonl").read_bytes()


async def _on_one_machine(sources: Path, out: Path) -> None:
    from contextlib import AsyncExitStack

    async with FakeTorchServe() as server, AsyncExitStack() as stack:
        await BulkRun([await caption_spec(server).open(stack)], out).run([str(sources)])
