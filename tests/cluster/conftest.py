"""Small sources for runs over many machines, and what a run on one machine makes of them."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from support.cluster_runs import on_one_machine, records
from support.videos import write_pictures

LEVELS = range(40, 240, 20)


@pytest.fixture(autouse=True)
def nodes_end_no_process(monkeypatch) -> None:
    """A node goes to its driver's folder, and ends its process when nobody listens; here it is the process of tests."""
    monkeypatch.chdir(Path.cwd())  # so that the next test begins where this one did
    monkeypatch.setattr("reelscribe.cluster.remote_node.FENCE_SECONDS", 24 * 3600.0)


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
    asyncio.run(on_one_machine(out, sources))
    return records(out)
