"""How long a server takes to answer a small request, measured by a process of its own.

    python bench/lib/pings.py http://127.0.0.1:8080/ping

Prints the milliseconds of each answer, one a line, until it is ended. It sends the token in the environment variable
PINGS_TOKEN, if that is set. Without a token, it measures how long a refusal takes.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import urlsplit

INTERVAL_SECONDS = 0.05


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
