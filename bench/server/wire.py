"""What does the body format cost in time and memory: over a socket, when it is read, and through TorchServe?

    scripts/bench wire [--tables transfers reading sizes layouts] [--layouts 8x4 4x8 2x16 1x32]
                       [--rounds 5] [--json FILE]

transfers: layouts and formats over a socket. reading: a large body. sizes: requests of several sizes through
TorchServe. layouts: those of transfers through a TorchServe that allows such bodies, to a worker that computes nothing,
by reelscribe.wire and by pickle.dumps and pickle.loads.

Sender and receiver are processes of their own. Every round runs all formats once. The tables show medians and, in
brackets, smallest and largest. Memory is the peak of the resident set, less that of the idle process. In the table of
layouts, each row has a server of its own in each round, because Java keeps the memory that it has taken.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
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
from urllib.parse import urlsplit

import numpy as np
import stamina

from fakes.servers import serve_noop
from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish
from reelscribe import wire
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameArray
from servers.torchserve import Serving

MEGABYTE = 1_000_000
IMAGES = 32
IMAGE_SHAPE = (1024, 1024, 3)
LAYOUTS = {f"{count}x{IMAGES // count}": count for count in (8, 4, 2, 1)}
"""Numbers of bodies, by the names of the rows: bodies x images in each."""
REQUEST_MEGABYTES = (1, 5, 8, 24, 100)
IN_FLIGHT = (1, 2, 4)
LARGE_BODIES: dict[str, Any] = {"max_request_size": str(500 * MEGABYTE), "vmargs": "-Xmx6g -XX:MaxDirectMemorySize=4g"}
"""Settings of a server for the table of layouts; no other server should have them."""

Pack = Callable[[Any], list[wire.Segment]]
Unpack = Callable[[bytearray], Any]

FORMATS: dict[str, tuple[str, Pack, Unpack]] = {
    "a": (f"pickle.dumps (protocol {pickle.DEFAULT_PROTOCOL})", lambda tree: [pickle.dumps(tree)], pickle.loads),
    "b": ("pickle protocol 5, in band", lambda tree: [pickle.dumps(tree, protocol=5)], pickle.loads),
    "c": ("reelscribe.wire", wire.pack, wire.unpack),
}


def memory(name: str, process: int | str = "self") -> int:
    """Resident bytes of a process, by default this one: VmRSS is the present value, VmHWM the peak."""
    return int(re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0]) * 1024


def print_figures(idle: int, seconds: float) -> None:
    """Print the figures of this process for the main process; `idle` are the bytes that it had before."""
    print(json.dumps({"seconds": seconds, "memory": memory("VmHWM") - idle}))


def random_images() -> list[Any]:
    """The images of all layouts."""
    rng = np.random.default_rng(0)
    return [rng.random(IMAGE_SHAPE, np.float32) for _ in range(IMAGES)]


def send(name: str, bodies: int, port: int) -> None:
    """Main function of the sender, timed from the arrays to the receiver's confirmation that it has them all."""
    pack = FORMATS[name][1]
    idle = memory("VmRSS")
    images = random_images()
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


def measure_transfers(rounds: int, layouts: list[str]) -> Report:
    """The table of formats and layouts over a socket."""
    payload = IMAGES * float(np.prod(IMAGE_SHAPE)) * 4 / MEGABYTE
    report = Report(
        f"{IMAGES} images of {IMAGE_SHAPE} float32, {payload:.0f} MB, as bodies x images in each",
        ("layout", "format", "seconds", "sender MB", "receiver MB", "time / that of (a)"),
    )
    for layout in layouts:
        bodies = LAYOUTS[layout]
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMATS}
        for _ in range(rounds):
            for name in FORMATS:
                results[name].append(transfer(name, bodies))
        columns = {name: [Spread(column) for column in zip(*rows, strict=True)] for name, rows in results.items()}
        for name, figures in columns.items():
            label = f"({name}) {FORMATS[name][0]}"
            report.add(layout, label, *figures, figures[0].over(columns["a"][0]))
    return report


def measure_reading(_rounds: int, _layouts: list[str]) -> Report:
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


def post(name: str, bodies: int, url: str) -> None:
    """Main function of a client of TorchServe, timed from the arrays to the last answer."""
    pack = FORMATS[name][1]
    idle = memory("VmRSS")
    images = random_images()
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    headers = {"Authorization": f"Bearer {os.environ['WIRE_TOKEN']}", "Content-Type": "application/octet-stream"}
    start = time.perf_counter()
    for at in range(0, IMAGES, IMAGES // bodies):
        segments = pack({"prompt": "a video of", "frames": images[at : at + IMAGES // bodies]})
        sized = {**headers, "Content-Length": str(wire.size_of(segments))}
        connection.request("POST", address.path, body=iter(segments), headers=sized)
        with connection.getresponse() as response:
            answer = response.read()
            assert response.status == 200, answer
        assert len(json.loads(answer)) == IMAGES // bodies
        del segments
    print_figures(idle, time.perf_counter() - start)


def serve_layout(name: str, bodies: int) -> tuple[float, float, float, float]:
    """Seconds of a layout through a new TorchServe, and megabytes of memory of client, Java and worker."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_noop(Path(folder), unpickle=FORMATS[name][2] is pickle.loads, **LARGE_BODIES) as serving,
    ):
        pids = [pid for kind in ("java", "workers") for pid in serving.processes()[kind]]
        idle = [memory("VmRSS", pid) for pid in pids]
        command = [sys.executable, __file__, "post", name, str(bodies), serving.predictions]
        # Not on a command line, which everybody can read.
        environment = {**os.environ, "WIRE_TOKEN": serving.token}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        java, worker = (memory("VmHWM", pid) - before for pid, before in zip(pids, idle, strict=True))
    client = json.loads(done.stdout)
    return client["seconds"], client["memory"] / MEGABYTE, java / MEGABYTE, worker / MEGABYTE


def measure_layouts(rounds: int, layouts: list[str]) -> Report:
    """The table of layouts through TorchServe."""
    payload = IMAGES * float(np.prod(IMAGE_SHAPE)) * 4 / MEGABYTE
    report = Report(
        f"{payload:.0f} MB through TorchServe, as bodies x images in each",
        ("layout", "format", "seconds", "client MB", "Java MB", "worker MB", "time / that of (a)"),
    )
    for layout in layouts:
        bodies = LAYOUTS[layout]
        results: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("a", "c")}
        for _ in range(rounds):
            for name, rows in results.items():
                rows.append(serve_layout(name, bodies))
        columns = {name: [Spread(column) for column in zip(*rows, strict=True)] for name, rows in results.items()}
        for name, figures in columns.items():
            report.add(layout, f"({name}) {FORMATS[name][0]}", *figures, figures[0].over(columns["a"][0]))
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


def measure_sizes(rounds: int, _layouts: list[str]) -> Report:
    """The table of request sizes and requests in flight."""
    stamina.set_active(False)  # a refused request ends the benchmark, instead of making it slow
    settings: dict[str, Any] = {"max_request_size": str(110 * MEGABYTE), "vmargs": "-Xmx4g -XX:MaxDirectMemorySize=4g"}
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


TABLES = {
    "transfers": measure_transfers,
    "reading": measure_reading,
    "sizes": measure_sizes,
    "layouts": measure_layouts,
}


def main() -> None:
    """Print the tables; with `send`, `receive` or `post`, be one of the processes."""
    if sys.argv[1:2] == ["send"]:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["receive"]:
        receive(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["post"]:
        post(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        parser = command_parser(__doc__)
        parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
        parser.add_argument(
            "--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="bodies x images in each"
        )
        parser.add_argument("--rounds", type=int, default=5)
        add_json_option(parser)
        options = parser.parse_args()
        publish([TABLES[name](options.rounds, options.layouts) for name in options.tables], options.json)


if __name__ == "__main__":
    run_command(main)
