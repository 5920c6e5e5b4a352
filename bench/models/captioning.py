"""How fast is captioning at four resolutions, ours and what people use today, and how much CPU and memory does it need?

    scripts/bench captioning [--rounds 5] [--clips 2] [--frames N] [--sizes 1920x1080 ...]
                             [--ways litserve ours-network ...] [--json FILE]

Every way runs the demo captioner on one thread of the CPU, and captions every frame of the same noisy, textured videos
(H.264, detail of all scales, panned, with grain: demo/synthetic/video_files.py). Each round runs all ways once, one
after the other, each client in a process of its own. Before the rounds, each way runs once to warm up. The ways:

blog-sync, blog-stream, blog-prebatch: the blog "Video captioning in bulk using Hugging Face + torchserve": its three
    clients (blog_clients.py in bench/peers/captions) and its handler (blog_handler.py) on TorchServe. Frames are sent
    at full size, pickled, with a session for each request. Single frames go to a server that joins up to 128 in 100 ms;
    up to 100 are in flight, as many as its queue holds. Prebatches of 32, 32, 16 and 8 frames, by resolution, go to a
    server with batchSize 1. The blog sets no limit to the requests in flight: here it is 32 prebatches, as more would
    fill the server's memory.
blog-prebatch-2: the same with two prebatches in flight.
flask: the blog's simple way, a Flask server with a client that sends one pickled frame after the other.
plain-32, plain-1: no server: decord, processor and generate in one process, with 32 frames or 1 at once.
litserve: LitServe, which joins up to 32 single frames; its client decodes with our processes, scaled to 224x224.
ours-network: `reelscribe caption` with its defaults, on TorchServe. Frames are sent over TCP, as to a server on another
    machine.
ours-fast, ours-exact: `reelscribe caption` with each --resize, on one machine with the server: frames stay in shared
    memory.

frames/s: from the start of the client to the last caption; the client starts when Python, its modules and its model, if
    it has one, are loaded.
steady: frames/s from when a quarter of the frames is captioned; imprecise where captions come in bursts.
CPU s: CPU seconds for 1,000 frames, of all processes of the client since its start, and of all of the server.
sent MB: bodies of the requests for 1,000 frames, those of LitServe without the form around them.
client MB, server MB: largest sum of PSS (shared pages count once) of all processes, during the warm-up run. Servers are
    started anew for each resolution.
same captions: percentage of captions equal to those of the first way in --ways. Ways that scale frames differently see
    different pixels.
as full frames: percentage of captions equal to those of full frames that the model's own processor would scale, which
    are those of ours-exact; it runs once for them. Ways that read with decord see other colours of HD video.

The blog, flask and plain use transformers' own processor without torchvision, and glibc's default allocation. Each way
must return as many captions as there are frames. Figures are medians and, in brackets, smallest and largest. The second
table has the ratios of ours-network and ours-fast to the others, round by round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish
from lib.ways import Measured, Way, Work, columns, measure
from peers.captions.servers import SERVERS
from servers.torchserve import CAPTIONER
from synthetic.video_files import write_library


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


PLAIN = ("--weights", str(CAPTIONER), "--batch")
WAYS = {
    "blog-sync": Way("blog, joining", "peers.captions.blog_clients", ("--reading", "sync", "--in-flight", "100")),
    "blog-stream": Way("blog, joining", "peers.captions.blog_clients", ("--reading", "stream", "--in-flight", "100")),
    "blog-prebatch": Way("blog", "peers.captions.blog_clients", ("--reading", "prebatch", "--in-flight", "32")),
    "blog-prebatch-2": Way("blog", "peers.captions.blog_clients", ("--reading", "prebatch", "--in-flight", "2")),
    "flask": Way("flask", "peers.captions.flask_client"),
    "plain-32": Way(None, "peers.captions.plain_script", (*PLAIN, "32")),
    "plain-1": Way(None, "peers.captions.plain_script", (*PLAIN, "1")),
    "litserve": Way("litserve", "peers.captions.litserve_client"),
    "ours-fast": Way("ours", "peers.captions.our_client", ("--resize", "fast")),
    "ours-network": Way("ours", "peers.captions.our_client", ("--resize", "fast", "--network")),
    "ours-exact": Way("ours", "peers.captions.our_client", ("--resize", "exact")),
}
OURS = ("ours-network", "ours-fast")
"""The ways of `reelscribe caption` by default."""
FULL_FRAMES = "ours-exact"
"""The way whose pixels are those that the model's own processor makes of full frames."""


def measure_size(
    directory: Path, size: str, names: Sequence[str], rounds: int, clips: int, frames: int
) -> tuple[dict[str, Measured], list[str]]:
    """Run all ways at one resolution, with `clips` clips of `frames` frames each.

    Returns:
        What was measured, and the captions of full frames.
    """
    width, height = map(int, size.split("x"))
    sources = write_library(directory / "clips", width, height, clips=clips, frames=frames)
    prebatch = ("--prebatch", str(SIZES[size].prebatch))
    ways = {
        name: replace(WAYS[name], options=(*WAYS[name].options, *prebatch))
        if "prebatch" in WAYS[name].options
        else WAYS[name]
        for name in names
    }
    work = Work(sources, clips * frames)
    measured = measure(directory, ways, SERVERS, work, rounds)
    if FULL_FRAMES in measured:
        return measured, measured[FULL_FRAMES].texts
    (directory / "full").mkdir()
    warmed_up = measure(directory / "full", {FULL_FRAMES: WAYS[FULL_FRAMES]}, SERVERS, work, rounds=0)
    return measured, warmed_up[FULL_FRAMES].texts


def target(size: str, other: str) -> float:
    """The factor by which ours shall be faster than another way."""
    if other == "litserve":
        return 1.3
    if not other.startswith("blog-prebatch"):
        return 1.0
    return {"480x270": 2.0, "1920x1080": 8.0}.get(size, 1.0)


def compare(size: str, measured: dict[str, Measured]) -> Iterator[tuple[str | Spread, ...]]:
    """Yield the rows of the second table."""
    for ours, other in product((name for name in OURS if name in measured), measured):
        if not other.startswith("ours"):
            ratio, steady = (
                measured[ours].spread(name).over(measured[other].spread(name))
                for name in ("per_second", "steady_per_second")
            )
            least = target(size, other)
            yield size, ours, other, f"{least:.1f}", ratio, "yes" if ratio.median >= least else "no", steady


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
    headings = columns("frames")
    heading = ("size", "way", *headings.values(), "client MB", "server MB", "same captions, %", "as full frames, %")
    table = Report("Captioning; CPU and bytes for 1,000 frames", heading)
    heading = ("size", "ours", "other", "target", "measured", "reached", "steady")
    ratios = Report("Ours to the others, frames/s", heading)
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            frames = options.frames or SIZES[size].clip_frames
            directory = Path(folder)
            measured, full = measure_size(directory, size, options.ways, options.rounds, options.clips, frames)
        first = measured[options.ways[0]]
        for name, each in measured.items():
            spreads = [each.spread(column) for column in headings]
            memory = (f"{each.peak.client:.0f}", f"{each.peak.server:.0f}")
            table.add(size, name, *spreads, *memory, each.same_texts(first.texts), each.same_texts(full))
        different = len(set(first.texts))
        table.notes.append(f"{size}: {options.clips} clips of {frames} frames, {different} different captions")
        for row in compare(size, measured):
            ratios.add(*row)
    publish([table, ratios], options.json)


if __name__ == "__main__":
    run_command(main)
