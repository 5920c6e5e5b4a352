"""Reading and making video files in tests."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from reelscribe.contract.frames import InputSize, PixelBudget, Resize
from reelscribe.contract.source import VideoInfo
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask

EVERY_FRAME = Sampling(every=1)

Frames = list[tuple[int, float, np.ndarray]]


def read(
    path: Path, frame: InputSize | PixelBudget, sampling: Sampling = EVERY_FRAME, resize: Resize = "exact"
) -> Frames:
    """All frames that are chosen and can be decoded."""
    with Video(VideoTask(str(path), frame, sampling, resize)) as video:
        frames = video.frames(range(len(video.chosen)))
        return [(f.frame_index, f.pts_seconds, f.image) for f in frames if f.image is not None]


def info_of(path: Path) -> VideoInfo:
    """The description of the video stream."""
    with Video(VideoTask(str(path), InputSize(64, 48))) as video:
        return video.info


def read_with_av(path: Path) -> list[tuple[float, np.ndarray]]:
    """(time, full-size frame), decoded one after the other: what a reader that seeks must agree with."""
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def write(
    path: Path,
    codec: str,
    levels: Iterable[int],
    *,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    start: int = 0,
) -> None:
    """A clip of 10 grey frames a second from second `start` on; each frame tells its number by its level."""
    pictures = (np.full((48, 64, 3), level, np.uint8) for level in levels)
    write_pictures(path, codec, pictures, options=options, container=container, pix_fmt=pix_fmt, start=start)


def write_pictures(
    path: Path,
    codec: str,
    pictures: Iterable[np.ndarray],
    *,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    set_up: Callable[[av.VideoStream], None] = lambda stream: None,
    to_frame: Callable[[np.ndarray], av.VideoFrame] = av.VideoFrame.from_ndarray,
    start: int = 0,
) -> None:
    """A clip of 10 frames a second, of (height, width, 3) uint8, that begins at second `start`.

    `set_up` is called before the first frame is encoded.
    """
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=10, options=options or {})
        stream.bit_rate = 4_000_000  # enough to keep the levels apart
        stream.pix_fmt = pix_fmt
        for number, picture in enumerate(pictures):
            frame = to_frame(picture)
            if number == 0:
                stream.width, stream.height = frame.width, frame.height
                set_up(stream)
            frame.pts, frame.time_base = 10 * start + number, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def write_noise(path: Path, frames: int, height: int = 48, width: int = 64) -> Path:
    """An MP4 file of noise, so that each frame takes as many bytes as its pixels do, with a keyframe in each second."""
    chance = np.random.default_rng(1)
    pictures = (chance.integers(0, 255, (height, width, 3), np.uint8) for _ in range(frames))
    write_pictures(path, "libx264", pictures, options={"g": "10", "preset": "ultrafast", "qp": "8"})
    return path


def beginning(source: Path, path: Path, seconds: float) -> None:
    """A copy of all packets of a file that begin before some second, in the same format."""
    with av.open(str(source)) as whole, av.open(str(path), "w") as part:
        streams = {stream.index: part.add_stream_from_template(stream) for stream in whole.streams}
        for packet in whole.demux():
            if packet.dts is not None and packet.dts * packet.time_base < seconds:
                packet.stream = streams[packet.stream_index]
                part.mux(packet)
