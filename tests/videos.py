"""Reading and making video files in tests."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from reelscribe.media import FrameSize
from reelscribe.video import Video, VideoTask

Frames = list[tuple[int, float, np.ndarray]]


def read(path: Path, frame: FrameSize, every: int = 1) -> Frames:
    """All that the reader gives."""
    with Video(VideoTask(str(path), frame, every)) as video:
        return list(video.frames())


def read_with_av(path: Path) -> list[tuple[float, np.ndarray]]:
    """(time, full-size frame), decoded one after the other: what a reader with an index must agree with."""
    with av.open(str(path)) as container:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def write(path: Path, codec: str, levels: Iterable[int], *, options: dict[str, str], container: dict[str, str]) -> None:
    """A clip of 10 grey frames a second; each frame tells its number by its level."""
    with av.open(str(path), "w", options=container) as file:
        stream = file.add_stream(codec, rate=10)
        stream.bit_rate = 4_000_000  # enough to keep the levels apart
        stream.width, stream.height, stream.pix_fmt, stream.options = 64, 48, "yuv420p", options
        for k, level in enumerate(levels):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")
            picture.pts, picture.time_base = k, Fraction(1, 10)
            file.mux(stream.encode(picture))
        file.mux(stream.encode())
