"""Many clients send the largest bodies that are allowed, to one worker, as fast as they can: does the server live?

    .venv/bin/python bench/abuse.py [--seconds 60] [--clients 50]

Prints what came of every request, the peak memory of the Java process beside its bound, and whether the same processes
still answer. Exit status 1 if anything died, a refusal was neither 503 nor 413, or memory went over the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from reelscribe import wire
from serving import ROOT, Serving, serve_demo

EXPECTED = {"200", "413", "503"}
MEBIBYTE = 2**20


def largest_body(limit: int) -> bytes:
    """Full HD frames, as many as fit, and padding in a second array up to the last byte."""
    frame = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
    frames = np.stack([frame] * ((limit - MEBIBYTE) // frame.nbytes))
    rest = limit - wire.size_of(wire.pack({"frames": frames, "rest": np.zeros(MEBIBYTE // 2, np.uint8)}))
    body = b"".join(wire.pack({"frames": frames, "rest": np.zeros(MEBIBYTE // 2 + rest, np.uint8)}))
    assert len(body) == limit
    return body


async def keep_sending(serving: Serving, session: aiohttp.ClientSession, body: bytes, end: float) -> Counter[str]:
    """Send `body` again and again until `end`, a time of `time.monotonic`."""
    outcomes: Counter[str] = Counter()
    while time.monotonic() < end:
        try:
            async with session.post(serving.predictions, data=io.BytesIO(body), headers=serving.headers) as response:
                await response.read()
                outcomes[str(response.status)] += 1
        except (aiohttp.ClientError, OSError) as error:
            outcomes[type(error).__name__] += 1
    return outcomes


async def ping(serving: Serving) -> str:
    """What the server says of itself."""
    async with (
        aiohttp.ClientSession(headers=serving.headers) as session,
        session.get(f"{serving.url}/ping") as response,
    ):
        return await response.text()


async def abuse(serving: Serving, clients: int, seconds: float, limit: int) -> Counter[str]:
    """All clients at once; every tenth sends one byte more than is allowed."""
    body = largest_body(limit)
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        sends = [keep_sending(serving, session, body + b"x" * (i % 10 == 9), end) for i in range(clients)]
        return sum(await asyncio.gather(*sends), Counter())


def bound(vmargs: str) -> int:
    """Bytes that the settings allow the Java process: heap and direct buffers."""
    sizes = re.findall(r"-(?:Xmx|XX:MaxDirectMemorySize=)(\d+)([mg])", vmargs)
    return sum(int(size) * MEBIBYTE * (1024 if unit == "g" else 1) for size, unit in sizes)


def main() -> int:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--config", type=Path, default=ROOT / "config.properties")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serve_demo(Path(folder), options.config) as serving:
        before = serving.processes()
        java = psutil.Process(before["java"][0])
        limit = int(serving.settings["max_request_size"])
        outcomes = asyncio.run(abuse(serving, options.clients, options.seconds, limit))
        after, answer = serving.processes(), asyncio.run(ping(serving))
        status = Path(f"/proc/{java.pid}/status").read_text()
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
        allowed = bound(serving.settings["vmargs"])
    print(f"{options.clients} clients, {limit:,} bytes a request, {options.seconds:.0f} s")
    print(f"answers {dict(sorted(outcomes.items()))}")
    print(f"Java process: peak {peak / MEBIBYTE:,.0f} MiB of {allowed / MEBIBYTE:,.0f} MiB for heap and direct buffers")
    print(f"before {before}, after {after}, ping {answer.split()}")
    sound = before == after and "Healthy" in answer and peak < allowed and set(outcomes) <= EXPECTED
    print("sound" if sound else "NOT SOUND")
    return 0 if sound else 1


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main())
