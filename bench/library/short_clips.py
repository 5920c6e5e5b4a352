"""How fast are short clips captioned, compared with the same frames in long videos?

    scripts/bench library/short_clips [--clips 3000] [--rounds 3] [--device-rate 400] [--size 480 270]
                                      [--long-frames 150] [--frames panned drawn] [--devices demo emulated]
                                      [--decode-workers 2] [--json FILE]

A clip has one frame, so everything that is done for each file, and not for each frame, shows: its digest, opening it,
its rows in the ledger and its record. Each round captions all clips, and then as many frames in videos of
`--long-frames` frames, on the demo captioner (one thread) and on an emulated device of `--device-rate` frames a second
with two workers. Each run has a new output folder. The rate is that of the whole run, its start and its end included.

The frames are H.264: "panned" ones are noisy and textured, so a clip, whose frame is a keyframe, takes several times as
long to decode as a frame of a long video; "drawn" ones are those of the demo's scenes.

The table has a row for each device and kind of frames. "ratio" is that of short clips to long videos, round by round.
"requests" is how many requests the clips took. CPU seconds are for 1,000 frames. Figures are medians and, in brackets,
smallest and largest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lib.command import add_json_option, command_parser, run_command
from lib.delivery import RESOLUTIONS, WholeRun
from lib.report import Report, Spread, publish, take_turns
from reelscribe.archive import build as archive
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from servers.emulated import Emulated, serve_all_emulated
from servers.torchserve import CAPTIONER, CONFIG, HANDLERS, Serving
from synthetic.video_files import drawn_frames, panned_frames, write_library, write_short_library

DEMO, EMULATED = "demo", "emulated"
WORKERS = 2
"""Workers of the emulated device, as caption.yaml recommends."""
FRAMES = {"panned": panned_frames, "drawn": drawn_frames}
COLUMNS = ("device, frames", "short clips/s", "long videos, frames/s", "ratio", "requests", "short, client CPU s")


@contextmanager
def serve_devices(root: Path, rate: float) -> Iterator[dict[str, Serving]]:
    """Serve the demo captioner and an emulated device on one server."""
    archive.build("captioner", "caption", str(CAPTIONER), root / "store", handlers=HANDLERS)
    with serve_all_emulated(root, CONFIG, {EMULATED: Emulated(rate, WORKERS)}) as servings:
        yield {DEMO: replace(servings[EMULATED], model="captioner"), **servings}


def measure(
    serving: Serving, short: Sequence[Path], long: Sequence[Path], arguments: argparse.Namespace
) -> list[Spread]:
    """Run short clips and long videos in turn, and return the figures of a row."""
    options = CaptionOptions(Sampling(every=1), decode_workers=arguments.decode_workers)
    WholeRun([serving], long[: arguments.decode_workers], options)()  # warms up the worker and Java
    runs = {name: WholeRun([serving], paths, options) for name, paths in (("short", short), ("long", long))}
    take_turns(arguments.rounds, runs)
    rates = [run.spread(lambda run: run.per_second) for run in runs.values()]
    requests = runs["short"].spread(lambda run: float(run.requests))
    cpu = [run.spread(lambda run: run.client_cpu_per_thousand) for run in runs.values()]
    return [*rates, rates[0].over(rates[1]), requests, *cpu]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--clips", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device-rate", type=float, default=400, help="frames/s of the emulated device")
    parser.add_argument("--size", type=int, nargs=2, default=RESOLUTIONS[0], metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--long-frames", type=int, default=150, help="frames of each long video")
    parser.add_argument("--frames", nargs="+", choices=FRAMES, default=[*FRAMES])
    parser.add_argument("--devices", nargs="+", choices=(DEMO, EMULATED), default=[DEMO, EMULATED])
    parser.add_argument("--decode-workers", type=int, default=2)
    add_json_option(parser)
    arguments = parser.parse_args()
    different = min(arguments.clips, arguments.long_frames)
    report = Report("Clips of one frame, and the same frames in long videos", (*COLUMNS, "long, client CPU s"))
    videos = max(1, arguments.clips // arguments.long_frames)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with serve_devices(root / "server", arguments.device_rate) as servings:
            for kind in arguments.frames:
                size, images = arguments.size, FRAMES[kind]
                folder = root / kind
                short = write_short_library(
                    folder / "short", *size, clips=arguments.clips, different=different, images=images
                )
                long = write_library(folder / "long", *size, clips=videos, frames=arguments.long_frames, images=images)
                for device in arguments.devices:
                    report.add(f"{device}, {kind}", *measure(servings[device], short, long, arguments))
    publish([report], arguments.json)


if __name__ == "__main__":
    run_command(main)
