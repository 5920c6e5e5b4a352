"""Makes videos whose shots are known, and finds the shots of a video."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, pairwise, repeat
from pathlib import Path

import av
import numpy as np

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import Video, VideoTask

WIDTH, HEIGHT = 160, 90
TICKS = 90_000
"""Ticks of a second, in which every usual frame rate is exact enough."""


def moving(shot: int, frames: int) -> list[np.ndarray]:
    """The pictures of a shot: coloured blocks that move a pixel a frame, (HEIGHT, WIDTH, 3) uint8."""
    blocks = np.random.default_rng(shot).integers(0, 256, (6, 20, 3), np.uint8)
    wide = blocks.repeat(15, 0).repeat(20, 1)
    return [wide[:, k % WIDTH : k % WIDTH + WIDTH] for k in range(frames)]


def cut(*lengths: int) -> list[np.ndarray]:
    """The pictures of shots of these numbers of frames, with hard cuts between them."""
    return [*chain.from_iterable(moving(shot, frames) for shot, frames in enumerate(lengths))]


def write(
    path: Path,
    pictures: Iterable[np.ndarray],
    *,
    rate: Fraction = Fraction(25),
    start: float = 0.0,
    durations: Iterable[int] = repeat(1),
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
) -> list[float]:
    """Write a video, and return the presentation times of its frames in seconds, and that of its end.

    Each frame is shown for its number of `durations`, in units of 1 / rate; the first one begins at `start`.
    """
    ticks = [round(start * TICKS)]
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = WIDTH, HEIGHT, pix_fmt, 2_000_000
        stream.codec_context.time_base = Fraction(1, TICKS)
        shown = start
        for picture, duration in zip(pictures, durations, strict=False):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = round(shown * TICKS), Fraction(1, TICKS)
            shown += float(duration / rate)
            ticks.append(round(shown * TICKS))
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return [tick / TICKS for tick in ticks]


def shots_of(path: Path, detection: ShotDetection | None = None) -> Sequence[Section]:
    """The shots that are found in a video."""
    with Video(VideoTask(str(path), InputSize(1, 1), sampling=None, detection=detection or ShotDetection())) as video:
        assert video.shots is not None
        return video.shots


def cuts_of(path: Path, detection: ShotDetection | None = None) -> list[int]:
    """The frames with which shots begin, but the first; all shots together hold every frame once."""
    shots = shots_of(path, detection)
    assert all(one.end_frame == other.start_frame < other.end_frame for one, other in pairwise(shots))
    assert shots[0].start_frame == 0
    return [shot.start_frame for shot in shots[1:]]
