"""What does the body format cost in time and memory: over a socket, when it is read, and through TorchServe?

    scripts/bench wire [--rounds 5] [--json FILE]

Sender and receiver are processes of their own. Every round runs all formats once. The tables show medians and, in
brackets, smallest and largest. Memory is the peak of the resident set, less that of the idle process.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import stamina

from demo_server import Serving
from fakes.servers import serve_noop
from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish
from reelscribe import wire
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameArray

MEGABYTE = 1_000_000
IMAGES = 32
IMAGE_SHAPE = (1024, 1024, 3)
LAYOUTS = {f"{count}x{IMAGES // count}": count for count in (8, 4, 2, 1)}
"""Numbers of bodies, by the names of the rows: bodies x images in each."""
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
    """Resident bytes of this process: VmRSS is the present value, VmHWM the peak."""
    return int(re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024


def print_figures(idle: int, seconds: float) -> None:
    """Print the figures of this process for the main process; `idle` are the bytes that it had before."""
    print(json.dumps({"seconds": seconds, "memory": memory("VmHWM") - idle}))


def send(name: str, bodies: int, port: int) -> None:
    """Main function of the sender, timed from the arrays to the receiver's confirmation that it has them all."""
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
        print_figures(idle, time.perf_counter() - start)


def receive(name: str, bodies: int) -> None:
    """Main function of the receiver, which keeps all trees."""
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
    print_figures(idle, 0.0)


def transfer(name: str, bodies: int) -> tuple[float, float, float]:
    """Seconds of a transfer, and megabytes of memory of the sender and of the receiver."""
    command = [sys.executable, __file__]
    with subprocess.Popen([*command, "receive", name, str(bodies)], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        done = subprocess.run([*command, "send", name, str(bodies), port], capture_output=True, text=True, check=True)
        sender, received = json.loads(done.stdout), json.loads(receiver.stdout.read())
    return sender["seconds"], sender["memory"] / MEGABYTE, received["memory"] / MEGABYTE


def measure_transfers(rounds: int) -> Report:
    """The table of formats and layouts."""
    payload = IMAGES * float(np.prod(IMAGE_SHAPE)) * 4 / MEGABYTE
    report = Report(
        f"{IMAGES} images of {IMAGE_SHAPE} float32, {payload:.0f} MB, as bodies x images in each",
        ("layout", "format", "seconds", "sender MB", "receiver MB", "time / that of (a)"),
    )
    for layout, bodies in LAYOUTS.items():
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMATS}
        for _ in range(rounds):
            for name in FORMATS:
                results[name].append(transfer(name, bodies))
        columns = {name: [Spread(column) for column in zip(*rows, strict=True)] for name, rows in results.items()}
        for name, figures in columns.items():
            label = f"({name}) {FORMATS[name][0]}"
            report.add(layout, label, *figures, figures[0].over(columns["a"][0]))
    return report


def measure_unpack() -> Report:
    """The table of what it takes to read a large body."""
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
    report = Report(
        "Reading a body", ("MB", "microseconds", "bytes allocated at the peak", "growth of the resident set, bytes")
    )
    microseconds = Spread(tuple(s * 1e6 for s in seconds))
    report.add(f"{tree['frames'].nbytes / MEGABYTE:.0f}", microseconds, f"{peak:,}", f"{grown:,}")
    return report


async def throughput(serving: Serving, frames: FrameArray, in_flight: int, requests: int) -> float:
    """Megabytes per second of `requests` requests, `in_flight` at a time."""
    async with CaptionClient([Server(serving.url, serving.token)], serving.model) as client:
        await asyncio.gather(*(client.caption(frames) for _ in range(in_flight)))  # opens the connections
        start = time.perf_counter()
        left = iter(range(requests))

        async def keep_sending() -> None:
            for _ in left:
                await client.caption(frames)

        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        return requests * frames.nbytes / MEGABYTE / (time.perf_counter() - start)


def measure_torchserve(rounds: int) -> Report:
    """The table of request sizes and requests in flight."""
    stamina.set_active(False)  # a refused request ends the benchmark, instead of making it slow
    settings = {"max_request_size": str(110 * MEGABYTE), "vmargs": "-Xmx4g -XX:MaxDirectMemorySize=4g"}
    results: dict[tuple[int, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, serve_noop(Path(folder), **settings) as s:
        for _ in range(rounds):
            for megabytes in REQUEST_MEGABYTES:
                frames = np.zeros((megabytes * MEGABYTE // (224 * 224 * 3), 224, 224, 3), np.uint8)
                for in_flight in IN_FLIGHT:
                    requests = max(2 * in_flight, 200 // megabytes)
                    rate = asyncio.run(throughput(s, frames, in_flight, requests))
                    results.setdefault((megabytes, in_flight), []).append(rate)
    report = Report(
        "MB/s of uint8 frames through TorchServe to one worker that reads them and computes nothing",
        ("request", *(f"{count} in flight" for count in IN_FLIGHT)),
    )
    for megabytes in REQUEST_MEGABYTES:
        report.add(f"{megabytes} MB", *(Spread(tuple(results[megabytes, count])) for count in IN_FLIGHT))
    return report


def main() -> None:
    """Print the tables; with `send` or `receive`, be one of the two processes."""
    if sys.argv[1:2] == ["send"]:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["receive"]:
        receive(sys.argv[2], int(sys.argv[3]))
    else:
        parser = command_parser(__doc__)
        parser.add_argument("--rounds", type=int, default=5)
        add_json_option(parser)
        options = parser.parse_args()
        reports = [measure_transfers(options.rounds), measure_unpack(), measure_torchserve(options.rounds)]
        publish(reports, options.json)


if __name__ == "__main__":
    run_command(main)
