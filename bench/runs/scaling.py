"""How does speed grow with devices and servers, and cost with files, length, resolution and decode processes?

    scripts/bench scaling [--rounds 3] [--seconds 5] [--files 10 100 1000]
                          [--gpus 1 2 4 8] [--kinds frames chunks clips] [--calls 20]
                          [--tables gpus ways devices files length resolution processes] [--json FILE]

The tables "gpus" and "ways" have one server with what a start gives an archive that names no GPUs: workers, joined
requests and a queue. Its GPUs are emulated: they sleep as long as models in the shapes of BLIP-2, Whisper and Qwen3-VL
took on an H100 (docs/performance.md) for as many frames, chunks or clips. Black frames stand for all of these, which
the client's library sends as fast as its own limit on requests allows, without files or decoding. In "gpus" they are
small, so that two cores can feed eight GPUs: 3,900 frames/s are 590 MB/s at the size that BLIP-2 takes. What that size
costs is in "ways", for one GPU with one worker and with two. "of full" is the rate, from the first request to the last
answer, over that of devices that never wait; "steady" is the same without the first calls and the last ones; "busy" is
the part of the time that workers spent in their handlers; "tail" is from the last request to the last answer, in calls.

The table "devices" has emulated devices of 100 frames/s, each shared by two workers, on one server and on two. Frames
are 480x270, so that decoding does not limit them: two processes decode more than 1,000 frames/s where this was written.
Everything runs on this machine's cores; an emulated device only sleeps. "of one" is the rate between answers over that
of one device in the same round.

The other tables are about the client. Emulated devices that take no time answer it, so what remains is the work of the
client, of Java, and of the workers, which read requests. CPU seconds are those of all their processes.

- files: several numbers of files of 8 frames at 480x270, each opened, hashed, decoded and recorded.
- length: one file at 480x270, decoded by one process, with several numbers of frames.
- resolution: 600 frames of each resolution.
- processes: 600 frames at 1920x1080, by the number of decode processes.

The clips are noisy, textured and panned (H.264). Every round runs all rows of a table once, each as a whole run with
its start, in which decode processes are started, and its end. Figures are medians and, in brackets, smallest and
largest.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lib.command import add_json_option, command_parser, run_command
from lib.delivery import RESOLUTIONS, Delivered, FullLoad, WholeRun, full_load
from lib.report import Report, Spread, publish, take_turns
from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool.commands import MAX_CHUNKS_PER_REQUEST, MAX_CLIPS_PER_REQUEST, MAX_FRAMES_PER_REQUEST
from reelscribe.run.tracks.captions import CaptionOptions
from servers.emulated import FRAME, Emulated, serve_all_emulated
from servers.torchserve import CONFIG, Serving
from synthetic.video_files import repeat_video, write_library, write_video

SMALL, LARGE = RESOLUTIONS[0], RESOLUTIONS[-1]
DEVICE = 100.0
"""Speed of an emulated device, in frames per second."""
WORKERS = 2
"""Workers that share a device."""
DEVICES = {"1 server, 1 device": (1, 1), "1 server, 2": (1, 2), "1 server, 4": (1, 4)}
SERVERS = {"2 servers, 1 device each": (2, 1), "2 servers, 2 each": (2, 2)}
"""Names of the rows: numbers of servers, and of devices of each server."""
FILE_FRAMES = 8
CLIP_FRAMES = 150
REPEATS = (1, 8, 64)
"""How often a clip is repeated in a longer one."""
DECODE_WORKERS = (1, 2, 4)


@contextmanager
def two_servers(root: Path) -> Iterator[tuple[dict[str, Serving], dict[str, Serving]]]:
    """Start two servers with models of 1 and 2 devices; the first also has a model of 4 and one that takes no time."""
    models = {f"devices-{count}": Emulated(DEVICE, WORKERS, count) for count in (1, 2)}
    more = {"devices-4": Emulated(DEVICE, WORKERS, 4), "instant": Emulated(float("inf"), WORKERS)}
    with (
        serve_all_emulated(root / "first", CONFIG, {**models, **more}) as first,
        serve_all_emulated(root / "second", CONFIG, models) as second,
    ):
        yield first, second


def by_devices(
    servers: tuple[dict[str, Serving], dict[str, Serving]], clips: Sequence[Path], arguments: argparse.Namespace
) -> tuple[Report, Report]:
    """The table "devices", and the targets of four devices."""
    wholes = {}
    for name, (count, devices) in {**DEVICES, **SERVERS}.items():
        frames = round(arguments.seconds * DEVICE * count * devices)
        paths = clips[: max(2, round(frames / CLIP_FRAMES))]
        wholes[name] = WholeRun([server[f"devices-{devices}"] for server in servers[:count]], paths)
    spreads = take_turns(arguments.rounds, wholes)
    one = spreads["1 server, 1 device"]
    report = Report(
        f"Devices of {DEVICE:g} frames/s each, at {_name(SMALL)}",
        ("", "between answers", "of one", "whole run", "cores busy"),
    )
    for name, whole in wholes.items():
        whole_run, cores = whole.spread(lambda run: run.per_second), whole.spread(lambda run: run.cores)
        report.add(name, spreads[name], spreads[name].over(one), whole_run, cores)
    targets = Report("Targets", ("figure", "target", "measured"))
    for name in ("1 server, 4", "2 servers, 2 each"):
        targets.add(f"{name}: rate over that of one device", ">= 3.7", spreads[name].over(one))
    return report, targets


def cost(
    title: str,
    wholes: Mapping[str, WholeRun],
    rounds: int,
    more: Mapping[str, Callable[[Delivered], float]] | None = None,
) -> Report:
    """A table of what each run costs."""
    take_turns(rounds, wholes)
    figures: dict[str, Callable[[Delivered], float]] = {
        "seconds": lambda run: run.seconds,
        "frames/s": lambda run: run.per_second,
        "client CPU s per 1,000": lambda run: run.client_cpu_per_thousand,
        "server CPU s per 1,000": lambda run: run.server_cpu_per_thousand,
        **(more or {}),
    }
    report = Report(title, ("", *figures))
    for name, whole in wholes.items():
        report.add(name, *(whole.spread(figure) for figure in figures.values()))
    return report


def by_files(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """The table "files"."""
    paths = write_library(root / "files", *SMALL, clips=max(arguments.files), frames=FILE_FRAMES)
    wholes = {f"{count} files": WholeRun([serving], paths[:count]) for count in arguments.files}
    more = {"ms a file": lambda run: 1000 * run.seconds / run.files}
    return cost(f"Files of {FILE_FRAMES} frames at {_name(SMALL)}", wholes, arguments.rounds, more)


def by_length(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """The table "length"."""
    clip = root / "clip.mp4"
    write_video(clip, *SMALL, CLIP_FRAMES)
    wholes = {}
    for times in REPEATS:
        path = root / f"repeated-{times}.mp4"
        repeat_video(clip, path, times)
        wholes[f"{times * CLIP_FRAMES} frames"] = WholeRun([serving], [path])
    return cost(f"One file at {_name(SMALL)}", wholes, arguments.rounds)


def by_resolution(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """The table "resolution"."""
    wholes = {_name(size): WholeRun([serving], _some(root / "sizes", size)) for size in RESOLUTIONS}
    return cost("Resolutions", wholes, arguments.rounds)


def by_processes(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """The table "processes"."""
    paths = _some(root / "processes", LARGE)
    options = {
        f"{count} decode processes": CaptionOptions(Sampling(every=1), decode_workers=count) for count in DECODE_WORKERS
    }
    wholes = {name: WholeRun([serving], paths, option) for name, option in options.items()}
    return cost(f"Decode processes at {_name(LARGE)}", wholes, arguments.rounds)


@dataclass(frozen=True)
class Model:
    """Times of a model on a GPU, how many items it gets at once, and in how many requests."""

    call_seconds: float
    item_seconds: float
    call: int
    """Most items of a call."""
    request: int
    """Items of a request."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Its limits besides `max_frames`."""

    @property
    def seconds(self) -> float:
        """Time of a full call."""
        return self.call_seconds + self.call * self.item_seconds

    def emulated(self, frame: InputSize, workers_per_gpu: int = 1) -> Emulated:
        """Return the emulated model, whose workers, devices and batches the start of the server chooses."""
        return Emulated(
            1 / self.item_seconds,
            None,
            call_seconds=self.call_seconds,
            frame=frame,
            max_frames=self.call,
            limits=self.limits,
            workers_per_gpu=workers_per_gpu,
        )


MODELS = {
    "frames": ("frames (BLIP-2)", Model(0.2, 0.00165, 512, MAX_FRAMES_PER_REQUEST)),
    "chunks": ("chunks (Whisper)", Model(0.364, 0.00905, 64, MAX_CHUNKS_PER_REQUEST, {"max_chunks": 64})),
    "clips": ("clips (Qwen3-VL)", Model(0.885, 0.146, 16, MAX_CLIPS_PER_REQUEST, {"max_clips": 16})),
}
TINY = InputSize(16, 16)


def by_gpus(root: Path, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """The table "gpus", and its targets."""
    report = Report(
        "Emulated GPUs on one server, with shipped settings",
        (
            "",
            "items/s",
            "of one",
            "of full",
            "steady",
            "busy",
            "items a call",
            "limit",
            "sent again",
            "tail",
        ),
    )
    targets = Report("Targets", ("figure", "target", "measured"))
    for kind in arguments.kinds:
        name, model = MODELS[kind]
        one: Spread | None = None
        for gpus in arguments.gpus:
            place = root / f"{gpus}-{kind}"
            loads = _loads(place, model, TINY, gpus, arguments)
            rate = _spread(loads, lambda load: load.per_second)
            one = one or rate
            full = gpus * model.call / model.seconds
            of_full = Spread(tuple(value / full for value in rate.values))
            report.add(
                f"{name}, {gpus}",
                rate,
                rate.over(one),
                of_full,
                _spread(loads, lambda load: load.steady_rate / full),  # noqa: B023 - it is called at once
                _spread(loads, lambda load: load.busy),
                _spread(loads, lambda load: load.call_items),
                _spread(loads, lambda load: load.limit),
                _spread(loads, lambda load: load.retries),
                _spread(loads, lambda load: load.tail_seconds / model.seconds),  # noqa: B023 - it is called at once
            )
            print(report, flush=True)
            if gpus in (4, 8):
                targets.add(f"{name}, {gpus}: items/s of one GPU", f">= {3.7 if gpus == 4 else 7.3}", rate.over(one))
                targets.add(f"{name}, {gpus}: of full", ">= 0.93", of_full)
    return report, targets


def by_ways(root: Path, arguments: argparse.Namespace) -> tuple[Report]:
    """The table "ways"."""
    report = Report(
        "BLIP-2's times on one emulated GPU",
        ("", "frames/s", "of full", "frames a call", "ms a call outside the handler", "ms in it besides the GPU"),
    )
    _, model = MODELS["frames"]
    full = model.call / model.seconds
    for workers in (1, 2):
        for size, shared in ((TINY, False), (FRAME, False), (FRAME, True)):
            place = root / f"{workers}-{size.width}-{shared}"
            loads = _loads(place, model, size, 1, arguments, workers_per_gpu=workers, shared=shared)
            rate = _spread(loads, lambda load: load.per_second)
            gpu = [model.call_seconds + load.call_items * model.item_seconds for load in loads]
            periods = [load.call_items / load.per_second for load in loads]
            alone = workers == 1  # two workers wait for the GPU in their handlers
            outside = Spread(
                tuple(1000 * (each - load.handler_seconds) for each, load in zip(periods, loads, strict=True))
            )
            inside = Spread(tuple(1000 * (load.handler_seconds - each) for each, load in zip(gpu, loads, strict=True)))
            report.add(
                f"{workers} worker{'s' * (workers > 1)}, {_name((size.width, size.height))},"
                f" {'shared memory' if shared else 'HTTP'}",
                rate,
                Spread(tuple(value / full for value in rate.values)),
                _spread(loads, lambda load: load.call_items),
                outside if alone else "",
                inside if alone else "",
            )
            print(report, flush=True)
    return (report,)


def _loads(
    place: Path,
    model: Model,
    size: InputSize,
    gpus: int,
    arguments: argparse.Namespace,
    *,
    workers_per_gpu: int = 1,
    shared: bool = False,
) -> list[FullLoad]:
    """Start a server, and keep it busy with so many full calls of each GPU as are asked for, several times."""
    requests = round(arguments.calls * gpus * model.call / model.request)
    with serve_all_emulated(place, CONFIG, {"emulated": model.emulated(size, workers_per_gpu)}, gpus) as servings:
        serving = servings["emulated"]
        asyncio.run(full_load(serving, size, model.request, 4 * gpus))  # warms up the workers and Java
        return [
            asyncio.run(full_load(serving, size, model.request, requests, shared=shared))
            for _ in range(arguments.rounds)
        ]


def _spread(loads: Sequence[FullLoad], figure: Callable[[FullLoad], float]) -> Spread:
    return Spread(tuple(map(figure, loads)))


COSTS = {"files": by_files, "length": by_length, "resolution": by_resolution, "processes": by_processes}
GPU_TABLES = {"gpus": by_gpus, "ways": by_ways}
TABLES = (*GPU_TABLES, "devices", *COSTS)


def without_joining(root: Path, arguments: argparse.Namespace) -> list[Report]:
    """The other tables, whose servers join no requests."""
    reports: list[Report] = []
    with two_servers(root) as servers:
        most = round(5 * arguments.seconds * DEVICE / CLIP_FRAMES)
        clips = write_library(root / "clips", *SMALL, clips=max(2, most), frames=CLIP_FRAMES)
        for server in servers:
            for serving in server.values():  # warms up the workers and Java
                WholeRun([serving], clips[:2])()
        if "devices" in arguments.tables:
            reports += by_devices(servers, clips, arguments)
        reports += [
            table(servers[0]["instant"], root, arguments) for name, table in COSTS.items() if name in arguments.tables
        ]
    return reports


def _some(folder: Path, size: tuple[int, int]) -> list[Path]:
    return write_library(folder / _name(size), *size, clips=4, frames=CLIP_FRAMES)


def _name(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="length of each run of the first table, about")
    parser.add_argument("--files", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--kinds", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--calls", type=int, default=20, help="full calls of each emulated GPU in a run")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    add_json_option(parser)
    arguments = parser.parse_args()
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, gpu_table in GPU_TABLES.items():
            if name in arguments.tables:
                reports += gpu_table(root / name, arguments)
        if {"devices", *COSTS} & {*arguments.tables}:
            reports += without_joining(root, arguments)
    publish(reports, arguments.json)


if __name__ == "__main__":
    run_command(main)
