"""How fast is captioning at four resolutions, ours and what people use today, and how much CPU and memory does it need?

    scripts/bench captioning [--rounds 5] [--clips 2] [--frames N] [--sizes 1920x1080 ...]
                             [--ways blog-prebatch ours-fast ...] [--json FILE]

Every way runs the demo captioner on one thread of the CPU, and captions every frame of the same noisy, textured videos
(H.264, detail of all scales, panned, with grain: demo/libraries.py). Each round runs all ways once, one after the
other, each client in a process of its own. Before the rounds, each way runs once to warm up. The ways:

blog-sync, blog-stream, blog-prebatch: the blog "Video captioning in bulk using Hugging Face + torchserve": its three
    clients (bench/peers/blog_clients.py) and its handler (blog_handler.py) on TorchServe. Frames are sent at full size,
    pickled, with a session for each request. Single frames go to a server that joins up to 128 in 100 ms; up to 100 are
    in flight, as many as its queue holds. Prebatches of 32, 32, 16 and 8 frames, by resolution, go to a server with
    batchSize 1. The blog sets no limit to the requests in flight: here it is 32 prebatches, as more would fill the
    server's memory.
blog-prebatch-2: the same with two prebatches in flight.
flask: the blog's simple way, a Flask server with a client that sends one pickled frame after the other.
plain-32, plain-1: no server: decord, processor and generate in one process, with 32 frames or 1 at once.
litserve: LitServe, which joins up to 32 single frames; its client decodes with our processes, scaled to 224x224.
ours-fast, ours-planes, ours-exact: `reelscribe caption` with each --resize, on TorchServe.

frames/s: from the start of the client to the last caption; the client starts when Python, its modules and its model, if
    it has one, are loaded.
steady: frames/s from when a quarter of the frames is captioned; imprecise where captions come in bursts.
CPU s: CPU seconds for 1,000 frames, of all processes of the client since its start, and of all of the server.
sent MB: bodies of the requests for 1,000 frames, those of LitServe without the form around them.
client MB, server MB: largest sum of PSS (shared pages count once) of all processes, during the warm-up run. Servers are
    started anew for each resolution.
same captions: percentage of captions equal to those of the first way in --ways. Ways that scale frames differently see
    different pixels.

The blog, flask and plain use transformers' own processor without torchvision, and glibc's default allocation. Each way
must return as many captions as there are frames. Figures are medians and, in brackets, smallest and largest. The second
table has the ratios of ours to the others, round by round.
"""

from __future__ import annotations

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

from demo_server import CAPTIONER
from lib.command import add_json_option, command_parser, killed_at_end, run_command
from lib.report import Report, Spread, publish, take_turns
from libraries import write_library
from peers.outcome import Outcome
from peers.services import SERVICES, Service, environment


@dataclass(frozen=True)
class Size:
    """Settings of a resolution."""

    prebatch: int
    """Frames in a request of the blog."""
    clip_frames: int
    """Frames in a clip: enough that the start is a small part of a run, but a run takes less than a minute."""


SIZES = {
    "480x270": Size(32, 400),
    "640x360": Size(32, 200),
    "1280x720": Size(16, 150),
    "1920x1080": Size(8, 250),
}


@dataclass(frozen=True)
class Way:
    """A client, and the server that it needs, if any."""

    server: str | None
    module: str
    options: tuple[str, ...] = ()


PLAIN = ("--weights", str(CAPTIONER), "--batch")
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
"""The way of `reelscribe caption` by default."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run of one way; CPU and bytes are for 1,000 frames."""

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
"""Headings of the attributes of Figures."""


@dataclass
class Peak:
    """Peak memory of all processes of a client, and of all of its server, in MB."""

    client: float = 0.0
    server: float = 0.0

    def watch(self, client: subprocess.Popen[str], server: Sequence[psutil.Process]) -> None:
        """Measure until the client ends."""
        while client.poll() is None:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(client.pid)
                self.client = max(self.client, _memory_mb([process, *process.children(recursive=True)]))
            self.server = max(self.server, _memory_mb(server))
            time.sleep(0.1)


def run(
    way: Way, service: Service | None, prebatch: int, sources: Sequence[Path], frames: int, peak: Peak | None = None
) -> tuple[Figures, list[str]]:
    """Caption `sources`, which have `frames` frames together, and return the figures and the captions.

    With `peak`, memory is measured meanwhile, which takes some CPU time.
    """
    command = [sys.executable, "-m", way.module, *way.options, *(service.options if service else ())]
    if "prebatch" in way.options:
        command += ["--prebatch", str(prebatch)]
    command += map(str, sources)
    server = [psutil.Process(pid) for pid in service.pids] if service else []
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as log:
        before = sum(map(_cpu_seconds, server))
        with killed_at_end(
            subprocess.Popen(command, env=environment(), stdout=output, stderr=log, text=True)
        ) as client:
            if peak:
                peak.watch(client, server)
            client.wait()
        server_cpu_seconds = sum(map(_cpu_seconds, server)) - before
        output.seek(0)
        log.seek(0)
        assert client.returncode == 0, log.read()
        outcome = Outcome.from_output(output.read())
    assert outcome.frames == frames, f"{way}: expected {frames} captions, got {outcome.frames}"
    figures = Figures(
        outcome.frames_per_second,
        outcome.steady_frames_per_second,
        outcome.cpu_seconds / frames * 1000,
        server_cpu_seconds / frames * 1000,
        outcome.sent_bytes / frames / 1000,
    )
    return figures, outcome.captions


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory_mb(processes: Sequence[psutil.Process]) -> float:
    """PSS of the processes that still run; it divides shared pages among the processes that share them."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


@dataclass
class Measured:
    """One way at one resolution: the figures of its rounds, memory and captions of the warm-up run."""

    figures: list[Figures] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)
    captions: list[str] = field(default_factory=list)

    def spread(self, name: str) -> Spread:
        """One attribute of Figures in all rounds."""
        return Spread(tuple(getattr(each, name) for each in self.figures))

    def same_captions(self, other: Measured) -> str:
        """Percentage of captions that are equal to those of another way."""
        same = sum(a == b for a, b in zip(self.captions, other.captions, strict=True))
        return f"{100 * same / len(self.captions):.1f}"


def measure(
    directory: Path, size: str, ways: Sequence[str], rounds: int, clips: int, frames: int
) -> dict[str, Measured]:
    """Run all ways at one resolution, with `clips` clips of `frames` frames each."""
    width, height = map(int, size.split("x"))
    sources = write_library(directory / "clips", width, height, clips=clips, frames=frames)
    measured = {name: Measured() for name in ways}
    with ExitStack() as stack:
        names = {server for name in ways if (server := WAYS[name].server)}
        services = {name: stack.enter_context(SERVICES[name](directory / name)) for name in sorted(names)}

        def once(name: str, peak: Peak | None = None) -> tuple[Figures, list[str]]:
            way = WAYS[name]
            service = services[way.server] if way.server else None
            return run(way, service, SIZES[size].prebatch, sources, clips * frames, peak)

        def one_round(name: str) -> float:
            measured[name].figures.append(once(name)[0])
            return measured[name].figures[-1].frames_per_second

        for name in ways:
            _, measured[name].captions = once(name, measured[name].peak)
        take_turns(rounds, {name: partial(one_round, name) for name in ways})
    return measured


def target(size: str, other: str) -> float:
    """The factor by which ours shall be faster than another way."""
    if not other.startswith("blog-prebatch"):
        return 1.0
    return {"480x270": 2.0, "1920x1080": 8.0}.get(size, 1.0)


def compare(size: str, measured: dict[str, Measured]) -> Iterator[tuple[str, str, str, Spread, str, Spread]]:
    """Yield the rows of the second table."""
    for other in measured:
        if not other.startswith("ours"):
            ratio, steady = (
                measured[OURS].spread(name).over(measured[other].spread(name))
                for name in ("frames_per_second", "steady_frames_per_second")
            )
            least = target(size, other)
            yield size, other, f"{least:.1f}", ratio, "yes" if ratio.median >= least else "no", steady


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--frames", type=int, help="frames of each clip; by default, as many as suit the resolution")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add_json_option(parser)
    options = parser.parse_args()
    columns = ("size", "way", *COLUMNS.values(), "client MB", "server MB", "same captions, %")
    table = Report("Captioning; CPU and bytes for 1,000 frames", columns)
    ratios = Report(f"{OURS} to the others, frames/s", ("size", "other", "target", "measured", "reached", "steady"))
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as directory:
            frames = options.frames or SIZES[size].clip_frames
            measured = measure(Path(directory), size, options.ways, options.rounds, options.clips, frames)
        for name, each in measured.items():
            spreads = [each.spread(column) for column in COLUMNS]
            memory = (f"{each.peak.client:.0f}", f"{each.peak.server:.0f}")
            table.add(size, name, *spreads, *memory, each.same_captions(measured[options.ways[0]]))
        different = len(set(measured[options.ways[0]].captions))
        table.notes.append(f"{size}: {options.clips} clips of {frames} frames, {different} different captions")
        if OURS in measured:
            for row in compare(size, measured):
                ratios.add(*row)
    publish([table, ratios], options.json)


if __name__ == "__main__":
    run_command(main)
