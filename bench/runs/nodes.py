"""How much faster is a library captioned by more nodes of a Ray cluster, and what does Ray cost?

    scripts/bench nodes [--nodes 1 4] [--device-rate 100] [--seconds 25] [--rounds 2] [--json FILE]

The library has videos of 10 s at 480x270, of which every frame is captioned. Each node serves an emulated device of
`--device-rate` frames a second by itself (`--serve-nodes`); "no Ray" is a run on this machine with one server of the
same device. All nodes are processes of this machine. Each round runs all ways in turn, each into a new output folder
for `--seconds` after it has made its first captions, then interrupts it. The rate is that of these seconds. "ratio" is
that to the first way, round by round; "to one node" that to a single node. "start" is the time until the first
captions. Figures are medians and, in brackets, smallest and largest.

A round with 1 and 4 nodes takes some 2 minutes on two cores.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from lib.command import add_json_option, command_parser, killed_at_end, run_command
from lib.report import Report, Spread, publish, take_turns
from servers.emulated import serve_emulated
from servers.ray_cluster import ray_cluster
from servers.torchserve import CONFIG
from synthetic.video_files import write_video

VIDEO_FRAMES = 250
SETTLING_SECONDS = 4.0
"""Seconds after the first captions that are not measured, as the number of leases grows with the speed of a node."""


@dataclass
class Way:
    """One way to caption the library."""

    command: list[str]
    environment: dict[str, str] | None
    seconds: float
    starts: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        """Run it for a while; return the frames per second."""
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory() as out,
            subprocess.Popen(
                [*self.command, "--out", out], env=self.environment, stderr=subprocess.PIPE, text=True
            ) as process,
            killed_at_end(process),
        ):
            assert process.stderr
            points: list[tuple[float, float]] = []
            for line in process.stderr:
                event = json.loads(line)
                frames = sum(track["done"] for track in event.get("tracks", ()))
                if event["event"] != "progress" or not frames:
                    continue
                if not points:
                    self.starts.append(time.monotonic() - began)
                points.append((event["seconds"], frames))
                if points[-1][0] - points[0][0] > self.seconds + SETTLING_SECONDS:
                    break
            process.send_signal(signal.SIGINT)
            process.communicate()
        measured = [point for point in points if point[0] >= points[0][0] + SETTLING_SECONDS]
        (first, before), (last, after) = measured[0], measured[-1]
        return (after - before) / (last - first)


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument("--device-rate", type=float, default=100, help="frames/s of the emulated device of a node")
    parser.add_argument("--seconds", type=float, default=25, help="length of what is measured of a run")
    parser.add_argument("--rounds", type=int, default=2)
    add_json_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        library = make_library(root, arguments.device_rate * max(arguments.nodes) * (arguments.seconds + 20))
        caption = [sys.executable, "-m", "reelscribe.cli", "caption", str(library), "--every", "1", "--json-log"]
        caption += ["--decode-workers", "1"]
        with (
            serve_emulated(root / "server", CONFIG, frames_per_second=arguments.device_rate) as serving,
            ray_cluster(max(arguments.nodes)) as cluster,
        ):
            access = ["--server", serving.url, "--key-file", str(serving.instance.key_file)]
            ways = {"no Ray": Way([*caption, *access, "--model", "emulated"], None, arguments.seconds)}
            store = ["--model-store", str(root / "server" / "store"), "--ray", cluster.address]
            for nodes in arguments.nodes:
                command = [*caption, *store, "--serve-nodes", str(nodes)]
                ways[f"{nodes} nodes"] = Way(command, cluster.environment, arguments.seconds)
            rates = take_turns(arguments.rounds, ways)
    report = Report(
        f"480x270, every frame, {arguments.device_rate:g} frames/s a node",
        ("", "frames/s", "ratio", "to one node", "start, s"),
    )
    for name, way in ways.items():
        one = rates.get("1 nodes", rates["no Ray"])
        report.add(name, rates[name], rates[name].over(rates["no Ray"]), rates[name].over(one), Spread((*way.starts,)))
    publish([report], arguments.json)


def make_library(root: Path, frames: float) -> Path:
    """Make enough videos for so many frames; their contents differ, so that none is a copy of another."""
    library = root / "library"
    library.mkdir()
    write_video(root / "video.mp4", 480, 270, VIDEO_FRAMES)
    for number in range(round(frames / VIDEO_FRAMES) + 1):
        path = library / f"{number}.mp4"
        shutil.copy(root / "video.mp4", path)
        with path.open("ab") as file:
            file.write(b"\0\0\0\x0cfree" + number.to_bytes(4))  # a box that players ignore
    return library


if __name__ == "__main__":
    run_command(main)
