"""How much faster is one long video captioned with several decode processes?

    scripts/bench library/one_video [--seconds 600] [--rounds 1] [--decode-workers 1 2] [--device-rate 2000]
                                    [--size 1920 1080] [--json FILE]

The video is H.264 of 30 frames a second: noisy, textured and panned frames, with a keyframe every 5 s. Every frame is
captioned, on an emulated device of `--device-rate` frames a second with two workers. Each round captions the video with
each number of decode processes in turn, each time into a new output folder. The rate is that of the whole run, its
start and its end included. "ratio" is that to the first number, round by round. "cores" is how many were busy, those of
Java and of the workers included. Figures are medians and, in brackets, smallest and largest.

A round with `--seconds 600` takes some 5 minutes on two cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lib.command import add_json_option, command_parser, run_command
from lib.delivery import RESOLUTIONS, WholeRun
from lib.report import Report, publish, take_turns
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from servers.emulated import serve_emulated
from servers.torchserve import CONFIG
from synthetic.video_files import repeat_video, write_video

FRAMES_PER_SECOND = 30
CLIP_FRAMES = 150
WORKERS = 2
"""Workers of the emulated device, as caption.yaml recommends."""
TARGET = 1.8
"""Smallest ratio of two decode processes to one, where two cores are free for them."""


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="length of the video")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--decode-workers", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--device-rate", type=float, default=2000, help="frames/s of the emulated device")
    parser.add_argument("--size", type=int, nargs=2, default=RESOLUTIONS[-1], metavar=("WIDTH", "HEIGHT"))
    add_json_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        clip, video = root / "clip.mp4", root / "video.mp4"
        width, height = arguments.size
        write_video(clip, width, height, CLIP_FRAMES)
        repeat_video(clip, video, max(1, round(arguments.seconds * FRAMES_PER_SECOND / CLIP_FRAMES)))
        with serve_emulated(
            root / "server", CONFIG, frames_per_second=arguments.device_rate, workers=WORKERS
        ) as serving:
            WholeRun([serving], [clip])()  # warms up the worker and Java
            runs = {
                f"{count} decode processes": WholeRun(
                    [serving], [video], CaptionOptions(Sampling(every=1), decode_workers=count)
                )
                for count in arguments.decode_workers
            }
            take_turns(arguments.rounds, runs)
    report = Report(
        f"One video of {arguments.seconds:g} s at {'x'.join(map(str, arguments.size))}; target of 2 to 1: {TARGET:g}",
        ("", "frames/s", "ratio", "cores", "client CPU s per 1,000", "server CPU s per 1,000"),
    )
    first = next(iter(runs.values())).spread(lambda run: run.per_second)
    for name, run in runs.items():
        rate = run.spread(lambda run: run.per_second)
        figures = (
            lambda run: run.cores,
            lambda run: run.client_cpu_per_thousand,
            lambda run: run.server_cpu_per_thousand,
        )
        report.add(name, rate, rate.over(first), *map(run.spread, figures))
    publish([report], arguments.json)


if __name__ == "__main__":
    run_command(main)
