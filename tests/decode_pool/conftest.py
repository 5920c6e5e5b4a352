"""What the tests of a pool share."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from reelscribe.decode_pool import process
from reelscribe.decode_pool.pool import STALL_SECONDS
from support.patience import LoopClock


@pytest.fixture
async def hanging_takes_no_time(tmp_path, monkeypatch):
    """Whenever a decode process hangs, the clocks of its parent move forward by the timeout of a stalled process.

    So processes that are only slow have the whole timeout, and those that hang do not delay the test.
    """
    clock, advancing = LoopClock(monkeypatch), []
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=clock.time))
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
