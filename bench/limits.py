"""The parts alone, and the whole: what is the slowest part, and how much of it is left when all work together?

    .venv/bin/python bench/limits.py [--rounds 3] [--seconds 5] [--devices 100 400 1000] [--clip-frames 150]
                                     [--resize fast] [--decode-workers 2] [--tables parts settings] [--json FILE]

"parts": at each resolution, with the documented setting (two workers for each device, one request a call):

- decode: our decode processes, with nothing done with what they give. Beside it decord, which is no part of ours, at
  the model's size, with as many readers of one thread each.
- model: the demo captioner, in a process of its own with one thread, by the handler's own code, on frames that lie in
  memory. An emulated device is as fast as it is told to be.
- transport: full requests to a device that takes no time, as many in flight as the client begins with.
- between answers: the whole (decode processes, client, ledger, records, a real TorchServe), from the first answer to
  the last. "whole run" counts its start, in which decode processes are started, and its end.
- efficiency: the whole between answers, over the slowest of decode, model and transport in the same round.

Everything is on this machine's cores, all of which decoding alone has for itself. In the whole, decode processes share
them with the client, Java, and the workers' reading of requests; CPU-bound, one worker computes on one of them, too. An
emulated device only sleeps, as a GPU leaves the cores alone. "cores busy" says how many the whole used: if that is all
of them, then what holds it up is the sum of the parts, and none of them waits for another.

"settings": at the smallest resolution, each emulated device by the workers that share it and by batchSize, which is how
many requests TorchServe joins for a call; the client's own limit on requests in flight finds itself.

A third table says what was asked for and what came. The clips are noisy, textured and panned (H.264); a library is
copies of one that differ in their last bytes. Every round runs all variants of a table once, which takes a minute or
two: what is compared across resolutions is that far apart. Figures are medians and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from delivery import (
    PREBATCH,
    RESOLUTIONS,
    Whole,
    decode_alone,
    decord_alone,
    make_sources,
    transport_alone,
)
from reelscribe.archive.build import build as archive
from reelscribe.contract.frames import FrameArray, Resize
from reelscribe.decode.video import Video, VideoTask
from reelscribe.run.options import CaptionOptions
from report import Report, Spread, add_json_option, publish, take_turns
from serving import FRAME, ROOT, Emulated, Serving, serve_all_emulated
from stage_runs import Plan, started

sys.path.append(str(ROOT / "handlers"))

from model_settings import ModelSettings

DEMO = str(ROOT / "demo" / "models" / "captioner")
CONFIG = ROOT / "config.properties"
WORKERS, BATCH_SIZE = 2, 1
"""For each device: the documented setting."""
TRIED = tuple(product((1, 2), (1, 4, 8)))
"""Workers and batchSize."""
TRANSPORT_SECONDS = 2.0
MODEL_FRAMES = 1024
"""For the model alone."""
CPU, TRANSPORT = "CPU-bound", "transport"


@dataclass(frozen=True)
class Library:
    """The files of one resolution."""

    size: str
    paths: Sequence[Path]
    clip_frames: int
    options: CaptionOptions
    decoded_per_second: float
    """About."""

    def lasting(self, seconds: float, frames_per_second: float = float("inf")) -> Sequence[Path]:
        """Files for about so long, at that rate or what decoding gives; as many for each decode process."""
        frames = seconds * min(frames_per_second, self.decoded_per_second)
        each = max(1, round(frames / self.clip_frames / self.options.decode_workers))
        return self.paths[: each * self.options.decode_workers]

    def frames(self, count: int) -> FrameArray:
        """Those of a request again and again, (count, H, W, 3) uint8."""
        with Video(VideoTask(str(self.paths[0]), FRAME)) as video:
            images = [chosen.image for chosen in video.frames(range(PREBATCH))]
        return np.resize([image for image in images if image is not None], (count, FRAME.height, FRAME.width, 3))


def make_library(root: Path, width: int, height: int, arguments: argparse.Namespace) -> Library:
    """As many files as the fastest device takes; reading some of them says how fast that goes, and warms up."""
    options = CaptionOptions(resize=arguments.resize, decode_workers=arguments.decode_workers)
    frames = round(arguments.seconds * max(arguments.devices)) + options.decode_workers * arguments.clip_frames
    folder = make_sources(root / f"{width}x{height}", width, height, arguments.clip_frames, frames)
    paths = sorted(folder.iterdir())
    speed = decode_alone(paths[: 2 * options.decode_workers], options)
    return Library(folder.name, paths, arguments.clip_frames, options, speed)


@contextmanager
def serve_for_parts(root: Path, rates: Sequence[float]) -> Iterator[dict[str, Serving]]:
    """One server of the demo captioner, of a device of each rate, and of one that takes no time."""
    archive.build("captioner", "caption", DEMO, root / "store", handlers=ROOT / "handlers")
    devices = {f"device-{rate:g}": Emulated(rate, WORKERS, batch_size=BATCH_SIZE) for rate in rates}
    with serve_all_emulated(root, CONFIG, {TRANSPORT: Emulated(float("inf"), WORKERS), **devices}) as servings:
        yield {CPU: replace(servings[TRANSPORT], model="captioner"), **servings}


def measure_parts(libraries: Sequence[Library], root: Path, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """The table of parts and whole, and what was asked of them."""
    turns: dict[str, Callable[[], float]] = {}
    wholes: dict[str, Whole] = {}
    with ExitStack() as stack:
        servings = stack.enter_context(serve_for_parts(root, arguments.devices))
        frames: Any = libraries[0].frames(MODEL_FRAMES)
        model = stack.enter_context(started(Plan("captioner", "one process", ModelSettings.device_batch), frames))
        rates = {CPU: model(), **{f"device-{rate:g}": rate for rate in arguments.devices}}
        for library in libraries:
            paths = library.lasting(arguments.seconds)
            parts: dict[str, Callable[[], float]] = {
                "decode": partial(decode_alone, paths, library.options),
                "decord": partial(decord_alone, paths, library.options),
                "model": model,
                TRANSPORT: partial(_transport, servings[TRANSPORT]),
            }
            turns |= {f"{library.size}, {name}": part for name, part in parts.items()}
            for variant, rate in rates.items():
                whole = Whole([servings[variant]], library.lasting(arguments.seconds, rate), library.options)
                turns[f"{library.size}, {variant}"] = wholes[f"{library.size}, {variant}"] = whole
        for variant in rates:  # workers and Java warm up
            Whole([servings[variant]], libraries[0].lasting(1.0, rates[variant]))()
        spreads = take_turns(arguments.rounds, turns)
    rates.pop(CPU)
    sizes = [library.size for library in libraries]
    return _parts_table(sizes, rates, spreads, wholes), _asked_of_sizes(sizes, (CPU, *rates), spreads)


def _parts_table(
    sizes: Sequence[str], rates: dict[str, float], spreads: dict[str, Spread], wholes: dict[str, Whole]
) -> Report:
    columns = ("frames/s", "decode", "decord", "model", "transport", "between answers", "whole run", "efficiency")
    report = Report("The parts alone, and the whole", (*columns, "cores busy"))
    for size in sizes:
        decode, decord, transport = (spreads[f"{size}, {part}"] for part in ("decode", "decord", TRANSPORT))
        for variant in (CPU, *rates):
            name = f"{size}, {variant}"
            model = spreads[f"{size}, model"]
            if variant in rates:
                model = Spread((rates[variant],) * len(decode.values))
            efficiency = spreads[name].over(slowest(decode, model, transport))
            whole = wholes[name]
            ours = (spreads[name], whole.spread(lambda run: run.per_second), efficiency)
            report.add(name, decode, decord, model, transport, *ours, whole.spread(lambda run: run.cores))
    return report


def slowest(*parts: Spread) -> Spread:
    """The smallest of each round."""
    return Spread(tuple(map(min, *(part.values for part in parts))))


def _asked_of_sizes(sizes: Sequence[str], variants: Sequence[str], spreads: dict[str, Spread]) -> Report:
    small, large = sizes[0], sizes[-1]
    report = Report("TranscriptionOptions", ("what", "asked", "got"))
    for variant in variants:
        limit = slowest(spreads[f"{large}, decode"], spreads[f"{small}, {variant}"])
        got = spreads[f"{large}, {variant}"].over(limit)
        report.add(f"{large} over min(decode only, ours at {small}), {variant}", ">= 0.9", got)
    return report


def measure_settings(library: Library, root: Path, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """The table of settings, and what was asked of them."""
    columns = ("device, frames/s", "workers", "batchSize", "between answers", "of the device", "whole run")
    report = Report(f"Emulated devices at {library.size}", (*columns, "cores busy"))
    asked = Report("TranscriptionOptions", ("what", "asked", "got"))
    for rate in arguments.devices:
        models = {f"w{workers}-b{batch}": Emulated(rate, workers, batch_size=batch) for workers, batch in TRIED}
        with serve_all_emulated(root / f"{rate:g}", CONFIG, models) as servings:
            paths = library.lasting(arguments.seconds, rate)
            wholes = {name: Whole([serving], paths, library.options) for name, serving in servings.items()}
            for serving in servings.values():
                Whole([serving], paths[: library.options.decode_workers], library.options)()
            spreads = take_turns(arguments.rounds, wholes)
        shares = {name: Spread(tuple(value / rate for value in spread.values)) for name, spread in spreads.items()}
        for name, model in models.items():
            whole = wholes[name]
            ours = (spreads[name], shares[name], whole.spread(lambda run: run.per_second))
            cores = whole.spread(lambda run: run.cores)
            report.add(f"{rate:g}", str(model.workers), str(model.batch_size), *ours, cores)
        best = max(shares, key=lambda name: shares[name].median)
        asked.add(f"device of {rate:g} at {library.size}, best setting ({best})", ">= 0.95", shares[best])
        advice = f"w{WORKERS}-b{BATCH_SIZE}"
        asked.add(f"device of {rate:g} at {library.size}, as documented ({advice})", ">= 0.95", shares[advice])
    return report, asked


def _transport(serving: Serving) -> float:
    return asyncio.run(transport_alone(serving, 2 * WORKERS, TRANSPORT_SECONDS))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="about, of each run")
    parser.add_argument("--devices", type=float, nargs="+", default=[100, 400, 1000], help="frames a second")
    parser.add_argument("--clip-frames", type=int, default=150, help="of each source")
    parser.add_argument("--resize", choices=get_args(Resize), default=CaptionOptions().resize)
    parser.add_argument("--decode-workers", type=int, default=2)
    parser.add_argument("--tables", nargs="+", choices=("parts", "settings"), default=["parts", "settings"])
    add_json_option(parser)
    arguments = parser.parse_args()
    asked = Report("TranscriptionOptions and got", ("what", "asked", "got"))
    reports = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        sizes = RESOLUTIONS if "parts" in arguments.tables else RESOLUTIONS[:1]
        libraries = [make_library(root, *size, arguments) for size in sizes]
        if "parts" in arguments.tables:
            table, got = measure_parts(libraries, root / "parts", arguments)
            reports.append(table)
            asked.rows += got.rows
        if "settings" in arguments.tables:
            table, got = measure_settings(libraries[0], root / "settings", arguments)
            reports.append(table)
            asked.rows += got.rows
    publish([*reports, asked], arguments.json)


if __name__ == "__main__":
    main()
