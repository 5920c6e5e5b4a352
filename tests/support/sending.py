"""What the tests of the sending side share: frames that can be told apart, and a client of fake servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest
import stamina

from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.errors import RequestRefused
from support.fake_torchserve import FakeTorchServe

FRAMES = np.repeat(np.arange(8, dtype=np.uint8), 8 * 8 * 3).reshape(8, 8, 8, 3)
"""Frame 7 is all sevens."""


@contextmanager
def no_waiting(attempts: int = 50) -> Iterator[None]:
    """Retries come at once, and so do probes."""
    stamina.set_testing(True, attempts=attempts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reelscribe.client.balancer.PROBE_SECONDS", 0.01)
        yield
    stamina.set_testing(False)


@asynccontextmanager
async def connected(
    *servers: FakeTorchServe, credentials: Credentials | str | None = None, **options: Any
) -> AsyncIterator[CaptionClient]:
    """A client that knows what the servers serve. A test that hangs is cancelled."""
    test = asyncio.current_task()
    assert test
    limit = asyncio.get_running_loop().call_later(60, test.cancel)
    addresses = [Server(server.url, credentials) for server in servers]
    with no_waiting():
        async with CaptionClient(addresses, "captioner", **options) as client:
            await client.describe()
            yield client
    limit.cancel()


def told(result: Sequence[str | RequestRefused]) -> list[int | str]:
    """The number of each frame that was captioned, and for others the reason."""
    return [int(text.removeprefix("frame ")) if isinstance(text, str) else str(text) for text in result]
