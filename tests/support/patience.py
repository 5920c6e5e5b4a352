"""How long tests wait before they fail, and the event loop's clock, which they move forward instead of waiting."""

import asyncio

import pytest

PATIENCE = 300.0
"""Timeout in seconds after which a test that waits is taken for hung. It only guards: no machine is that slow."""


class LoopClock:
    """The clock of the running event loop, and of all timeouts in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the clock until the test ends."""
        loop = asyncio.get_running_loop()
        self._time, self._ahead = loop.time, 0.0
        monkeypatch.setattr(loop, "time", self.time)

    def time(self) -> float:
        return self._time() + self._ahead

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, once all that has already arrived at this process is handled."""
        for _ in range(100):  # turns of the loop, far more than handling takes
            await asyncio.sleep(0)
        self._ahead += seconds
