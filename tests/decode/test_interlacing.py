"""Interlaced video: its frames are scaled as frames, and deinterlaced if that is asked for."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import OpenVideo, Video, VideoTask
from support.videos import write_pictures

FRAMES, SIZE = 40, InputSize(80, 60)
INTERLACED = {
    "h264.mp4": ("libx264", {"x264-params": "tff=1:keyint=10:bframes=2"}),
    "bottom-first.mkv": ("libx264", {"x264-params": "bff=1:keyint=10"}),
    "mpeg2.ts": ("mpeg2video", {"flags": "+ildct+ilme", "g": "12"}),
}


def moment(number: int) -> np.ndarray:
    """A red square that moves before stripes, (240, 320, 3) uint8."""
    rows, columns = np.mgrid[0:240, 0:320]
    picture = np.stack([rows // 2, (2 * columns + rows) % 200, 60 + 0 * rows], 2).astype(np.uint8)
    left = (20 + 5 * number) % 260
    picture[60:160, left : left + 50] = (220, 30, 30)
    return picture


def woven(number: int) -> np.ndarray:
    """A frame whose two fields are of different moments."""
    frame = moment(2 * number)
    frame[1::2] = moment(2 * number + 1)[1::2]
    return frame


@pytest.fixture(params=INTERLACED)
def interlaced(tmp_path, request) -> Path:
    codec, options = INTERLACED[request.param]
    write_pictures(tmp_path / request.param, codec, map(woven, range(FRAMES)), options=options)
    return tmp_path / request.param


def chosen(path: Path, sampling: Sampling, ordinals: range | None = None, **options) -> dict[int, bytes]:
    with Video(VideoTask(str(path), SIZE, sampling, **options)) as video:
        frames = video.frames(ordinals or range(len(video.chosen)))
        return {frame.frame_index: frame.image.tobytes() for frame in frames}


def filtered(path: Path, name: str, *options: str) -> Iterator[av.VideoFrame]:
    """All frames of a file, decoded one after the other, as they come from a filter of FFmpeg."""
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        video.thread_count = 1
        graph = av.filter.Graph()
        source = graph.add_buffer(width=320, height=240, format=video.format, time_base=Fraction(1, 10))
        graph.link_nodes(source, graph.add(name, *options), graph.add("buffersink")).configure()
        for frame in [*container.decode(video=0), None]:
            graph.vpush(frame)
            while True:
                try:
                    yield graph.vpull()
                except (av.error.BlockingIOError, av.error.EOFError):
                    break


def planes(frame: av.VideoFrame) -> bytes:
    return frame.to_ndarray().tobytes()


def test_frames_are_scaled_as_frames(interlaced):
    fast, exact = (chosen(interlaced, Sampling(every=10), resize=resize) for resize in ("fast", "exact"))
    for index in fast:
        off = np.abs(np.subtract(*(np.frombuffer(each[index], np.uint8).astype(int) for each in (fast, exact))))
        assert off.mean() < 1.5
        assert np.percentile(off, 99) < 15


def test_the_mark_of_interlaced_frames_does_not_change_how_they_are_scaled(interlaced):
    with OpenVideo(str(interlaced)) as video:
        scale = video.scaler(SIZE, "fast")
        for (_, marked), unmarked in zip(
            video.decode(range(3)), filtered(interlaced, "setfield", "prog"), strict=False
        ):
            assert (marked.interlaced_frame, unmarked.interlaced_frame) == (True, False)
            assert (scale(marked) == scale(unmarked)).all()
            assert marked.interlaced_frame


WAYS = [
    Sampling(every=1),
    Sampling(every=7),
    Sampling(frames=3),
    Sampling(keyframes=True),
    Sampling(start=1.1, end=1.2),
]


def test_deinterlaced_frames_are_those_of_bwdif_over_the_whole_file(interlaced):
    expected = [planes(frame) for frame in filtered(interlaced, "bwdif", "mode=send_frame:deint=interlaced")]
    assert len(expected) == FRAMES
    with OpenVideo(str(interlaced), deinterlace=True) as video:
        for wanted in (range(FRAMES), range(0, FRAMES, 9), [FRAMES - 1], [0], [3, 4, 20, 22]):
            read = {index: planes(frame) for index, frame in video.decode(wanted)}
            assert read == {index: expected[index] for index in wanted}


@pytest.mark.parametrize("sampling", WAYS, ids=lambda way: way.describe())
def test_the_same_frames_come_however_a_file_is_divided(interlaced, sampling):
    together = chosen(interlaced, sampling, deinterlace=True)
    assert together != chosen(interlaced, sampling)
    step = 1 + len(together) // 5
    parts = [range(k, min(k + step, len(together))) for k in range(0, len(together), step)]
    alone = [chosen(interlaced, sampling, part, deinterlace=True) for part in parts]
    assert {index: image for each in alone for index, image in each.items()} == together


def test_progressive_frames_stay_as_they_are(tmp_path):
    path = tmp_path / "progressive.mp4"
    write_pictures(path, "libx264", map(moment, range(10)))
    assert chosen(path, Sampling(every=1), deinterlace=True) == chosen(path, Sampling(every=1))


def test_frames_too_small_for_the_filter_stay_as_they_are(tmp_path):
    path = tmp_path / "small.mkv"
    write_pictures(path, "ffv1", [np.full((2, 2, 3), 90, np.uint8)] * 5)
    assert chosen(path, Sampling(every=1), deinterlace=True) == chosen(path, Sampling(every=1))


def test_beside_a_frame_that_cannot_be_decoded_the_others_are_deinterlaced(tmp_path):
    path, damaged = tmp_path / "whole.mkv", tmp_path / "damaged.mkv"
    write_pictures(path, "mpeg2video", map(woven, range(10)), options={"flags": "+ildct+ilme", "g": "1"})
    with av.open(str(path)) as container:
        fifth = [bytes(packet) for packet in container.demux(video=0)][5]
    damaged.write_bytes(path.read_bytes().replace(fifth, bytes(len(fifth))))
    with OpenVideo(str(damaged), deinterlace=True) as video:
        together = {index: planes(frame) for index, frame in video.decode(range(10))}
        alone = {index: planes(frame) for wanted in range(10) for index, frame in video.decode([wanted])}
    assert together == alone
    assert {*together} == {*range(10)} - {5}
