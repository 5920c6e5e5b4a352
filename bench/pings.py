"""How long a server takes to answer /ping meanwhile, seen from a process of its own.

    .venv/bin/python bench/pings.py http://127.0.0.1:8080

Prints milliseconds, one ping a line, until it is ended.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import urlsplit

EVERY_SECONDS = 0.05


@contextmanager
def pinging(url: str) -> Iterator[list[float]]:
    """While the block runs; then the list holds the milliseconds of each ping."""
    milliseconds: list[float] = []
    with subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has started, and is connected
        try:
            yield milliseconds
        finally:
            process.terminate()
            milliseconds += map(float, process.stdout.read().splitlines())


def ping(url: str) -> None:
    """Every 50 ms, or as soon as the last one is answered, if that took longer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    begin = time.monotonic()
    for k in count():
        time.sleep(max(0.0, begin + k * EVERY_SECONDS - time.monotonic()))
        sent = time.monotonic()
        connection.request("GET", "/ping")
        connection.getresponse().read()
        print(f"{(time.monotonic() - sent) * 1000:.3f}", flush=True)


if __name__ == "__main__":
    ping(sys.argv[1])
