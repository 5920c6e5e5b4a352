"""What the tests of a pool share."""

import asyncio
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from reelscribe.decode_pool import watched_process
from reelscribe.decode_pool.pool import STALL_SECONDS
from support.decoding import MISBEHAVING
from support.patience import LoopClock
from support.received import task_of
from support.videos import write


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A video of 40 frames, all of which differ."""
    path = tmp_path_factory.mktemp("clips") / "clip.mkv"
    write(path, "ffv1", [20 + 25 * (k // 5) + k % 5 for k in range(40)])
    return path


@pytest.fixture
def misbehaving(clip, tmp_path, monkeypatch):
    """Returns the task of a file over which decode processes do what its name says."""
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    return lambda name: task_of(shutil.copy(clip, tmp_path / name))


@pytest.fixture
async def hanging_takes_no_time(tmp_path, monkeypatch):
    """Whenever a decode process hangs, the clocks of its parent move forward by the timeout of a stalled process.

    So processes that are only slow have the whole timeout, and those that hang do not delay the test.
    """
    clock, advancing = LoopClock(monkeypatch), []
    monkeypatch.setattr(watched_process, "time", SimpleNamespace(monotonic=clock.time))
    os.mkfifo(tmp_path / "hangs")
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    reports = os.open(tmp_path / "hangs", os.O_RDWR | os.O_NONBLOCK)

    def advance() -> None:
        os.read(reports, 1)
        advancing.append(asyncio.create_task(clock.advance(STALL_SECONDS)))

    asyncio.get_running_loop().add_reader(reports, advance)
    yield
    asyncio.get_running_loop().remove_reader(reports)
    os.close(reports)
    await asyncio.gather(*advancing)
