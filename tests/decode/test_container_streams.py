"""Of several video streams, the one that a player shows is read, wherever a file is opened."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from reelscribe.contract.frames import InputSize
from reelscribe.decode_pool.child_main import read_header
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from support import videos

DEFAULT, UNMARKED = Disposition.default, Disposition(0)
SMALL, LARGE = (64, 48), (96, 64)


def write(path: Path, *streams: tuple[tuple[int, int], Disposition]) -> Path:
    """A file of a video stream for each (size, disposition), 5 frames a second of the first, 10 of the next..."""
    with av.open(str(path), "w") as file:
        added = []
        for number, ((width, height), disposition) in enumerate(streams):
            stream = file.add_stream("libx264", rate=5 * (number + 1))
            stream.width, stream.height, stream.pix_fmt, stream.disposition = width, height, "yuv420p", disposition
            added.append((stream, 5 * (number + 1)))
        for stream, rate in added:
            for number in range(2 * rate):
                frame = av.VideoFrame.from_ndarray(np.full((stream.height, stream.width, 3), 99, np.uint8))
                frame.pts, frame.time_base = number, Fraction(1, rate)
                file.mux(stream.encode(frame))
            file.mux(stream.encode())
    return path


SECOND = {
    "default.mkv": [(SMALL, UNMARKED), (SMALL, DEFAULT)],
    "default-is-small.mp4": [(LARGE, UNMARKED), (SMALL, DEFAULT)],
    "both-default.mkv": [(SMALL, DEFAULT), (LARGE, DEFAULT)],
    "none-default.mkv": [(SMALL, UNMARKED), (LARGE, UNMARKED)],
    "recording.ts": [(SMALL, UNMARKED), (LARGE, UNMARKED)],
}


@pytest.mark.parametrize("name", SECOND)
def test_the_default_flag_decides_or_else_the_size(tmp_path, name):
    path = write(tmp_path / name, *SECOND[name])
    width, height = SECOND[name][1][0]
    assert len(videos.read(path, InputSize(width, height))) == 20
    assert read_header(str(path)).frames_per_second == 10
    assert videos.info_of(path).width == width


def test_of_equal_streams_the_first_is_read(tmp_path):
    path = write(tmp_path / "equal.mkv", (SMALL, UNMARKED), (SMALL, UNMARKED))
    assert videos.info_of(path).frames == 10


def write_avif(path, levels):
    """A file of pictures of these levels. SVT-AV1 gives the thread that encodes the highest priority there is, which no
    process that the tests start later may inherit."""
    pictures = [np.full((64, 64, 3), level, np.uint8) for level in levels]
    with ThreadPoolExecutor(1) as thread:
        thread.submit(videos.write_pictures, path, "libsvtav1", pictures).result()
    return path


def test_an_animated_avif_is_its_animation(tmp_path):
    levels = range(40, 240, 10)
    path = write_avif(tmp_path / "animated.avif", levels)
    frames = videos.read(path, InputSize(64, 64))
    assert [round(image.mean()) for _, _, image in frames] == pytest.approx(list(levels), abs=3)
    assert len(list(make_thumbnails(path, [0.0, 1.0]))) == 2
    assert read_header(str(path)).frames_per_second == 10


def test_a_picture_alone_is_a_video_of_one_frame(tmp_path):
    path = write_avif(tmp_path / "still.avif", [99])
    assert len(videos.read(path, InputSize(64, 64))) == 1
