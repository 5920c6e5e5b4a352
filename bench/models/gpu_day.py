"""How fast are whole runs on a GPU, with one worker and two, compiled and not, and how busy is the GPU?

    scripts/bench gpu_day [--steps captions blog compiled alone clips speech] [--minutes 9] [--tiny]
    scripts/gpu_day ...    the same, after it has installed what it needs

For a GPU that is lent for minutes: what is measured is printed at once, and a step begins only while there is time. The
models have random weights in the shapes of BLIP-2 opt-2.7b (16 tokens a frame), Qwen3-VL-2B (32 tokens a clip) and
Whisper large-v3-turbo (100 tokens in 30 s), in archives for one GPU, on a TorchServe of this machine. The client sends
over TCP. With --tiny, the same runs with tiny models on a CPU, whose figures mean nothing.

captions: frames of 480x270 with one worker and two, and of 1080p.
blog: the handler of the blog "Video captioning in bulk" and its client with prebatches, at both sizes.
compiled: frames of 480x270 with compiled steps.
alone: the models without a server, with and without compiled steps (scripts/bench gpu).
clips, speech: whole commands, with and without compiled steps.

A line has items (frames, clips, seconds of audio) per second from the start of the client to its last answer; for clips
and speech, of the whole command. "busy" is the mean share of the time in which the GPU worked, as nvidia-smi says each
quarter of a second, and "memory" the most that was taken.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

from lib.command import command_parser, run_command
from lib.gpu.subjects import Subject, blip2, qwen3_vl, whisper
from lib.ways import Way, Work, run
from peers.captions.servers import serve_blog
from peers.services import Service, environment
from reelscribe.archive import build as archive
from servers.torchserve import CONFIG, HANDLERS, Serving, serve
from synthetic.random_models import TEXT_TOKENS, Size, whisper_config
from synthetic.video_files import write_library

SAMPLE_RATE = 16_000

CAPTION: dict[str, Any] = {"generation": {"max_new_tokens": 16, "min_new_tokens": 16}}
CLIP: dict[str, Any] = {"generation": {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}}
SPEECH: dict[str, Any] = {"timestamps": False, "temperatures": [0.0], "no_speech_threshold": None}
"""Settings with which random weights generate so many tokens each time."""

OVER_TCP = """
import sys
from peers.captions.our_client import through_network
from reelscribe.cli.__main__ import main
if __name__ == "__main__":
    with through_network():
        main()
"""
"""The `reelscribe` command, which sends bodies as to another machine."""


class Day:
    """What the steps share.

    Attributes:
        size: The sizes of the models, and with "tiny" of everything else.
        folder: A folder for weights, sources and servers.
    """

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder, size
        self.device = torch.device("cuda" if size == "full" else "cpu")
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """Minutes since the beginning."""
        return (time.monotonic() - self._began) / 60

    def say(self, line: str) -> None:
        """Print a line with the time."""
        print(f"{self.minutes:4.1f} min  {line}", flush=True)

    def weights(self, name: str, subject: Subject) -> Path:
        """The weights of a model, which are made once."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            subject.save(folder, self.device)
            torch.cuda.empty_cache()  # for the workers
            self.say(f"{subject.title}: weights")
        return folder

    def videos(self, width: int, height: int, copies: int) -> Work:
        """Videos of 400 frames, or in a tiny run two of 8 frames."""
        full = self.size == "full"
        frames, copies = (400, copies) if full else (8, 2)
        folder = self.folder / f"{width}x{height}-{copies}"
        if not folder.exists():
            write_library(folder, width, height, clips=copies, frames=frames)
        return Work(sorted(folder.iterdir()), copies * frames)

    @contextmanager
    def served(
        self, kind: str, weights: Path, settings: dict[str, Any], *, workers: int = 1, compiled: bool = False
    ) -> Iterator[Serving]:
        """Serve a model by our handler on the GPU; a line says how long it took to load."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            handlers = Path(name) / "handlers"
            shutil.copytree(HANDLERS, handlers, ignore=shutil.ignore_patterns("__pycache__"))
            whole = yaml.safe_load((handlers / f"{kind}.yaml").read_text())
            whole |= {"minWorkers": workers, "maxWorkers": workers}
            whole["handler"] |= settings
            (handlers / f"{kind}.yaml").write_text(yaml.safe_dump(whole))
            gpus = archive.GpuWorkers((0,), workers) if self.size == "full" else archive.GpuWorkers()
            store = Path(name) / "store"
            archive.build(kind, kind, str(weights), store, gpus=gpus, compiled=compiled, handlers=handlers)
            with serve(Path(name), kind, CONFIG) as serving:
                seconds = time.monotonic() - began
                self.say(f"{kind}, workers: {workers}{', compiled' * compiled}: ready after {seconds:.0f} s")
                yield serving

    def measure(self, name: str, work: Callable[[], float]) -> None:
        """Print what `work` returns, items per second, and how busy the GPU was meanwhile."""
        query = [
            "nvidia-smi",
            "--query-gpu=utilization.gpu,memory.used",
            "--format=csv,noheader,nounits",
            "-lms",
            "250",
        ]
        with tempfile.TemporaryFile("w+") as log:
            watcher = subprocess.Popen(query, stdout=log) if shutil.which("nvidia-smi") else None
            try:
                rate = work()
            finally:
                if watcher:
                    watcher.kill()
                    watcher.wait()
            log.seek(0)
            samples = [[int(word) for word in line.split(",")] for line in log.read().splitlines()[:-1]]
        busy, memory = np.array(samples or [[0, 0]]).T
        self.say(
            f"{name}: {rate:.1f}/s" + (f", busy {busy.mean():.0f} %, memory {memory.max()} MiB" if samples else "")
        )


def client_rate(way: Way, service: Service, work: Work) -> float:
    """Items per second of a client."""
    return run(way, service, work)[0].per_second


def caption_frames(day: Day, serving: Serving, name: str, *works: Work) -> None:
    """Caption all frames of videos by our client, after one of them to warm up."""
    service = Service.ours(serving)
    way = Way("ours", "peers.captions.our_client", ("--resize", "fast", "--network", "--model", "caption"))
    for work in works:
        run(way, service, Work(work.sources[:1], work.items // len(work.sources)))
        day.measure(f"{name}, {work.sources[0].parent.name}", partial(client_rate, way, service, work))


def captions(day: Day) -> None:
    """The step of that name."""
    for workers in (1, 2):
        with day.served("caption", day.weights("blip2", blip2(day.size, 16)), CAPTION, workers=workers) as serving:
            works = [day.videos(480, 270, 30), *([day.videos(1920, 1080, 8)] if workers == 1 else [])]
            caption_frames(day, serving, f"captions, workers: {workers}", *works)


def compiled(day: Day) -> None:
    """The step of that name."""
    with day.served("caption", day.weights("blip2", blip2(day.size, 16)), CAPTION, compiled=True) as serving:
        caption_frames(day, serving, "captions, compiled", day.videos(480, 270, 30))


def blog(day: Day) -> None:
    """The step of that name; prebatches have 32 frames of 480x270, and 8 of 1080p."""
    folder = day.folder / "blog"
    folder.mkdir()
    with serve_blog(folder, weights=day.weights("blip2", blip2(day.size, 16)), **CAPTION["generation"]) as service:
        for work, prebatch in ((day.videos(480, 270, 4), "32"), (day.videos(1920, 1080, 2), "8")):
            options = ("--reading", "prebatch", "--in-flight", "32", "--prebatch", prebatch)
            way = Way("blog", "peers.captions.blog_clients", options)
            run(way, service, Work(work.sources[:1], work.items // len(work.sources)))
            day.measure(f"blog, {work.sources[0].parent.name}", partial(client_rate, way, service, work))


def alone(day: Day) -> None:
    """The step of that name."""
    for model, batches in (("blip2", "32 512"), ("qwen3vl", "8 16"), ("whisper", "32")):
        few = ["--size", "tiny", "--device", "cpu", "--clip-size", "96x64"] if day.size == "tiny" else []
        words = ["--models", model, "--variants", "bf16", "compiled", "--rounds", "2", "--clip-tokens", "32", *few]
        words += ["--batches", *(batches.split() if day.size == "full" else "2")]
        done = subprocess.run(
            [sys.executable, Path(__file__).parent / "gpu.py", *words], capture_output=True, text=True
        )
        table = [line for line in done.stdout.splitlines() if ", bf16" in line or ", compiled" in line]
        day.say("\n".join([f"alone, {model}", *table] if table else [done.stderr[-2000:]]))


def command_rate(day: Day, serving: Serving, words: list[str], sources: Path, items: float) -> float:
    """Items per second of a whole command."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=day.folder) as out:
        words = [*words, str(sources), "-o", out, "--directory", str(serving.instance.directory), "--quiet"]
        subprocess.run([sys.executable, "-c", OVER_TCP, *words], env=environment(), check=True)
    return items / (time.monotonic() - began)


def clips(day: Day) -> None:
    """The step of that name: clips of 4 s, of videos of 16 s."""
    full = day.size == "full"
    work, seconds, each = day.videos(1280, 720, 24), *(("4", 4) if full else ("0.32", 1))
    words = ["caption", "--clips", "windows", "--clip-seconds", seconds, "--thumbnails", "0"]
    weights = day.weights("qwen3vl", qwen3_vl(day.size, 32, 10, 1280, 720))
    for name, compiled in (("clips", False), ("clips, compiled", True)):
        with day.served("clip", weights, CLIP, compiled=compiled) as serving:
            count = each * len(work.sources)
            day.measure(name, partial(command_rate, day, serving, words, work.sources[0].parent, count))


def speech(day: Day) -> None:
    """The step of that name: recordings of noise."""
    folder, count, seconds = day.folder / "noise", *((24, 600) if day.size == "full" else (2, 6))
    folder.mkdir()
    for seed in range(count):
        with wave.open(str(folder / f"{seed}.wav"), "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
            noise = np.random.default_rng(seed).normal(0, 3000, seconds * SAMPLE_RATE)
            file.writeframes(noise.astype(np.int16).tobytes())
    suppressed = list(range(TEXT_TOKENS[day.size], whisper_config(day.size).vocab_size))
    settings = SPEECH | {"generation": {"max_new_tokens": 100, "suppress_tokens": suppressed}}
    weights = day.weights("whisper", whisper(day.size, 100))
    for name, compiled in (("seconds of audio", False), ("seconds of audio, compiled", True)):
        with day.served("speech", weights, settings, compiled=compiled) as serving:
            day.measure(name, partial(command_rate, day, serving, ["transcribe"], folder, count * seconds))


STEPS = {step.__name__: step for step in (captions, blog, compiled, alone, clips, speech)}


def main() -> None:
    """Run the steps."""
    parser = command_parser(__doc__)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--minutes", type=float, default=9, help="no step begins later")
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        day = Day(Path(folder), "tiny" if options.tiny else "full")
        gpu = "a CPU, so that figures mean nothing" if options.tiny else torch.cuda.get_device_name()
        day.say(f"torch {torch.__version__}, transformers {transformers.__version__}, on {gpu}")
        for step in options.steps:
            if day.minutes > options.minutes:
                day.say(f"{step}: no time is left")
                continue
            STEPS[step](day)


if __name__ == "__main__":
    run_command(main)
