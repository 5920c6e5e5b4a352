"""Captioning at four resolutions: ours against what people use today.

    .venv/bin/python bench/captioning.py [--rounds 5] [--clips 2] [--frames N] [--sizes 1920x1080 ...]
                                         [--ways blog-prebatch ours-fast ...] [--json FILE]

Every way has the demo captioner on one thread of the CPU, and captions every frame of the same noisy, textured clips
(H.264, a picture with detail of all scales, panned, with grain: bench/resize.py). Each round runs all ways once, one
after the other, each client in a process of its own. Before the rounds each has run once, to warm up. The ways:

blog-sync, blog-stream, blog-prebatch: the blog "Video captioning in bulk using Hugging Face + torchserve", its three
    clients (bench/peers/blog_clients.py) and its handler (blog_handler.py) on TorchServe: full-size frames, pickled, a
    session for each request. Single frames, up to 100 at once, as many as its queue takes, go to a server that joins up
    to 128 in 100 ms; prebatches of 32, 32, 16 and 8 frames, by resolution, to one with batchSize 1. The blog speaks of
    no bound to the requests in flight: up to 32 prebatches are, as more would fill the server's memory.
blog-prebatch-2: the same with two prebatches in flight.
flask: its simple way, a Flask server with a client that sends one pickled frame after the other.
plain-32, plain-1: no server: decord, processor, generate in one process, with as many frames at once.
litserve: LitServe, which joins up to 32 single frames; its client has our decode, scaled to 224x224.
ours-fast, ours-planes, ours-exact: `reelscribe caption` with each --resize, on TorchServe.

frames/s: from when the client begins to the last caption. A client begins when Python, its modules and its model, if it
has one, are loaded. steady: from when a quarter is captioned, which is rough where captions come in bursts. CPU seconds
are those of all processes of the client, from its beginning on, and of the server. Sent are the bodies of requests,
LitServe's without the form around them. Memory is the largest sum of PSS (shared pages count once) of all their
processes, looked at in the run before the rounds; servers are started anew for each resolution. The processor of the
blog, flask and plain is transformers' own without torchvision, their memory is as glibc has it. Each way has to give as
many captions as there are frames; they need not be equal, as other ways to scale give other pixels. Medians, and in
brackets smallest and largest. The second table has the ratios of ours to the others, round by round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from peers.outcome import Outcome
from peers.services import SERVICES, WEIGHTS, Service, environment
from report import Report, Spread, add_json_option, publish, take_turns
from resize import write_clip


@dataclass(frozen=True)
class Size:
    """What is particular to a resolution."""

    prebatch: int
    """Frames of a request of the blog."""
    clip_frames: int
    """So many that the start is a small part of a run, and so few that none takes a minute."""


SIZES = {
    "480x270": Size(32, 400),
    "640x360": Size(32, 200),
    "1280x720": Size(16, 150),
    "1920x1080": Size(8, 250),
}


@dataclass(frozen=True)
class Way:
    """A client, and the server that it needs."""

    server: str | None
    module: str
    options: tuple[str, ...] = ()


PLAIN = ("--weights", str(WEIGHTS), "--batch")
WAYS = {
    "blog-sync": Way("blog, joining", "peers.blog_clients", ("--reading", "sync", "--in-flight", "100")),
    "blog-stream": Way("blog, joining", "peers.blog_clients", ("--reading", "stream", "--in-flight", "100")),
    "blog-prebatch": Way("blog", "peers.blog_clients", ("--reading", "prebatch", "--in-flight", "32")),
    "blog-prebatch-2": Way("blog", "peers.blog_clients", ("--reading", "prebatch", "--in-flight", "2")),
    "flask": Way("flask", "peers.flask_client"),
    "plain-32": Way(None, "peers.plain_script", (*PLAIN, "32")),
    "plain-1": Way(None, "peers.plain_script", (*PLAIN, "1")),
    "litserve": Way("litserve", "peers.litserve_client"),
    "ours-fast": Way("ours", "peers.our_client", ("--resize", "fast")),
    "ours-planes": Way("ours", "peers.our_client", ("--resize", "planes")),
    "ours-exact": Way("ours", "peers.our_client", ("--resize", "exact")),
}
OURS = "ours-fast"
"""The default of `reelscribe caption`."""


@dataclass(frozen=True)
class Figures:
    """What one run of one way took; CPU and bytes for 1,000 frames."""

    frames_per_second: float
    steady_frames_per_second: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    sent_mb: float


COLUMNS = {
    "frames_per_second": "frames/s",
    "steady_frames_per_second": "steady",
    "client_cpu_seconds": "client CPU s",
    "server_cpu_seconds": "server CPU s",
    "sent_mb": "sent MB",
}
"""Of Figures, and what they are called in the table."""


@dataclass
class Peak:
    """The most memory of all processes of a client, and of all of its server, in MB."""

    client: float = 0.0
    server: float = 0.0

    def watch(self, client: subprocess.Popen[str], server: Sequence[psutil.Process]) -> None:
        """Until the client ends."""
        while client.poll() is None:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(client.pid)
                self.client = max(self.client, _memory_mb([process, *process.children(recursive=True)]))
            self.server = max(self.server, _memory_mb(server))
            time.sleep(0.1)


def run(
    way: Way, service: Service | None, prebatch: int, sources: Sequence[Path], frames: int, peak: Peak | None = None
) -> Figures:
    """Caption `sources`, which have so many frames; with `peak`, look at the memory meanwhile, which takes its time."""
    command = [sys.executable, "-m", way.module, *way.options, *(service.options if service else ())]
    if "prebatch" in way.options:
        command += ["--prebatch", str(prebatch)]
    command += map(str, sources)
    server = [psutil.Process(pid) for pid in service.pids] if service else []
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as log:
        before = sum(map(_cpu_seconds, server))
        client = subprocess.Popen(command, env=environment(), stdout=output, stderr=log, text=True)
        if peak:
            peak.watch(client, server)
        client.wait()
        server_cpu_seconds = sum(map(_cpu_seconds, server)) - before
        output.seek(0)
        log.seek(0)
        assert client.returncode == 0, log.read()
        outcome = Outcome.from_output(output.read())
    assert outcome.frames == frames, f"{way}: expected {frames} captions, got {outcome.frames}"
    return Figures(
        outcome.frames_per_second,
        outcome.steady_frames_per_second,
        outcome.cpu_seconds / frames * 1000,
        server_cpu_seconds / frames * 1000,
        outcome.sent_bytes / frames / 1000,
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory_mb(processes: Sequence[psutil.Process]) -> float:
    """Of those that still run: PSS shares out what several processes have in common."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


def make_sources(folder: Path, size: str, clips: int, frames: int) -> list[Path]:
    """So many files of so many frames each: the same clip with other bytes at its end."""
    folder.mkdir()
    width, height = map(int, size.split("x"))
    paths = [folder / f"clip-{k}.mp4" for k in range(clips)]
    write_clip(paths[0], width, height, frames)
    for k, path in enumerate(paths[1:], 1):
        # An empty box, which readers skip.
        path.write_bytes(paths[0].read_bytes() + (16).to_bytes(4, "big") + b"free" + k.to_bytes(8, "big"))
    return paths


@dataclass
class Measured:
    """Of one way at one resolution: its rounds, and the memory of the run before them."""

    figures: list[Figures] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)

    def spread(self, name: str) -> Spread:
        """One of the figures."""
        return Spread(tuple(getattr(each, name) for each in self.figures))


def measure(
    directory: Path, size: str, ways: Sequence[str], rounds: int, clips: int, frames: int
) -> dict[str, Measured]:
    """All of one resolution."""
    sources = make_sources(directory / "clips", size, clips, frames)
    measured = {name: Measured() for name in ways}
    with ExitStack() as stack:
        names = {server for name in ways if (server := WAYS[name].server)}
        services = {name: stack.enter_context(SERVICES[name](directory / name)) for name in sorted(names)}

        def once(name: str, peak: Peak | None = None) -> Figures:
            way = WAYS[name]
            service = services[way.server] if way.server else None
            return run(way, service, SIZES[size].prebatch, sources, clips * frames, peak)

        def one_round(name: str) -> float:
            measured[name].figures.append(once(name))
            return measured[name].figures[-1].frames_per_second

        for name in ways:
            once(name, measured[name].peak)
        take_turns(rounds, {name: partial(one_round, name) for name in ways})
    return measured


def asked(size: str, other: str) -> float:
    """What ours is to be, as many times as fast as another way."""
    if not other.startswith("blog-prebatch"):
        return 1.0
    return {"480x270": 2.0, "1920x1080": 8.0}.get(size, 1.0)


def compare(size: str, measured: dict[str, Measured]) -> Iterator[tuple[str, str, str, Spread, str, Spread]]:
    """The rows of the second table."""
    for other in measured:
        if not other.startswith("ours"):
            got, steady = (
                measured[OURS].spread(name).over(measured[other].spread(name))
                for name in ("frames_per_second", "steady_frames_per_second")
            )
            wanted = asked(size, other)
            yield size, other, f"{wanted:.1f}", got, "yes" if got.median >= wanted else "no", steady


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--frames", type=int, help="of each clip; by default, as many as suit the resolution")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add_json_option(parser)
    options = parser.parse_args()
    columns = ("size", "way", *COLUMNS.values(), "client MB", "server MB")
    table = Report("Captioning; CPU and bytes for 1,000 frames", columns)
    ratios = Report(f"{OURS} to the others, frames/s", ("size", "other", "asked", "got", "reached", "steady"))
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as directory:
            frames = options.frames or SIZES[size].clip_frames
            measured = measure(Path(directory), size, options.ways, options.rounds, options.clips, frames)
        for name, each in measured.items():
            spreads = [each.spread(column) for column in COLUMNS]
            table.add(size, name, *spreads, f"{each.peak.client:.0f}", f"{each.peak.server:.0f}")
        table.notes.append(f"{size}: {options.clips} clips of {frames} frames")
        if OURS in measured:
            for row in compare(size, measured):
                ratios.add(*row)
    publish([table, ratios], options.json)


if __name__ == "__main__":
    main()
