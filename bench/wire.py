"""What the body format costs: over a socket, on being read, and on the way through TorchServe.

    .venv/bin/python bench/wire.py [--rounds 5]

Sender and receiver are processes of their own. Every round runs all formats once; the tables show medians and, in
brackets, the smallest and largest. Memory is the peak resident set above that of the idle process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import stamina

from reelscribe import wire
from reelscribe.client import CaptionClient
from reelscribe.endpoint import Server
from reelscribe.media import FrameArray
from serving import ROOT, Serving, serve_noop

MEGABYTE = 1_000_000
IMAGES = 32
IMAGE_SHAPE = (1024, 1024, 3)
LAYOUTS = {f"{count}x{IMAGES // count}": count for count in (8, 4, 2, 1)}
"""Bodies x images in each."""
REQUEST_MEGABYTES = (1, 5, 8, 24, 100)
IN_FLIGHT = (1, 2, 4)

Pack = Callable[[Any], list[wire.Segment]]
Unpack = Callable[[bytearray], Any]

FORMATS: dict[str, tuple[str, Pack, Unpack]] = {
    "a": (f"pickle.dumps (protocol {pickle.DEFAULT_PROTOCOL})", lambda tree: [pickle.dumps(tree)], pickle.loads),
    "b": ("pickle protocol 5, in band", lambda tree: [pickle.dumps(tree, protocol=5)], pickle.loads),
    "c": ("reelscribe.wire", wire.pack, wire.unpack),
}


def memory(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its peak."""
    return int(re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024


def report(idle: int, seconds: float) -> None:
    """Tell the main process."""
    print(json.dumps({"seconds": seconds, "memory": memory("VmHWM") - idle}))


def send(name: str, bodies: int, port: int) -> None:
    """The sender: from the arrays to the receiver's word that it has them all."""
    pack = FORMATS[name][1]
    idle = memory("VmRSS")
    rng = np.random.default_rng(0)
    images = [rng.random(IMAGE_SHAPE, np.float32) for _ in range(IMAGES)]
    with socket.create_connection(("127.0.0.1", port)) as peer:
        start = time.perf_counter()
        for at in range(0, IMAGES, IMAGES // bodies):
            segments = pack({"prompt": "a video of", "images": images[at : at + IMAGES // bodies]})
            peer.sendall(struct.pack("<Q", wire.size_of(segments)))
            for segment in segments:
                peer.sendall(segment)
            del segments
        peer.recv(1)
        report(idle, time.perf_counter() - start)


def receive(name: str, bodies: int) -> None:
    """The receiver: keeps all trees."""
    unpack = FORMATS[name][2]
    idle = memory("VmRSS")
    trees = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
        with peer:
            for _ in range(bodies):
                (size,) = struct.unpack("<Q", peer.recv(8, socket.MSG_WAITALL))
                body = bytearray(size)
                view = memoryview(body)
                while view:
                    view = view[peer.recv_into(view) :]
                trees.append(unpack(body))
                del body, view
            peer.sendall(b".")
    assert sum(image.nbytes for tree in trees for image in tree["images"]) == IMAGES * np.prod(IMAGE_SHAPE) * 4
    report(idle, 0.0)


def transfer(name: str, bodies: int) -> tuple[float, float, float]:
    """Seconds, and megabytes of memory of the sender and of the receiver."""
    command = [sys.executable, __file__]
    with subprocess.Popen([*command, "receive", name, str(bodies)], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        done = subprocess.run([*command, "send", name, str(bodies), port], capture_output=True, text=True, check=True)
        sender, received = json.loads(done.stdout), json.loads(receiver.stdout.read())
    return sender["seconds"], sender["memory"] / MEGABYTE, received["memory"] / MEGABYTE


def spread(values: Iterable[float], digits: int = 0) -> str:
    """Median, smallest and largest."""
    numbers = list(values)
    return f"{median(numbers):.{digits}f} [{min(numbers):.{digits}f}-{max(numbers):.{digits}f}]"


def measure_transfers(rounds: int) -> None:
    """The table of formats and layouts."""
    payload = IMAGES * float(np.prod(IMAGE_SHAPE)) * 4 / MEGABYTE
    print(f"{IMAGES} images of {IMAGE_SHAPE} float32, {payload:.0f} MB, as bodies x images in each")
    print(f"{'':8}{'':34}{'seconds':>20}{'sender MB':>18}{'receiver MB':>18}")
    for layout, bodies in LAYOUTS.items():
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMATS}
        for _ in range(rounds):
            for name in FORMATS:
                results[name].append(transfer(name, bodies))
        for name, rows in results.items():
            seconds, sender, receiver = zip(*rows, strict=True)
            label = f"({name}) {FORMATS[name][0]}"
            print(f"{layout:8}{label:34}{spread(seconds, 2):>20}{spread(sender):>18}{spread(receiver):>18}")
        ratios = [c[0] / a[0] for a, c in zip(results["a"], results["c"], strict=True)]
        print(f"{layout:8}time of (c) / time of (a) in the same round: {spread(ratios, 2)}")


def measure_unpack() -> None:
    """What reading a large body takes."""
    body = bytearray().join(wire.pack({"frames": np.ones((200, 1000, 1000), np.uint8)}))
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        wire.unpack(body)
        seconds.append(time.perf_counter() - start)
    before = memory("VmRSS")
    tracemalloc.start()
    tree: Any = wire.unpack(body)
    peak = tracemalloc.get_traced_memory()[1]
    grown = memory("VmRSS") - before
    tracemalloc.stop()
    print(
        f"\nunpack of {tree['frames'].nbytes / MEGABYTE:.0f} MB: {spread([s * 1e6 for s in seconds], 1)} microseconds,"
    )
    print(f"allocating {peak:,} bytes at its peak; the resident set grew by {grown:,} bytes")


async def throughput(serving: Serving, frames: FrameArray, in_flight: int, requests: int) -> float:
    """Megabytes a second of so many requests, `in_flight` at a time."""
    async with CaptionClient([Server(serving.url, serving.token)], serving.model) as client:
        await asyncio.gather(*(client.caption(frames) for _ in range(in_flight)))  # connects
        start = time.perf_counter()
        left = iter(range(requests))

        async def keep_sending() -> None:
            for _ in left:
                await client.caption(frames)

        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        return requests * frames.nbytes / MEGABYTE / (time.perf_counter() - start)


def measure_torchserve(rounds: int) -> None:
    """The table of request sizes and requests in flight."""
    stamina.set_active(False)  # a request that is refused ends this, instead of making it slow
    settings = {"max_request_size": str(110 * MEGABYTE), "vmargs": "-Xmx4g -XX:MaxDirectMemorySize=4g"}
    results: dict[tuple[int, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, serve_noop(Path(folder), ROOT / "config.properties", **settings) as s:
        for _ in range(rounds):
            for megabytes in REQUEST_MEGABYTES:
                frames = np.zeros((megabytes * MEGABYTE // (224 * 224 * 3), 224, 224, 3), np.uint8)
                for in_flight in IN_FLIGHT:
                    requests = max(2 * in_flight, 200 // megabytes)
                    rate = asyncio.run(throughput(s, frames, in_flight, requests))
                    results.setdefault((megabytes, in_flight), []).append(rate)
    print("\nMB/s of uint8 frames through TorchServe to a handler that reads them and computes nothing, one worker")
    print(f"{'request':>10}" + "".join(f"{f'{n} in flight':>20}" for n in IN_FLIGHT))
    for megabytes in REQUEST_MEGABYTES:
        print(f"{megabytes:>7} MB" + "".join(f"{spread(results[megabytes, n]):>20}" for n in IN_FLIGHT))


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["send"]:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["receive"]:
        receive(sys.argv[2], int(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=5)
        rounds = parser.parse_args().rounds
        measure_transfers(rounds)
        measure_unpack()
        measure_torchserve(rounds)


if __name__ == "__main__":
    main()
