"""What each way of scaling frames costs, and how far its pixels are from the models' own processors'.

    .venv/bin/python bench/resize.py [--rounds 5]

Reads noisy, textured clips (H.264) as a decode process does, on one core; every round runs all ways once. The table
shows frames per second of process CPU, as median and, in brackets, smallest and largest, and the difference of levels
(0 to 255) from `exact`: their mean, 99.9th percentile and maximum.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.decode.video import Library, Video, VideoTask

SIZE = InputSize(224, 224)
CLIPS = ((1920, 1080, 60), (640, 360, 240))
"""Width, height and frames."""
WAYS: dict[str, tuple[Resize, Library]] = {
    "exact": ("exact", "av"),
    "planes": ("planes", "av"),
    "fast": ("fast", "av"),
    "decord": ("exact", "decord"),
}
"""Mode, and the library that decodes."""


def texture(width: int, height: int) -> Any:
    """(height, width, 3) float32: noise of all scales, as in natural pictures, around the middle grey."""
    rng = np.random.default_rng(0)
    total = np.zeros((height, width, 3), np.float32)
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        size = (width // step + 2, height // step + 2)
        for channel in range(3):
            layer = Image.fromarray(rng.normal(0, step**0.6, size[::-1]).astype(np.float32))
            large = layer.resize((size[0] * step, size[1] * step), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(large)[:height, :width]
    return 128 + total / total.std() * 50


def write_clip(path: Path, width: int, height: int, frames: int) -> None:
    """The texture, panned, with grain."""
    canvas, rng = texture(width + 2 * frames, height + frames), np.random.default_rng(1)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"preset": "veryfast", "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(frames):
            noisy = canvas[k : k + height, 2 * k : 2 * k + width] + rng.normal(0, 3, (height, width, 1))
            picture = av.VideoFrame.from_ndarray(noisy.clip(0, 255).astype(np.uint8), format="rgb24")
            picture.pts, picture.time_base = k, Fraction(1, 25)
            file.mux(stream.encode(picture))
        file.mux(stream.encode())


def read(path: Path, way: str, keep: int) -> tuple[float, FrameArray]:
    """Frames per second of process CPU, from opening the file on, and the first `keep` frames."""
    mode, library = WAYS[way]
    kept, count = [], 0
    start = time.process_time()
    with Video(VideoTask(str(path), SIZE, resize=mode, library=library)) as video:
        for count, frame in enumerate(video.frames(range(len(video.chosen))), 1):
            assert frame.image is not None
            if count <= keep:
                kept.append(np.array(frame.image))
    return count / (time.process_time() - start), np.stack(kept)


def measure(path: Path, rounds: int) -> None:
    """The rows of one clip."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    frames: dict[str, FrameArray] = {}
    for _ in range(rounds):
        for way in WAYS:
            rate, frames[way] = read(path, way, 60)
            rates[way].append(rate)
    for way, measured in rates.items():
        off = np.abs(frames[way].astype(int) - frames["exact"])
        speed = f"{median(measured):.0f} [{min(measured):.0f}-{max(measured):.0f}]"
        print(f"{path.stem:12}{way:16}{speed:>18}{off.mean():>8.2f}{np.percentile(off, 99.9):>8.0f}{off.max():>6}")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'clip':12}{'way':16}{'frames/s':>18}{'mean':>8}{'99.9 %':>8}{'max':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for width, height, frames in CLIPS:
            path = Path(folder) / f"{width}x{height}.mp4"
            write_clip(path, width, height, frames)
            measure(path, rounds)


if __name__ == "__main__":
    main()
