"""What the tests of the client share: frames that differ, clients of fake servers, and what the client logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest
import stamina

from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.contract.frames import FrameCaption
from reelscribe.errors import RequestRefused
from support.fake_torchserve import FakeTorchServe
from support.patience import PATIENCE

FRAMES = np.repeat(np.arange(8, dtype=np.uint8), 8 * 8 * 3).reshape(8, 8, 8, 3)
"""Eight frames; each value of frame 7 is 7."""


@contextmanager
def no_waiting(attempts: int = 50) -> Iterator[None]:
    """Make retries come at once, so many at most, and probes almost at once."""
    stamina.set_testing(True, attempts=attempts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reelscribe.client.balancer.PROBE_SECONDS", 0.01)
        try:
            yield
        finally:
            stamina.set_testing(False)


@asynccontextmanager
async def connected(
    *servers: FakeTorchServe, credentials: Credentials | str | None = None, **options: Any
) -> AsyncIterator[Any]:
    """A client of the servers' model, of whichever kind, that has described it. A test that hangs fails."""
    client_type = {"captioner": CaptionClient, "speech": SpeechClient, "clips": ClipClient}[servers[0].model]
    addresses = [Server(server.url, credentials) for server in servers]
    with no_waiting():
        async with asyncio.timeout(PATIENCE), client_type(addresses, servers[0].model, **options) as client:
            await client.describe()
            yield client


def frame_numbers(result: Sequence[FrameCaption | RequestRefused]) -> list[int | str]:
    """The number of each frame that was captioned, and the error's message of each other one."""
    return [
        int(answer.text.removeprefix("frame ")) if isinstance(answer, FrameCaption) else str(answer)
        for answer in result
    ]


class Messages(logging.Handler):
    """What reelscribe's loggers say, as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.arrived = asyncio.Event()
        """Set with each message; tests clear it."""

    def __enter__(self) -> Messages:
        logger = logging.getLogger("reelscribe")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("reelscribe")
        logger.removeHandler(self)
        logger.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.arrived.set()

    async def line_with(self, text: str) -> str:
        """Wait for a message that holds a text, and return it."""
        while not (found := [line for line in self.lines if text in line]):
            self.arrived.clear()
            await self.arrived.wait()
        return found[0]
