"""How fast are decoding, model and transport alone, and how much of the slowest part is left in a whole run?

    scripts/bench limits [--rounds 3] [--seconds 5] [--devices 100 400 1000] [--clip-frames 150]
                         [--resize fast] [--sizes 1920x1080 ...] [--tables parts settings joining decoders]
                         [--json FILE]

The table "parts" has a row for each resolution and device, with the documented setting (two workers for each device,
one request a call):

- decode: our decode processes, when nothing is done with their frames; decord: the same with --decoder decord.
- model: the demo captioner by the handler's own code, in as many processes of one thread as there are cores, all at the
  same time, on frames in memory. The speed of an emulated device is given.
- transport: full requests to a device that takes no time, as many in flight as the client starts with.
- between answers: the whole run (decode processes, client, ledger, records, a real TorchServe), from the first answer
  to the last. "whole run" includes its start, in which decode processes are started, and its end.
- efficiency: the whole run between answers, divided by the slowest of decode, model and transport in the same round.
- of the cores: in the rows "CPU-bound", the whole run between answers, divided by the limit of the cores in the same
  round: what they would do if a frame took them nothing but decoding and the model, 1 / (1 / decode + 1 / model).
- cores busy: how many cores the whole run used.

Everything runs on this machine's cores. Decoding alone has all of them; in a whole run, decode processes share them
with the client, Java and the workers, which read requests. In the rows "CPU-bound", as many workers as there are cores
also compute on them. An emulated device only sleeps, as a GPU leaves the cores free.

The table "settings" compares, at the smallest resolution and for each emulated device, the number of workers that share
it and batchSize, the number of requests that TorchServe joins for a call. The client adapts its limit of requests in
flight by itself.

The table "joining", which only --tables asks for, has a device of 300 frames/s whose calls take 0.2 s more each, as
the launches of BLIP-2's kernels do on an H100. It compares values of batchSize and maxBatchDelay, the milliseconds for
which TorchServe waits for requests to join, in runs of --seconds.

The table "decoders", which only --tables asks for, compares PyAV and decord in one decode process and in two.

A last table compares the figures with targets. The clips are noisy, textured and panned (H.264); all clips of a
library show the same frames. Every round runs all variants of a table once, which takes a minute or two, so figures of
different resolutions are that far apart in time. Figures are medians and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lib.command import add_json_option, command_parser, run_command
from lib.delivery import (
    FRAMES_PER_REQUEST,
    RESOLUTIONS,
    WholeRun,
    client_cpu_seconds,
    decode_alone,
    decode_processes,
    transport_alone,
)
from lib.report import Report, Spread, publish, take_turns
from lib.stage_runs import Plan, started
from reelscribe.archive import build as archive
from reelscribe.contract.frames import FrameArray, Resize
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from reelscribe.run.tracks.captions import CaptionOptions
from runtime.model_settings import ModelSettings
from servers.emulated import FRAME, Emulated, serve_all_emulated
from servers.torchserve import CAPTIONER, CONFIG, HANDLERS, Serving
from synthetic.video_files import write_library

WORKERS, BATCH_SIZE = 2, 1
"""The documented setting: workers that share a device, and requests in a call."""
TRIED = tuple(product((1, 2), (1, 4, 8)))
"""Numbers of workers and values of batchSize in the table "settings"."""
CALL_SECONDS, CALL_RATE = 0.2, 300.0
"""Seconds that each call takes besides, and frames/s, of the device in the table "joining"."""
JOINED = ((1, 1), (4, 5), (8, 1), (8, 5), (8, 20), (16, 5))
"""Values of batchSize and of maxBatchDelay in the table "joining"."""
TRANSPORT_SECONDS = 2.0
MODEL_FRAMES = 1024
"""Frames of a run of the model alone."""
CPU, TRANSPORT = "CPU-bound", "transport"
CORES = len(os.sched_getaffinity(0))
SIZES = {f"{width}x{height}": (width, height) for width, height in RESOLUTIONS}
TABLES = ("parts", "settings", "joining", "decoders")
TARGETS = ("Targets", ("figure", "target", "measured"))


@dataclass(frozen=True)
class Library:
    """The files of one resolution."""

    size: str
    paths: Sequence[Path]
    clip_frames: int
    options: CaptionOptions
    decoded_per_second: float
    """About how fast the decode processes are."""

    def lasting(self, seconds: float, frames_per_second: float = float("inf")) -> Sequence[Path]:
        """Files for a run of about so many seconds at that rate, or at that of decoding if it is lower.

        Each decode process gets as many files.
        """
        frames = seconds * min(frames_per_second, self.decoded_per_second)
        each = max(1, round(frames / self.clip_frames / decode_processes(self.options)))
        return self.paths[: each * decode_processes(self.options)]

    def frames(self, count: int) -> FrameArray:
        """The frames of a request, repeated to (count, H, W, 3) uint8."""
        with Video(VideoTask(str(self.paths[0]), FRAME)) as video:
            images = [chosen.image for chosen in video.frames(range(FRAMES_PER_REQUEST))]
        return np.resize([image for image in images if image is not None], (count, FRAME.height, FRAME.width, 3))


def make_library(root: Path, width: int, height: int, arguments: argparse.Namespace) -> Library:
    """Write as many files as a run with the fastest device needs, and measure how fast they are decoded."""
    options = CaptionOptions(Sampling(every=1), resize=arguments.resize, decode_workers=CORES)
    frames = round(arguments.seconds * max(arguments.devices)) + CORES * arguments.clip_frames
    name, clips = f"{width}x{height}", max(1, frames // arguments.clip_frames)
    paths = write_library(root / name, width, height, clips=clips, frames=arguments.clip_frames)
    speed = decode_alone(paths[: 2 * CORES], options)
    return Library(name, paths, arguments.clip_frames, options, speed)


@contextmanager
def serve_for_parts(root: Path, rates: Sequence[float]) -> Iterator[dict[str, Serving]]:
    """Serve the demo captioner, an emulated device of each rate, and one that takes no time, all on one server."""
    handlers = shutil.copytree(HANDLERS, root / "handlers")
    settings = handlers / "caption.yaml"
    settings.write_text(f"minWorkers: {CORES}\nmaxWorkers: {CORES}\n{settings.read_text()}")
    archive.build("captioner", "caption", str(CAPTIONER), root / "store", handlers=handlers)
    devices = {f"device-{rate:g}": Emulated(rate, WORKERS, batch_size=BATCH_SIZE) for rate in rates}
    with serve_all_emulated(root, CONFIG, {TRANSPORT: Emulated(float("inf"), WORKERS), **devices}) as servings:
        yield {CPU: replace(servings[TRANSPORT], model="captioner"), **servings}


@contextmanager
def model_on_all_cores(frames: FrameArray) -> Iterator[Callable[[], float]]:
    """Yield a function that runs the captioner on all cores; it returns the frames per second of all together."""
    plan = Plan("captioner", "one process", ModelSettings.device_batches[0])
    items: Any = frames
    with ExitStack() as stack:
        models = [stack.enter_context(started(plan, items)) for _ in range(CORES)]
        threads = stack.enter_context(ThreadPoolExecutor(CORES))
        yield lambda: sum(threads.map(lambda model: model(), models))


def measure_parts(libraries: Sequence[Library], root: Path, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """The table "parts", and its rows of the table of targets."""
    turns: dict[str, Callable[[], float]] = {}
    wholes: dict[str, WholeRun] = {}
    with ExitStack() as stack:
        servings = stack.enter_context(serve_for_parts(root, arguments.devices))
        model = stack.enter_context(model_on_all_cores(libraries[0].frames(MODEL_FRAMES)))
        rates = {CPU: model(), **{f"device-{rate:g}": rate for rate in arguments.devices}}
        for library in libraries:
            paths = library.lasting(arguments.seconds)
            parts: dict[str, Callable[[], float]] = {
                "decode": partial(decode_alone, paths, library.options),
                "decord": partial(decode_alone, paths, with_decord(library.options)),
                "model": model,
                TRANSPORT: partial(_transport, servings[TRANSPORT]),
            }
            turns |= {f"{library.size}, {name}": part for name, part in parts.items()}
            for variant, rate in rates.items():
                whole = WholeRun([servings[variant]], library.lasting(arguments.seconds, rate), library.options)
                turns[f"{library.size}, {variant}"] = wholes[f"{library.size}, {variant}"] = whole
        for variant in rates:  # warms up the workers and Java
            WholeRun([servings[variant]], libraries[0].lasting(1.0, rates[variant]))()
        spreads = take_turns(arguments.rounds, turns)
    rates.pop(CPU)
    sizes = [library.size for library in libraries]
    return _parts_table(sizes, rates, spreads, wholes), _size_targets(sizes, (CPU, *rates), spreads)


def _parts_table(
    sizes: Sequence[str], rates: dict[str, float], spreads: dict[str, Spread], wholes: dict[str, WholeRun]
) -> Report:
    columns = ("frames/s", "decode", "decord", "model", "transport", "between answers", "whole run", "efficiency")
    report = Report("The parts alone, and the whole", (*columns, "of the cores", "cores busy"))
    for size in sizes:
        decode, decord, transport = (spreads[f"{size}, {part}"] for part in ("decode", "decord", TRANSPORT))
        for variant in (CPU, *rates):
            name = f"{size}, {variant}"
            model = spreads[f"{size}, model"]
            if variant in rates:
                model = Spread((rates[variant],) * len(decode.values))
            efficiency = spreads[name].over(slowest(decode, model, transport))
            whole = wholes[name]
            of_cores = spreads[name].over(of_both(decode, model)) if variant == CPU else "-"
            ours = (spreads[name], whole.spread(lambda run: run.per_second), efficiency, of_cores)
            report.add(name, decode, decord, model, transport, *ours, whole.spread(lambda run: run.cores))
    return report


def slowest(*parts: Spread) -> Spread:
    """The smallest value of each round."""
    return Spread(tuple(map(min, *(part.values for part in parts))))


def of_both(first: Spread, second: Spread) -> Spread:
    """The rate of each round at which the same cores do both, one after the other, for each frame."""
    return Spread(tuple(1 / (1 / a + 1 / b) for a, b in zip(first.values, second.values, strict=True)))


def _size_targets(sizes: Sequence[str], variants: Sequence[str], spreads: dict[str, Spread]) -> Report:
    small, large = sizes[0], sizes[-1]
    report = Report(*TARGETS)
    for variant in variants:
        limit = slowest(spreads[f"{large}, decode"], spreads[f"{small}, {variant}"])
        ratio = spreads[f"{large}, {variant}"].over(limit)
        report.add(f"{large} over min(decode alone, whole run at {small}), {variant}", ">= 0.9", ratio)
    for size in sizes:
        cores = of_both(spreads[f"{size}, decode"], spreads[f"{size}, model"])
        report.add(f"{size} over the limit of the cores", ">= 0.95", spreads[f"{size}, {CPU}"].over(cores))
    return report


def measure_settings(library: Library, root: Path, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """The table "settings", and its rows of the table of targets."""
    columns = ("device, frames/s", "workers", "batchSize", "between answers", "of the device", "whole run")
    report = Report(f"Emulated devices at {library.size}", (*columns, "cores busy"))
    targets = Report(*TARGETS)
    for rate in arguments.devices:
        models = {f"w{workers}-b{batch}": Emulated(rate, workers, batch_size=batch) for workers, batch in TRIED}
        with serve_all_emulated(root / f"{rate:g}", CONFIG, models) as servings:
            paths = library.lasting(arguments.seconds, rate)
            wholes = {name: WholeRun([serving], paths, library.options) for name, serving in servings.items()}
            for serving in servings.values():
                WholeRun([serving], paths[:CORES], library.options)()
            spreads = take_turns(arguments.rounds, wholes)
        shares = {name: Spread(tuple(value / rate for value in spread.values)) for name, spread in spreads.items()}
        for name, model in models.items():
            whole = wholes[name]
            ours = (spreads[name], shares[name], whole.spread(lambda run: run.per_second))
            cores = whole.spread(lambda run: run.cores)
            report.add(f"{rate:g}", str(model.workers), str(model.batch_size), *ours, cores)
        best = max(shares, key=lambda name: shares[name].median)
        targets.add(f"device of {rate:g} at {library.size}, best setting ({best})", ">= 0.95", shares[best])
        advice = f"w{WORKERS}-b{BATCH_SIZE}"
        targets.add(f"device of {rate:g} at {library.size}, as documented ({advice})", ">= 0.95", shares[advice])
    return report, targets


def measure_joining(library: Library, root: Path, arguments: argparse.Namespace) -> Report:
    """The table "joining"."""
    report = Report(
        f"A device of {CALL_RATE:g} frames/s whose calls take {CALL_SECONDS:g} s besides, one worker",
        ("batchSize, maxBatchDelay", "between answers", "to the first", "frames of a request"),
    )
    models = {
        f"{size}, {delay} ms": Emulated(CALL_RATE, batch_size=size, batch_delay=delay, call_seconds=CALL_SECONDS)
        for size, delay in JOINED
    }
    named = {f"joining-{number}": model for number, model in enumerate(models.values())}
    with serve_all_emulated(root, CONFIG, named) as servings:
        paths = library.lasting(arguments.seconds, CALL_RATE)
        wholes = {
            name: WholeRun([each], paths, library.options) for name, each in zip(models, servings.values(), strict=True)
        }
        spreads = take_turns(arguments.rounds, wholes)
    first = next(iter(spreads.values()))
    for name, spread in spreads.items():
        requests = wholes[name].spread(lambda run: run.frames / run.requests)
        report.add(name, spread, spread.over(first), requests)
    return report


def with_decord(options: CaptionOptions) -> CaptionOptions:
    """The same options with decord, which scales frames by itself."""
    return replace(options, decoder="decord", resize="fast")


@dataclass(frozen=True)
class Decoding:
    """Decode processes alone, which `report.take_turns` runs again and again."""

    paths: Sequence[Path]
    options: CaptionOptions
    frames: int
    cpu: list[float] = field(default_factory=list)
    """CPU seconds for 1,000 frames of each run, its start included."""

    def __call__(self) -> float:
        """Decode all files; returns the frames per second."""
        before = client_cpu_seconds()
        rate = decode_alone(self.paths, self.options)
        self.cpu.append(1000 * (client_cpu_seconds() - before) / self.frames)
        return rate


def measure_decoders(libraries: Sequence[Library], arguments: argparse.Namespace) -> Report:
    """The table "decoders"."""
    columns = ("frames/s", "PyAV", "decord", "decord over PyAV", "CPU s for 1,000: PyAV", "decord")
    report = Report("Decoders, when nothing is done with their frames", columns)
    runs: dict[str, list[Decoding]] = {}
    for library, count in product(libraries, (1, 2)):
        options = replace(library.options, decode_workers=count)
        paths = library.lasting(arguments.seconds)
        both = (options, with_decord(options))
        frames = len(paths) * library.clip_frames
        runs[f"{library.size}, {count} process{'es' * (count > 1)}"] = [Decoding(paths, each, frames) for each in both]
    turns = {f"{name}, {number}": run for name, pair in runs.items() for number, run in enumerate(pair)}
    spreads = take_turns(arguments.rounds, turns)
    for name, pair in runs.items():
        rates = [spreads[f"{name}, {number}"] for number in range(len(pair))]
        report.add(name, *rates, rates[1].over(rates[0]), *(Spread(tuple(run.cpu)) for run in pair))
    return report


def _transport(serving: Serving) -> float:
    return asyncio.run(transport_alone(serving, 2 * WORKERS, TRANSPORT_SECONDS))


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="length of each run, about")
    parser.add_argument("--devices", type=float, nargs="+", default=[100, 400, 1000], help="frames/s of each one")
    parser.add_argument("--clip-frames", type=int, default=150, help="frames of each source")
    parser.add_argument("--resize", choices=get_args(Resize), default=CaptionOptions().resize)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES[:2])
    add_json_option(parser)
    arguments = parser.parse_args()
    targets = Report(*TARGETS)
    reports = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        of_all = {"parts", "decoders"} & set(arguments.tables)
        sizes = arguments.sizes if of_all else arguments.sizes[:1]
        libraries = [make_library(root, *SIZES[size], arguments) for size in sizes]
        if "parts" in arguments.tables:
            table, rows = measure_parts(libraries, root / "parts", arguments)
            reports.append(table)
            targets.rows += rows.rows
        if "settings" in arguments.tables:
            table, rows = measure_settings(libraries[0], root / "settings", arguments)
            reports.append(table)
            targets.rows += rows.rows
        if "joining" in arguments.tables:
            reports.append(measure_joining(libraries[0], root / "joining", arguments))
        if "decoders" in arguments.tables:
            reports.append(measure_decoders(libraries, arguments))
    publish([*reports, targets], arguments.json)


if __name__ == "__main__":
    run_command(main)
