"""How much slower is a library in a store, in shards, or of a million names, than a folder?

    scripts/bench stored_sources [--tables places shards ranges names] [--rounds 3] [--device-rate 400] [--videos 40]
                                 [--frames 150] [--size 640 360] [--clips 1000] [--megabytes 100]
                                 [--names 1000000] [--json FILE]

"places" captions `--videos` videos on an emulated device of `--device-rate` frames a second, from a folder, and from a
web server with a latency of 50 ms and 20 MB/s a connection. "shards" captions `--clips` clips of 10 frames from a
folder, and from one .tar with the same clips. Both have frames/s of whole runs, their starts and their ends included,
and the ratio to the folder, round by round.

"ranges" captions 8 frames of one long video of `--megabytes` with a keyframe every 10 seconds, from the same web
server: by `--frames 8`, of which ranges are fetched, and by `--fps`, for which all of it is. It has the seconds of a
whole run and the share of the video's bytes that was fetched.

"names" finds the shots of `--names` sources that all have the content of one small video, from a list of paths and from
a bucket whose server makes such pages of keys, and has the seconds from the start of the command until the first source
is done, and the peak of the command's memory when it is ended `--seconds` later. Figures are medians and, in brackets,
smallest and largest.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from lib.command import add_json_option, command_parser, killed_at_end, run_command
from lib.delivery import WholeRun
from lib.report import Report, Spread, publish, take_turns
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from servers.emulated import Emulated, serve_all_emulated
from servers.torchserve import CONFIG, Serving
from synthetic.video_files import FRAMES_PER_SECOND, repeat_video, write_library

STORE = Path(__file__).parents[1] / "fakes" / "slow_store.py"
LATENCY_MS, MEGABYTES_PER_SECOND = 50, 20
CLIP_FRAMES = 10
CLIP_SECONDS = 10
TABLES = ("places", "shards", "ranges", "names")
WORKERS = 2
MOST_LINKS = 50_000
"""Number of names of one file, of which file systems allow few more."""


@contextmanager
def slow_store(place: str | Path, latency_ms: float = LATENCY_MS) -> Iterator[str]:
    """Run a store in a process of its own, and yield its address."""
    command = [sys.executable, str(STORE), str(place), str(latency_ms), str(MEGABYTES_PER_SECOND)]
    with killed_at_end(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout
        yield process.stdout.readline().strip()


def compare(report: Report, serving: Serving, places: dict[str, Sequence[str | Path]], files: int, rounds: int) -> None:
    """Caption the same videos from several places in turn, and add a row for each; the first one is the folder."""
    first, *others = places
    runs = {name: WholeRun([serving], paths) for name, paths in places.items()}
    runs[first]()  # warms up the worker and Java
    runs[first].runs.clear()
    take_turns(rounds, runs)
    rates = {name: run.spread(lambda each: each.per_second) for name, run in runs.items()}
    for name in (first, *others):
        report.add(f"{name}, {files} files", rates[name], rates[name].over(rates[first]))


def measure_ranges(report: Report, root: Path, serving: Serving, megabytes: int, rounds: int) -> None:
    """Add a row for few frames of a long video in ranges, and one for as many of all of it."""
    (clip,) = write_library(root / "clip", 640, 360, clips=1, frames=CLIP_SECONDS * FRAMES_PER_SECOND)
    times = math.ceil(megabytes * 1e6 / clip.stat().st_size)
    (folder := root / "long").mkdir()
    repeat_video(clip, folder / "long.mp4", times)
    size = (folder / "long.mp4").stat().st_size
    samplings = {
        "--frames 8": Sampling(frames=8),
        "--fps, also 8 frames": Sampling(fps=8 / (times * CLIP_SECONDS)),
    }
    with slow_store(folder) as address:
        runs = {
            name: WholeRun([serving], [f"{address}/long.mp4"], CaptionOptions(sampling, frames_per_request=4))
            for name, sampling in samplings.items()
        }
        take_turns(rounds, runs)
        for name, run in runs.items():
            seconds, before = run.spread(lambda each: each.seconds), _sent(address)
            run()
            report.add(f"{name} of {size / 1e6:.0f} MB", seconds, (_sent(address) - before) / size)


def _sent(address: str) -> int:
    with urlopen(f"{address}/sent") as answer:  # noqa: S310 - it is our own server
        return int(answer.read())


def first_done(words: Sequence[str], out: Path, seconds: float, environment: dict[str, str]) -> tuple[float, float]:
    """Run the command; return the seconds to its first source that is done, and the peak of its memory in MB."""
    command = [sys.executable, "-m", "reelscribe.cli", "shots", *words, "--out", str(out), "--json-log"]
    began = time.monotonic()
    with killed_at_end(
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    ) as process:
        assert process.stderr
        until_first = math.inf
        for line in process.stderr:  # to the end of the time, as the command waits for who reads its lines
            now = time.monotonic() - began
            if line.startswith('{"event": "source"'):
                until_first = min(until_first, now)
            if now > until_first + seconds:
                break
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    return until_first, int(peak[1]) / 1000


def measure_names(report: Report, root: Path, arguments: argparse.Namespace) -> None:
    """Add a row for a list of paths and one for a bucket."""
    (video,) = write_library(root / "names", 64, 64, clips=1, frames=10)
    listed, folder, linked = root / "names.txt", root / "linked", video
    folder.mkdir()
    with listed.open("w") as file:
        for number in range(arguments.names):
            path = folder / f"{number:09}.mp4"
            if number % MOST_LINKS:
                os.link(linked, path)
            else:
                linked = path
                path.write_bytes(video.read_bytes())
            file.write(f"{path}\n")
    with slow_store(f"{arguments.names},{video}") as address:
        environment = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "name",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, words in (("list", ["--from", str(listed)]), ("bucket", ["s3://bucket/films/"])):
            figures = [
                first_done(words, root / f"{name}-{number}", arguments.seconds, environment)
                for number in range(arguments.rounds)
            ]
            seconds, megabytes = (Spread(tuple(values)) for values in zip(*figures, strict=True))
            report.add(f"{name}, {arguments.names:,} names", seconds, megabytes)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES[:-1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device-rate", type=float, default=400, help="frames/s of the emulated device")
    parser.add_argument("--videos", type=int, default=40)
    parser.add_argument("--frames", type=int, default=150, help="frames of each video of places")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 360), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=100, help="size of the video of ranges")
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20, help="seconds of names after the first source is done")
    add_json_option(parser)
    arguments = parser.parse_args()
    runs = Report("The same videos in several places", ("place", "frames/s", "ratio to the folder"))
    ranges = Report("Few frames of a long video", ("way", "seconds", "share of its bytes that was fetched"))
    names = Report("Many names", ("place", "seconds to the first source", "peak memory, MB"))
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if "names" in arguments.tables:
            measure_names(names, root, arguments)
        with serve_all_emulated(root, CONFIG, {"emulated": Emulated(arguments.device_rate, WORKERS)}) as servings:
            serving = servings["emulated"]
            if "places" in arguments.tables:
                videos = write_library(
                    root / "videos", *arguments.size, clips=arguments.videos, frames=arguments.frames
                )
                with slow_store(root / "videos") as address:
                    places: dict[str, Sequence[str | Path]] = {
                        "folder": videos,
                        "50 ms, 20 MB/s": [f"{address}/{path.name}" for path in videos],
                    }
                    compare(runs, serving, places, len(videos), arguments.rounds)
            if "shards" in arguments.tables:
                clips = write_library(root / "clips", *arguments.size, clips=arguments.clips, frames=CLIP_FRAMES)
                with tarfile.open(root / "clips.tar", "w") as shard:
                    for path in clips:
                        shard.add(path, path.name)
                places = {"clips in a folder": clips, "clips in a .tar": [root / "clips.tar"]}
                compare(runs, serving, places, len(clips), arguments.rounds)
            if "ranges" in arguments.tables:
                measure_ranges(ranges, root, serving, arguments.megabytes, arguments.rounds)
    publish([report for report in (runs, ranges, names) if report.rows], arguments.json)


if __name__ == "__main__":
    run_command(main)
