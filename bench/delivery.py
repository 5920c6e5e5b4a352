"""Does a device of a certain speed get its frames, whatever the resolution of the sources?

    .venv/bin/python bench/delivery.py [--device 100] [--workers 1] [--decode-workers 2] [--clip-frames 150]
                                       [--rounds 3] [--seconds 20]

Serves an emulated device that captions so many frames a second, shared by so many workers, and captions a noisy,
textured clip (H.264) of each resolution with the whole client: decode processes, ledger, records. Every round runs all
resolutions once. The table shows frames per second of the whole run, its start included, and between the first and the
last answer; beside them what decoding alone gives on this machine, with nothing else running; and the longest and the
99th percentile of the event loop's stalls. Median and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import get_args

from reelscribe.bulk import BulkRun, Captions
from reelscribe.client import CaptionClient
from reelscribe.decode_pool import DecodePool
from reelscribe.endpoint import Server
from reelscribe.errors import RequestRefused
from reelscribe.frame_feed import FramePart, FrameReading
from reelscribe.media import FrameArray, FrameSize, Resize, Span
from reelscribe.options import CaptionOptions
from reelscribe.video import VideoTask
from resize import write_clip
from serving import ROOT, Serving, serve_emulated

RESOLUTIONS = ((480, 270), (640, 360), (1280, 720), (1920, 1080))
FRAME = FrameSize(224, 224)


class TimedClient(CaptionClient):
    """Notes when each request was answered."""

    def __init__(self, servers: Sequence[Server], model: str) -> None:
        super().__init__(servers, model)
        self.answers: list[tuple[float, int]] = []
        """Time and number of frames."""

    async def caption(self, frames: FrameArray) -> list[str | RequestRefused]:
        """As its parent does it."""
        captions = await super().caption(frames)
        self.answers.append((time.monotonic(), len(captions)))
        return captions


def make_sources(folder: Path, width: int, height: int, clip_frames: int, frames: int) -> Path:
    """So many frames, in several files: the same clip with other bytes at its end."""
    folder.mkdir(parents=True)
    write_clip(folder / "clip-0.mp4", width, height, clip_frames)
    clip = (folder / "clip-0.mp4").read_bytes()
    for k in range(1, frames // clip_frames):
        (folder / f"clip-{k}.mp4").write_bytes(clip + k.to_bytes(8, "big") + b"free")
    return folder


async def decode_alone(paths: Sequence[Path], options: CaptionOptions) -> float:
    """Frames per second that the decode processes give when nothing is done with them."""
    async with DecodePool(options.decode_workers, 32 * FRAME.nbytes, 4) as pool:

        async def read(path: Path) -> int:
            parts = pool.read(FrameReading(VideoTask(str(path), FRAME, resize=options.resize), 32), [Span()])
            frames = 0
            async with aclosing(parts):
                async for part in parts:
                    if isinstance(part, FramePart):
                        frames += len(part.frames)
                        part.release()
            return frames

        start = time.monotonic()
        frames = sum(await asyncio.gather(*map(read, paths)))
        return frames / (time.monotonic() - start)


async def deliver(serving: Serving, folder: Path, out: Path, options: CaptionOptions) -> tuple[float, float, int, int]:
    """Frames per second of a whole run, and between its answers; longest and 99th percentile of stalls, in ms."""
    client = TimedClient([Server(serving.url, serving.token)], serving.model)
    async with client:
        start = time.monotonic()
        summary = await BulkRun([Captions(client, options)], out).run([str(folder)])
        whole = summary.snapshot.frames / (time.monotonic() - start)
    (first, _), *rest = client.answers
    between = sum(frames for _, frames in rest) / (rest[-1][0] - first)
    return whole, between, summary.snapshot.stall_longest_ms, summary.snapshot.stall_p99_ms


def spread(values: list[float]) -> str:
    """Median [smallest-largest]."""
    return f"{median(values):.0f} [{min(values):.0f}-{max(values):.0f}]"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=float, default=100, help="frames a second")
    parser.add_argument("--workers", type=int, default=1, help="that share the device")
    parser.add_argument("--decode-workers", type=int, default=2)
    parser.add_argument("--clip-frames", type=int, default=150, help="of each source")
    parser.add_argument("--resize", choices=get_args(Resize), default=CaptionOptions().resize)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of the device's time, for each run")
    arguments = parser.parse_args()
    options = CaptionOptions(resize=arguments.resize, decode_workers=arguments.decode_workers)
    rows: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        frames = int(arguments.seconds * arguments.device)
        folders = {
            size: make_sources(root / "x".join(map(str, size)), *size, arguments.clip_frames, frames)
            for size in RESOLUTIONS
        }
        with serve_emulated(
            root / "server",
            ROOT / "config.properties",
            frames_per_second=arguments.device,
            workers=arguments.workers,
        ) as serving:
            for k in range(arguments.rounds):
                for size, folder in folders.items():
                    alone = asyncio.run(decode_alone(list(folder.iterdir()), options))
                    out = root / f"out-{k}-{folder.name}"
                    rows[size].append((alone, *asyncio.run(deliver(serving, folder, out, options))))
    print(f"device {arguments.device:.0f} frames/s, workers {arguments.workers}, --resize {arguments.resize}")
    names = ("decoding alone", "whole run", "between answers", "longest stall, ms", "p99 stall, ms")
    print(f"{'':>10}", *(f"{name:>18}" for name in names))
    for (width, height), figures in rows.items():
        print(f"{width}x{height:<5}", *(f"{spread(list(column)):>18}" for column in zip(*figures, strict=True)))


if __name__ == "__main__":
    main()
