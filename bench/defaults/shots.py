"""Which detector finds the cuts of videos, and which of them are right?

    scripts/bench defaults/shots [--videos 20]

Videos of 11 shots each are encoded (H.264), in four sizes and at 23.976 to 60 frames a second; two of 20 have a
variable frame rate. Shots have 8 to 90 frames. They are slow and fast pans over a texture, a shape that moves over a
plain background, or still blocks with the grain of a camera; many are dark. Most transitions are hard cuts. In two of
20 videos, every second one is a dissolve of 10 frames, and in two others a fade through black of 23 frames.

The table shows for each detector how many hard cuts it finds within one frame (recall), how many of its cuts are hard
cuts (precision; those in dissolves and fades do not count), in how many dissolves and fades it finds a cut, and how
many frames it looks at per second of process CPU, decoding included.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from lib.command import command_parser, run_command
from libraries import texture
from reelscribe.contract.frames import InputSize
from reelscribe.decode.shots import DEFAULT_THRESHOLDS, Detector, ShotDetection
from reelscribe.decode.video import Video, VideoTask

Image = NDArray[np.float32]
"""(height, width, 3) RGB; values may be outside 0 to 255."""

SIZES = ((320, 180), (480, 270), (256, 144), (180, 320))
RATES = (Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001), Fraction(50), Fraction(60))
SHOTS = 11
DISSOLVES, VARIABLE, FADES = (4, 11), (6, 13), (8, 17)
"""Numbers (of 20) of the videos with dissolves, with a variable frame rate, and with fades through black."""
FADE_FRAMES = 10
"""Frames of a dissolve, and of a fade to or from black."""
BLACK_FRAMES = 3
TICKS = 90_000


@dataclass
class Clip:
    """A video with known cuts."""

    path: Path
    frames: int = 0
    hard: list[int] = field(default_factory=list)
    """The first frame after each hard cut."""
    dissolves: list[range] = field(default_factory=list)
    """The frames of each dissolve."""
    fades: list[range] = field(default_factory=list)
    """The frames of each fade to black and from black."""


@cache
def _texture() -> Image:
    return texture(1280, 1280)


def pan(rng: random.Random, width: int, height: int, frames: int, speed: float = 2.0) -> Iterator[Image]:
    """Yield crops of the texture, in other colours, which move by up to `speed` pixels a frame."""
    tint = np.array([rng.uniform(-50, 50) for _ in range(3)], np.float32) + rng.uniform(-60, 40)
    x, y = (rng.uniform(400, 600) for _ in range(2))
    dx, dy = (rng.choice((-1, 1)) * rng.uniform(speed / 2, speed) for _ in range(2))
    for k in range(frames):
        left, top = (int(np.clip(start + step * k, 0, 900)) for start, step in ((x, dx), (y, dy)))
        yield _texture()[top : top + height, left : left + width] + tint


def fast_pan(rng: random.Random, width: int, height: int, frames: int) -> Iterator[Image]:
    """Yield crops of the texture that move fast."""
    return pan(rng, width, height, frames, speed=8.0)


def shape(rng: random.Random, width: int, height: int, frames: int) -> Iterator[Image]:
    """Yield a plain background with a square that moves over it."""
    plain = np.full((height, width, 3), [rng.uniform(20, 235) for _ in range(3)], np.float32)
    x, speed, colour = rng.uniform(0, width - 40), rng.uniform(-3, 3), [rng.uniform(0, 255) for _ in range(3)]
    for k in range(frames):
        image, left = plain.copy(), int(np.clip(x + speed * k, 0, width - 40))
        image[height // 3 : height // 3 + 40, left : left + 40] = colour
        yield image


def grain(rng: random.Random, width: int, height: int, frames: int) -> Iterator[Image]:
    """Yield coarse blocks that stand still, with noise."""
    random_blocks = np.random.default_rng(rng.randrange(9999)).normal(0, 1, (height // 8 + 1, width // 8 + 1, 3))
    still = 128 + rng.uniform(-80, 60) + 50 * random_blocks.repeat(8, 0).repeat(8, 1)[:height, :width]
    noise = [np.random.default_rng(k).normal(0, 4, still.shape) for k in range(4)]
    for k in range(frames):
        yield (still + noise[k % 4]).astype(np.float32)


KINDS: tuple[Callable[[random.Random, int, int, int], Iterator[Image]], ...] = (pan, fast_pan, shape, grain)


def pictures(clip: Clip, number: int, rng: random.Random) -> list[Image]:
    """Return the frames of a video, and note its transitions in `clip`."""
    images: list[Image] = []
    for k in range(SHOTS):
        length = rng.choice([rng.randint(8, 20), rng.randint(25, 60), rng.randint(40, 90)])
        shot, at = [*rng.choice(KINDS)(rng, *SIZES[number % 4], length)], len(images)
        down = np.linspace(1, 0, min(FADE_FRAMES, len(shot), at) + 2)[1:-1]
        if k % 2 == 0 and k and number % 20 in DISSOLVES:
            for j, share in enumerate(down, at - len(down)):
                images[j] = images[j] * share + shot[0] * (1 - share)
            clip.dissolves.append(range(at - len(down), at + 1))
        elif k % 2 == 0 and k and number % 20 in FADES:
            for j, share in enumerate(down):
                images[at - len(down) + j] = np.clip(images[at - len(down) + j], 0, 255) * share
                shot[j] = np.clip(shot[j], 0, 255) * (1 - share)
            images += [np.zeros_like(shot[0])] * BLACK_FRAMES
            clip.fades.append(range(at - len(down), at + BLACK_FRAMES + len(down) + 1))
        elif k:
            clip.hard.append(at)
        images += shot
    clip.frames = len(images)
    return images


def write_clip(path: Path, number: int) -> Clip:
    """Encode a video and return its cuts."""
    clip, rng, rate = Clip(path), random.Random(number), RATES[number % 5]  # noqa: S311 - a seed is needed, not secrecy
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate, options={"preset": "veryfast", "crf": "23"})
        (stream.width, stream.height), stream.pix_fmt = SIZES[number % 4], "yuv420p"
        stream.codec_context.time_base = Fraction(1, TICKS)
        shown = Fraction(0)
        for image in pictures(clip, number, rng):
            frame = av.VideoFrame.from_ndarray(np.clip(image, 0, 255).astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(shown * TICKS), Fraction(1, TICKS)
            shown += (rng.choice((1, 1, 2)) if number % 20 in VARIABLE else 1) / rate
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return clip


def find_cuts(path: Path, detector: Detector) -> list[int]:
    """Return the frames with which shots begin, but the first."""
    task = VideoTask(str(path), InputSize(1, 1), sampling=None, detection=ShotDetection(detector))
    with Video(task) as video:
        assert video.shots is not None
        return [shot.start_frame for shot in video.shots[1:]]


def matched(truth: list[int], found: list[int]) -> int:
    """Return how many of the true cuts were found within one frame; each cut that was found counts once."""
    left = sorted(found)
    for at in truth:
        near = [cut for cut in left if abs(cut - at) <= 1]
        if near:
            left.remove(min(near, key=lambda cut: abs(cut - at)))
    return len(found) - len(left)


def row(clips: list[Clip], detector: Detector) -> str:
    """Return the row of a detector."""
    hard = right = false = dissolves = dissolved = fades = faded = 0
    began = time.process_time()
    for clip in clips:
        found = find_cuts(clip.path, detector)
        others = [cut for cut in found if all(abs(cut - at) > 1 for at in clip.hard)]
        false += sum(all(cut not in part for part in clip.dissolves + clip.fades) for cut in others)
        hard, right = hard + len(clip.hard), right + matched(clip.hard, found)
        dissolves, fades = dissolves + len(clip.dissolves), fades + len(clip.fades)
        dissolved += sum(any(cut in part for cut in others) for part in clip.dissolves)
        faded += sum(any(cut in part for cut in others) for part in clip.fades)
    rate = sum(clip.frames for clip in clips) / (time.process_time() - began)
    counts = f"{right:>5}/{hard:<5}{right / max(1, hard):>7.1%}{right / max(1, right + false):>11.1%}"
    return f"{detector:10}{counts}{dissolved:>7}/{dissolves:<5}{faded:>5}/{fades:<5}{rate:>10.0f}"


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--videos", type=int, default=20)
    videos = parser.parse_args().videos
    with tempfile.TemporaryDirectory() as folder:
        clips = [write_clip(Path(folder) / f"{k}.mp4", k) for k in range(videos)]
        heading = f"{'detector':10}{'hard cuts':>11}{'recall':>7}{'precision':>11}"
        print(f"{heading}{'dissolves':>13}{'fades':>11}{'frames/s':>10}")
        for detector in DEFAULT_THRESHOLDS:
            print(row(clips, detector), flush=True)


if __name__ == "__main__":
    run_command(main)
