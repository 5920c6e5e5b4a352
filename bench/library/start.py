"""How long does a run take to its first request?

    scripts/bench library/start [--rounds 10] [--json FILE]

A server that computes nothing notes when the first request with frames arrives, and the table has the seconds until
then, for one small video:

- command: from the start of the process `reelscribe caption FILE`.
- run: from when a process that has imported everything opens its client and begins such a run. Decode processes are new
  each time.

"to its end" is the time until the records are written. Each run has a new output folder. Figures are medians and, in
brackets, smallest and largest.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish, take_turns
from reelscribe import wire
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import FrameCaption, InputSize
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionTrack
from synthetic.video_files import write_library

MODEL = "captioner"
DESCRIPTION = CaptionerDescription(
    name="start",
    revision="1",
    prompt="",
    generation={},
    input_size=InputSize(224, 224),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    dtype="float32",
    device_batch=32,
    max_frames=512,
    max_side=8192,
)


class IdleServer:
    """Describes a captioner that computes nothing, and notes when the first request with frames arrives."""

    url: str
    first_request: float
    """When it arrived, in seconds of `time.monotonic`; infinity as long as it has not."""

    def forget(self) -> None:
        """Wait for the first request of another run."""
        self.first_request = float("inf")

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        app = web.Application(client_max_size=2**27)
        app.router.add_post(f"/predictions/{MODEL}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        if "describe" in request.headers:
            return web.json_response(DESCRIPTION.to_json())
        self.first_request = min(self.first_request, time.monotonic())
        tree: Any = wire.unpack(await request.read())
        return web.json_response([FrameCaption("a frame").to_json()] * len(tree["frames"]))


@contextmanager
def idle_server() -> Iterator[IdleServer]:
    """Run the server in a thread of its own."""
    server, loop = IdleServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def run_as_command(server: IdleServer, video: Path, out: Path) -> None:
    """Run `reelscribe caption` in a process of its own."""
    words = ["caption", str(video), "--out", str(out), "--server", server.url, "--model", MODEL, "--quiet"]
    subprocess.run([sys.executable, "-m", "reelscribe.cli", *words], check=True)


def run_here(server: IdleServer, video: Path, out: Path) -> None:
    """Run the same in this process."""

    async def run() -> None:
        async with CaptionClient([Server(server.url)], MODEL) as client:
            await Run([CaptionTrack(client)], out).run([str(video)])

    asyncio.run(run())


class TimedRun:
    """Runs one way, and times its first request and its end."""

    def __init__(
        self, way: Callable[[IdleServer, Path, Path], None], server: IdleServer, video: Path, root: Path
    ) -> None:
        self._way, self._server, self._video, self._root = way, server, video, root
        self.to_end: list[float] = []

    def __call__(self) -> float:
        """Run once, and return the seconds to the first request."""
        self._server.forget()
        with tempfile.TemporaryDirectory(dir=self._root) as out:
            start = time.monotonic()
            self._way(self._server, self._video, Path(out) / "out")
            self.to_end.append(time.monotonic() - start)
        return self._server.first_request - start


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    add_json_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, idle_server() as server:
        root = Path(directory)
        (video,) = write_library(root / "library", 320, 180, clips=1, frames=25)
        new_run = partial(TimedRun, server=server, video=video, root=root)
        runs = {"command": new_run(run_as_command), "run": new_run(run_here)}
        for run in runs.values():  # reads what is imported from the disk
            run()
            run.to_end.clear()
        spreads = take_turns(arguments.rounds, runs)
    report = Report("The start of a run with one small video", ("way", "to its first request, s", "to its end, s"))
    for name, spread in spreads.items():
        report.add(name, spread, Spread(tuple(runs[name].to_end)))
    publish([report], arguments.json)


if __name__ == "__main__":
    run_command(main)
