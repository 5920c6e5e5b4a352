"""Delays that users would feel: of a server that answers small requests, and of an event loop (stalls).

    python bench/lib/delays.py http://127.0.0.1:8080/ping

The requests are sent by a process of its own, which is this program. It prints the milliseconds of each answer, one a
line, until it is ended. It sends the token in the environment variable PINGS_TOKEN, if that is set. Without a token, it
measures how long a refusal takes.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from urllib.parse import urlsplit

INTERVAL_SECONDS = 0.05
"""Time from one request, or one look at the event loop, to the next."""


class Stalls:
    """Stalls of an event loop: delays in which every request waits."""

    def __init__(self) -> None:
        self._milliseconds: list[int] = []

    @classmethod
    @asynccontextmanager
    async def measured(cls) -> AsyncIterator[Stalls]:
        """Measure every INTERVAL_SECONDS by how much the event loop is late, until the block ends."""
        stalls = cls()
        watch = asyncio.create_task(stalls._watch())
        try:
            yield stalls
        finally:
            watch.cancel()

    @property
    def longest_ms(self) -> int:
        """The longest stall, in whole milliseconds."""
        return max(self._milliseconds, default=0)

    @property
    def p99_ms(self) -> int:
        """The 99th percentile of the stalls, in whole milliseconds."""
        ordered = sorted(self._milliseconds)
        return ordered[len(ordered) * 99 // 100] if ordered else 0

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + INTERVAL_SECONDS
            await asyncio.sleep(INTERVAL_SECONDS)
            self._milliseconds.append(int((time.monotonic() - due) * 1000))


@contextmanager
def pinging(url: str, path: str = "/ping", token: str = "") -> Iterator[list[float]]:
    """Send requests until the block ends. After it, the list holds the milliseconds of each answer."""
    milliseconds: list[float] = []
    environment = {**os.environ, "PINGS_TOKEN": token}  # not on a command line, which everybody can read
    command = [sys.executable, __file__, url + path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # waits until it is connected
        try:
            yield milliseconds
        finally:
            process.terminate()
            milliseconds += map(float, process.stdout.read().splitlines())


def ping(url: str, token: str) -> None:
    """Send a request every 50 ms, or as soon as the last one is answered, if that took longer."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    begin = time.monotonic()
    for k in count():
        time.sleep(max(0.0, begin + k * INTERVAL_SECONDS - time.monotonic()))
        sent = time.monotonic()
        connection.request("GET", address.path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200 or not token, f"status {answer.status}"
        print(f"{(time.monotonic() - sent) * 1000:.3f}", flush=True)


if __name__ == "__main__":
    ping(sys.argv[1], os.environ.get("PINGS_TOKEN", ""))
