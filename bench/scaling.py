"""How speed grows with devices and servers, and cost with files, length, resolution and decode processes.

    .venv/bin/python bench/scaling.py [--rounds 3] [--seconds 5] [--files 10 100 1000]
                                      [--tables devices files length resolution processes] [--json FILE]

"devices": emulated devices of 100 frames/s, shared by two workers each, on one server and on two; at 480x270, so that
decoding is not what holds them up: two processes decode more than 1,000 frames/s of it where this was written. All
shares this machine's cores; an emulated device only sleeps. "of one" is the rate between answers over that of one
device in the same round.

The other tables are about the client: emulated devices that take no time answer it, so what is left is its own work,
Java's and the workers' reading of requests. CPU seconds are those of all their processes.

- files: so many files of 8 frames at 480x270, each opened, read for its digest, decoded and recorded.
- length: one file of so many frames at 480x270, by one decode process.
- resolution: 600 frames of each.
- processes: that decode 600 frames at 1920x1080.

The clips are noisy, textured and panned (H.264). Every round runs all rows of a table once, each as a whole run with
its start, in which decode processes are started, and its end; figures are medians and, in brackets, smallest and
largest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import av

from delivery import RESOLUTIONS, Delivered, Whole, make_sources
from reelscribe.run.options import CaptionOptions
from report import Report, add_json_option, publish, take_turns
from resize import write_clip
from serving import ROOT, Emulated, Serving, serve_all_emulated

CONFIG = ROOT / "config.properties"
SMALL, LARGE = RESOLUTIONS[0], RESOLUTIONS[-1]
DEVICE = 100.0
"""Frames per second."""
WORKERS = 2
"""That share a device."""
DEVICES = {"1 server, 1 device": (1, 1), "1 server, 2": (1, 2), "1 server, 4": (1, 4)}
SERVERS = {"2 servers, 1 device each": (2, 1), "2 servers, 2 each": (2, 2)}
"""Servers, and devices of each."""
FILE_FRAMES = 8
CLIP_FRAMES = 150
REPEATS = (1, 8, 64)
"""Of a clip, for a longer one."""
DECODE_WORKERS = (1, 2, 4)


def repeat_clip(clip: Path, path: Path, times: int) -> None:
    """The clip again and again, as one file, without encoding it anew."""
    with av.open(str(path), "w") as longer:
        with av.open(str(clip)) as file:
            source = file.streams.video[0]
            stream = longer.add_stream_from_template(source)
            length = int(source.duration or 0)
        for k in range(times):
            with av.open(str(clip)) as file:
                for packet in file.demux(video=0):
                    if packet.dts is not None and packet.pts is not None:
                        packet.dts, packet.pts = packet.dts + k * length, packet.pts + k * length
                        packet.stream = stream
                        longer.mux(packet)


@contextmanager
def two_servers(root: Path) -> Iterator[tuple[dict[str, Serving], dict[str, Serving]]]:
    """Each has models of 1, 2 and 4 devices, and the first one that takes no time."""
    models = {f"devices-{count}": Emulated(DEVICE, WORKERS, count) for count in (1, 2)}
    more = {"devices-4": Emulated(DEVICE, WORKERS, 4), "instant": Emulated(float("inf"), WORKERS)}
    with (
        serve_all_emulated(root / "first", CONFIG, {**models, **more}) as first,
        serve_all_emulated(root / "second", CONFIG, models) as second,
    ):
        yield first, second


def by_devices(
    servers: tuple[dict[str, Serving], dict[str, Serving]], folder: Path, arguments: argparse.Namespace
) -> tuple[Report, Report]:
    """Rates of more devices, and what was asked of four."""
    wholes = {}
    for name, (count, devices) in {**DEVICES, **SERVERS}.items():
        frames = round(arguments.seconds * DEVICE * count * devices)
        paths = sorted(folder.iterdir())[: max(2, round(frames / CLIP_FRAMES))]
        wholes[name] = Whole([server[f"devices-{devices}"] for server in servers[:count]], paths)
    spreads = take_turns(arguments.rounds, wholes)
    one = spreads["1 server, 1 device"]
    report = Report(
        f"Devices of {DEVICE:g} frames/s each, at {_name(SMALL)}",
        ("", "between answers", "of one", "whole run", "cores busy"),
    )
    for name, whole in wholes.items():
        whole_run, cores = whole.spread(lambda run: run.per_second), whole.spread(lambda run: run.cores)
        report.add(name, spreads[name], spreads[name].over(one), whole_run, cores)
    asked = Report("TranscriptionOptions and got", ("what", "asked", "got"))
    for name in ("1 server, 4", "2 servers, 2 each"):
        asked.add(f"{name}: rate over that of one device", ">= 3.7", spreads[name].over(one))
    return report, asked


def cost(
    title: str, wholes: Mapping[str, Whole], rounds: int, more: Mapping[str, Callable[[Delivered], float]] | None = None
) -> Report:
    """What each of them takes."""
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
    """Many short ones."""
    folder = make_sources(root / "files", *SMALL, FILE_FRAMES, FILE_FRAMES * max(arguments.files))
    paths = sorted(folder.iterdir())
    wholes = {f"{count} files": Whole([serving], paths[:count]) for count in arguments.files}
    more = {"ms a file": lambda run: 1000 * run.seconds / run.files}
    return cost(f"Files of {FILE_FRAMES} frames at {_name(SMALL)}", wholes, arguments.rounds, more)


def by_length(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """One file."""
    clip = root / "clip.mp4"
    write_clip(clip, *SMALL, CLIP_FRAMES)
    wholes = {}
    for times in REPEATS:
        path = root / f"repeated-{times}.mp4"
        repeat_clip(clip, path, times)
        wholes[f"{times * CLIP_FRAMES} frames"] = Whole([serving], [path])
    return cost(f"One file at {_name(SMALL)}", wholes, arguments.rounds)


def by_resolution(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """As many frames of each."""
    wholes = {_name(size): Whole([serving], _some(root / "sizes", size)) for size in RESOLUTIONS}
    return cost("Resolutions", wholes, arguments.rounds)


def by_processes(serving: Serving, root: Path, arguments: argparse.Namespace) -> Report:
    """Decode processes."""
    paths = _some(root / "processes", LARGE)
    options = {f"{count} decode processes": CaptionOptions(decode_workers=count) for count in DECODE_WORKERS}
    wholes = {name: Whole([serving], paths, option) for name, option in options.items()}
    return cost(f"Decode processes at {_name(LARGE)}", wholes, arguments.rounds)


COSTS = {"files": by_files, "length": by_length, "resolution": by_resolution, "processes": by_processes}
TABLES = ("devices", *COSTS)


def _some(folder: Path, size: tuple[int, int]) -> list[Path]:
    return sorted(make_sources(folder / _name(size), *size, CLIP_FRAMES, 4 * CLIP_FRAMES).iterdir())


def _name(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="about, of each run of the first table")
    parser.add_argument("--files", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    add_json_option(parser)
    arguments = parser.parse_args()
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as directory, two_servers(Path(directory)) as servers:
        root = Path(directory)
        frames = round(5 * arguments.seconds * DEVICE)
        folder = make_sources(root / "clips", *SMALL, CLIP_FRAMES, max(frames, 2 * CLIP_FRAMES))
        for server in servers:
            for serving in server.values():  # workers and Java warm up
                Whole([serving], sorted(folder.iterdir())[:2])()
        if "devices" in arguments.tables:
            reports += by_devices(servers, folder, arguments)
        reports += [
            table(servers[0]["instant"], root, arguments) for name, table in COSTS.items() if name in arguments.tables
        ]
    publish(reports, arguments.json)


if __name__ == "__main__":
    main()
