"""How does speed grow with devices and servers, and cost with files, length, resolution and decode processes?

    scripts/bench scaling [--rounds 3] [--seconds 5] [--files 10 100 1000]
                          [--tables devices files length resolution processes] [--json FILE]

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
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lib.command import add_json_option, command_parser, run_command
from lib.delivery import RESOLUTIONS, Delivered, WholeRun
from lib.report import Report, publish, take_turns
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from servers.emulated import Emulated, serve_all_emulated
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


COSTS = {"files": by_files, "length": by_length, "resolution": by_resolution, "processes": by_processes}
TABLES = ("devices", *COSTS)


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
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    add_json_option(parser)
    arguments = parser.parse_args()
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as directory, two_servers(Path(directory)) as servers:
        root = Path(directory)
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
    publish(reports, arguments.json)


if __name__ == "__main__":
    run_command(main)
