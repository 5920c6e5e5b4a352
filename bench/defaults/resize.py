"""What does each way of scaling frames cost, and how far are its pixels from those of the models' own processors?

    scripts/bench defaults/resize [--rounds 5]

Clips (H.264) are read as a decode process does, on one core: noisy texture, and the same with small areas of saturated
colours, at whose edges the ways differ most. Every round runs all ways once. The table shows frames per second of
process CPU, as median and, in brackets, smallest and largest, and the difference of pixel values (0 to 255) from
`exact`: mean, 99.9th percentile and maximum.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lib.command import command_parser, run_command
from lib.report import Spread
from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.decode.video import Video, VideoTask
from synthetic.video_files import panned_frames, write_video

SIZE = InputSize(224, 224)
CLIPS = ((1920, 1080, 60), (640, 360, 240))
"""Width, height and number of frames."""
SQUARE = 24
"""Width and height of the areas of saturated colours, in pixels."""
WAYS: tuple[Resize, ...] = ("exact", "fast")
"""Modes of scaling."""


def saturated_frames(width: int, height: int, frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames, (height, width, 3) RGB, of a pan over the texture before which squares of pure colours move."""
    rng = np.random.default_rng(2)
    colours = rng.choice([0, 255], (height // SQUARE + 2, width // SQUARE + frames // SQUARE + 2, 3)).astype(np.uint8)
    squares = colours.repeat(SQUARE, 0).repeat(SQUARE, 1)
    shown = (rng.random(colours.shape[:2]) < 0.3).repeat(SQUARE, 0).repeat(SQUARE, 1)[..., None]
    for k, frame in enumerate(panned_frames(width, height, frames)):
        part = slice(0, height), slice(k, k + width)
        yield np.where(shown[part], squares[part], frame)


def read(path: Path, way: Resize, keep: int) -> tuple[float, FrameArray]:
    """Frames per second of process CPU, including the opening of the file, and the first `keep` frames."""
    kept, count = [], 0
    start = time.process_time()
    with Video(VideoTask(str(path), SIZE, resize=way)) as video:
        for count, frame in enumerate(video.frames(range(len(video.chosen))), 1):
            assert frame.image is not None
            if count <= keep:
                kept.append(np.array(frame.image))
    return count / (time.process_time() - start), np.stack(kept)


def measure(path: Path, rounds: int) -> None:
    """Print the rows of one clip."""
    rates: dict[Resize, list[float]] = {way: [] for way in WAYS}
    frames: dict[Resize, FrameArray] = {}
    for _ in range(rounds):
        for way in WAYS:
            rate, frames[way] = read(path, way, 60)
            rates[way].append(rate)
    for way, measured in rates.items():
        difference = np.abs(frames[way].astype(int) - frames["exact"])
        levels = f"{difference.mean():>8.2f}{np.percentile(difference, 99.9):>8.0f}{difference.max():>6}"
        print(f"{path.stem:22}{way:16}{Spread(tuple(measured))!s:>18}{levels}")


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'clip':22}{'way':16}{'frames/s':>18}{'mean':>8}{'99.9 %':>8}{'max':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, images in (("texture", panned_frames), ("saturated", saturated_frames)):
            for width, height, frames in CLIPS:
                path = Path(folder) / f"{kind}-{width}x{height}.mp4"
                write_video(path, width, height, frames, images)
                measure(path, rounds)


if __name__ == "__main__":
    run_command(main)
