"""How long a server takes to answer a small request meanwhile, seen from a process of its own.

    .venv/bin/python bench/pings.py http://127.0.0.1:8080/ping

Prints milliseconds, one answer a line, until it is ended. Where there is a token in PINGS_TOKEN, it is sent: without
one, what is measured is a refusal.
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

EVERY_SECONDS = 0.05


@contextmanager
def pinging(url: str, path: str = "/ping", token: str = "") -> Iterator[list[float]]:
    """While the block runs; then the list holds the milliseconds of each answer."""
    milliseconds: list[float] = []
    environment = {**os.environ, "PINGS_TOKEN": token}  # not on a command line, which everybody can read
    command = [sys.executable, __file__, url + path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has started, and is connected
        try:
            yield milliseconds
        finally:
            process.terminate()
            milliseconds += map(float, process.stdout.read().splitlines())


def ping(url: str, token: str) -> None:
    """Every 50 ms, or as soon as the last one is answered, if that took longer."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.netloc)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    begin = time.monotonic()
    for k in count():
        time.sleep(max(0.0, begin + k * EVERY_SECONDS - time.monotonic()))
        sent = time.monotonic()
        connection.request("GET", at.path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200 or not token, f"status {answer.status}"
        print(f"{(time.monotonic() - sent) * 1000:.3f}", flush=True)


if __name__ == "__main__":
    ping(sys.argv[1], os.environ.get("PINGS_TOKEN", ""))
