"""How fast are clips described, ours and what people use today, and how much CPU and memory does it need?

    scripts/bench describing [--rounds 5] [--sizes 640x360 1920x1080] [--ways ours litserve ...] [--clips N]
                             [--peer-python FILE] [--vllm FOLDER] [--json FILE]

Every way runs the demo clip model on one thread of the CPU (with more, the ways without a server could use both cores
for it in turns), and describes the same H.264 files of 4 s, 25 frames a
second and one clip each: drawn events with grain, of which the truth is known (demo/synthetic/video_files.py). Each
round runs all ways once, one after the other, each client in a process of its own. Before the rounds, each way runs
once to warm up. The ways:

ours: `reelscribe caption --clips windows --clip-seconds 4` on TorchServe.
card-1: the script of the model card: the processor reads a file and scales its frames, `generate` answers, one file
    after the other. transformers reads files with torchcodec, on as many threads as FFmpeg likes.
card-8: the same with 8 files at once.
litserve: LitServe, which joins up to 8 clips that come within 20 ms and runs the model by the code of our handler; its
    client decodes and scales with our processes.
litserve-wait: the same, but it waits for more clips for half a second, as our client does.
litserve-card: the same, but the model runs by the code of the model card, with the processor of transformers.
ours-vllm: the same command as ours, with a vLLM as the server.
vllm-video-16, vllm-video-32: a script that sends whole files to vLLM's own decoder, so many of them in flight.
vllm-frames-16, vllm-frames-32: a script that decodes files with PyAV in two processes, and sends 2 frames a second.

The ways with vLLM need the folder of `scripts/peers vllm`, as --vllm. It keeps nothing from one request for the next.
card-1, card-8 and litserve-card need torchvision and torchcodec, which the project does without. Give the Python of an
environment that has them, as --peer-python; without it, these ways are left out. To make one:

    python3 -m venv peers && peers/bin/pip install torch==2.13.0 torchvision torchcodec transformers==5.23.0 psutil \
        litserve python-multipart

clips/s: from the start of the client to the last description; the client starts when Python, its modules and its model,
    if it has one, are loaded, and its model has described a file.
steady: clips/s from when a quarter of the clips is described.
CPU s: CPU seconds for 100 clips, of all processes of the client since its start (for card-1 and card-8, with the
    model), and of all of the server.
sent MB: bodies of the requests for 100 clips, those of LitServe without the form around them.
client MB, server MB: largest sum of PSS (shared pages count once) of all processes, during the warm-up run.
exact: percentage of descriptions that are the truth. Ways that choose other frames may see other things.
longest stall: how long the event loop of our client kept everything waiting at most, in milliseconds.

Each way must return as many descriptions as there are clips. Figures are medians and, in brackets, smallest and
largest. The second table has the ratios of ours to the others, round by round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clips.describer import ClipSettings
from clips.families import FAMILIES
from clips.processor_files import read_settings
from lib.command import add_json_option, command_parser, run_command
from lib.report import Report, Spread, publish
from lib.ways import Measured, Servers, Way, Work, columns, measure
from peers.services import Service, serve_module
from reelscribe.archive import build as archive
from reelscribe.client.operations import JOIN_CLIPS_SECONDS
from servers.torchserve import CLIPS, CONFIG, HANDLERS, serve
from servers.vllm import CLIPS_OPTIONS, serve_vllm
from synthetic.video_files import FRAMES_PER_SECOND, write_event_library

CLIP_SECONDS = 4
DIFFERENT = 8
"""Number of different clips; the others are copies of them."""

SIZES = {"640x360": 120, "1920x1080": 40}
"""Number of clips at each size: enough that the start is a small part of a run, but a run takes less than a minute."""

OURS = "ours"
CARD = ("card-1", "card-8", "litserve-card")
"""The ways that need the Python of --peer-python."""


VLLM = tuple(f"vllm-{kind}-{in_flight}" for kind in ("video", "frames") for in_flight in (16, 32))
"""The ways of scripts with vLLM."""

UNCACHED = ("--mm-processor-cache-gb", "0", "--no-enable-prefix-caching")


@dataclass(frozen=True)
class Model:
    """The demo clip model, and what clients without a server must know of it."""

    settings: ClipSettings

    def options(self) -> tuple[str, ...]:
        """Options of programs that load the model."""
        return ("--weights", self.settings.model, "--prompt", self.settings.prompt)

    def budget(self) -> str:
        """JSON of how many frames of a clip it takes, and at which size."""
        family = FAMILIES["qwen3_vl"](read_settings(self.settings))
        return json.dumps(self.settings.budget(family.budget).to_json())


@contextmanager
def serve_ours(directory: Path) -> Iterator[Service]:
    """Serve our handler with our settings."""
    archive.build("clips", "clip", str(CLIPS), directory / "store", handlers=HANDLERS)
    with serve(directory, "clips", CONFIG) as serving:
        yield Service.ours(serving)


@contextmanager
def serve_on_vllm(folder: Path, weights: Path, directory: Path, options: tuple[str, ...] = ()) -> Iterator[Service]:
    """Serve a clip model with vLLM, which keeps nothing from one request for the next.

    Args:
        folder: Folder of scripts/peers.
        weights: Folder of the weights.
        directory: A folder for its log, which must not exist.
        options: Further options of `vllm serve`.
    """
    directory.mkdir()
    with serve_vllm(folder, weights, "clips", directory, *CLIPS_OPTIONS, *UNCACHED, *options) as server:
        yield Service(("--url", server.address), tuple(server.processes()))


def make_ways(model: Model, peer_python: str | None, vllm: Path | None) -> dict[str, Way]:
    """All ways, but those whose peers are not installed."""
    windows = ("--clip-seconds", str(CLIP_SECONDS))
    litserve = ("--budget", model.budget(), *windows)
    ways = {
        "ours": Way("ours", "peers.clips.our_client", windows),
        "litserve": Way("litserve", "peers.clips.litserve_client", litserve),
        "litserve-wait": Way("litserve-wait", "peers.clips.litserve_client", litserve),
    }
    if vllm:
        pixels = ("--frame-pixels", str(int(json.loads(model.budget())["max_pixels"])))
        ways["ours-vllm"] = Way("vllm", "peers.clips.our_client", ("--openai", *windows, *pixels))
        asked = ("--budget", model.budget(), "--prompt", model.settings.prompt)
        for name in VLLM:
            _, way, in_flight = name.split("-")
            options = ("--way", way, "--in-flight", in_flight, *asked)
            ways[name] = Way("vllm", "peers.clips.vllm_clients", options)
    if peer_python:
        script = "peers.clips.card"
        ways |= {
            "litserve-card": Way("litserve-card", "peers.clips.litserve_client", litserve),
            "card-1": Way(None, script, (*model.options(), "--batch", "1"), peer_python),
            "card-8": Way(None, script, (*model.options(), "--batch", "8"), peer_python),
        }
    return ways


def make_servers(model: Model, peer_python: str | None, vllm: Path | None) -> Servers:
    """The servers of all ways."""
    module = "peers.clips.litserve_server"
    handler, card = (("--model", name, *model.options(), "--wait-seconds") for name in ("handler", "card"))
    servers: Servers = {
        "ours": serve_ours,
        "litserve": lambda directory: serve_module(module, directory, (*handler, "0.02")),
        "litserve-wait": lambda directory: serve_module(module, directory, (*handler, str(JOIN_CLIPS_SECONDS))),
    }
    if vllm:
        servers = {**servers, "vllm": partial(serve_on_vllm, vllm, CLIPS)}
    if peer_python:
        peer = partial(serve_module, module, options=(*card, "0.02"), python=peer_python)
        servers = {**servers, "litserve-card": peer}
    return servers


def compare(size: str, measured: dict[str, Measured]) -> Iterator[tuple[str | Spread, ...]]:
    """Yield the rows of the second table."""
    for other, each in measured.items():
        if other != OURS:
            names = ("per_second", "steady_per_second", "client_cpu_seconds")
            speed, steady, cpu = (measured[OURS].spread(name).over(each.spread(name)) for name in names)
            yield size, other, speed, steady, cpu


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    every = ("ours", "litserve", "litserve-wait", *CARD, "ours-vllm", *VLLM)
    parser.add_argument("--ways", nargs="+", choices=every)
    parser.add_argument("--clips", type=int, help="number of clips; by default, as many as suit the size")
    parser.add_argument("--peer-python", type=_peer_python, metavar="FILE", help="a Python that has torchvision")
    parser.add_argument("--vllm", type=_absolute, metavar="FOLDER", help="folder of scripts/peers vllm")
    add_json_option(parser)
    options = parser.parse_args()
    model = Model(ClipSettings(str(CLIPS)))
    ways = make_ways(model, options.peer_python, options.vllm)
    if missing := set(options.ways or ()) - set(ways):
        needed = "--vllm" if any("vllm" in name for name in missing) else "--peer-python"
        parser.error(f"{', '.join(sorted(missing))}: expected {needed}, which this way needs; see --help")
    ways = {name: ways[name] for name in options.ways or ways}
    headings = columns("clips")
    memory = ("client MB", "server MB")
    table = Report("Describing; CPU and bytes for 100 clips", ("size", "way", *headings.values(), *memory, "exact, %"))
    ratios = Report("ours to the others", ("size", "other", "clips/s", "steady", "client CPU s"))
    for size in options.sizes:
        clips = options.clips or SIZES[size]
        width, height = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            frames, directory = CLIP_SECONDS * FRAMES_PER_SECOND, Path(folder)
            sources, truth = write_event_library(
                directory / "clips", width, height, clips=clips, different=min(clips, DIFFERENT), frames=frames
            )
            work = Work(sources, clips, per=100)
            measured = measure(
                directory, ways, make_servers(model, options.peer_python, options.vllm), work, options.rounds
            )
        for name, each in measured.items():
            peaks = (f"{each.peak.client:.0f}", f"{each.peak.server:.0f}")
            table.add(size, name, *(each.spread(column) for column in headings), *peaks, each.same_texts(truth))
            if each.stalls_ms:
                table.notes.append(f"{size}, {name}: longest stalls {', '.join(map(str, each.stalls_ms))} ms")
        if OURS in measured:
            for row in compare(size, measured):
                ratios.add(*row)
    publish([table, ratios], options.json)


def _absolute(word: str) -> Path:
    return Path(word).absolute()


def _peer_python(word: str) -> str:
    """The path of a Python that can run the model card's script. Raises ArgumentTypeError if it cannot."""
    needed = "import torchvision, torchcodec, transformers, psutil, litserve, python_multipart"
    try:
        done = subprocess.run([word, "-c", needed], capture_output=True, text=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{word}: expected a Python program, got {error.strerror}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise argparse.ArgumentTypeError(f"{word}: expected a Python with the packages that --help lists, got {reason}")
    return word


if __name__ == "__main__":
    run_command(main)
