"""In each way of scaling, frames come out as players show them: rotated, with square pixels, and in their colours."""

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import VideoInfo
from reelscribe.decode.frame_conversion import FrameScaler, Stated
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import Video, VideoTask
from support.videos import read, read_with_av, write_pictures
from synthetic.video_files import write_video

MODES = ["exact", "fast"]

CORNERS = np.zeros((96, 128, 3), np.uint8)
CORNERS[:48, :64], CORNERS[:48, 64:] = (220, 40, 40), (40, 200, 40)
CORNERS[48:, :64], CORNERS[48:, 64:] = (40, 40, 210), (230, 230, 230)


def only_frame(path: Path, size: InputSize, mode: str) -> tuple[VideoInfo, np.ndarray]:
    with Video(VideoTask(str(path), size, resize=mode)) as video:
        image = next(video.frames(range(1))).image
        assert image.shape == (size.height, size.width, 3)
        return video.info, image.astype(int)


def corners(image: np.ndarray) -> list[list[int]]:
    """The colour at the centre of each quarter, row by row."""
    height, width = image.shape[:2]
    return [image[y, x].tolist() for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]


EXPECTED = [pytest.approx(colour, abs=4) for colour in corners(CORNERS)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_frames_are_mirrored_and_turned_as_the_file_states(tmp_path, mode, degrees, mirrored):
    path = tmp_path / "turned.mp4"
    stored = np.rot90(CORNERS, degrees // 90)  # counterclockwise
    stored = np.ascontiguousarray(stored[:, ::-1] if mirrored else stored)
    # FFmpeg mirrors behind the turn.
    turn = degrees if mirrored else -degrees
    write_pictures(path, "libx264", [stored] * 3, set_up=lambda stream: stream.set_display_rotation(turn, mirrored))
    info, image = only_frame(path, InputSize(64, 48), mode)
    assert (info.rotation, info.mirrored, info.shown_size) == (degrees, mirrored or None, (128, 96))
    assert (info.width, info.height) == ((96, 128) if degrees in (90, 270) else (128, 96))
    assert corners(image) == EXPECTED
    _, image = only_frame(path, InputSize(32, 30, shortest_edge=30), mode)
    reference = np.asarray(Image.fromarray(CORNERS).resize((40, 30), Image.Resampling.BICUBIC))[:, 4:36]
    assert np.abs(image - reference).mean() < 4


@pytest.mark.parametrize("mode", MODES)
def test_pixels_that_are_not_square_become_square(tmp_path, mode):
    path = tmp_path / "wide.mp4"

    def twice_as_wide(stream: av.VideoStream) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)

    write_pictures(path, "libx264", [CORNERS] * 3, set_up=twice_as_wide)
    info, image = only_frame(path, InputSize(40, 40, shortest_edge=40), mode)
    assert (info.pixel_aspect, info.shown_size) == (2.0, (256, 96))
    # The frame is scaled to 106 x 40 and cropped to the columns 33 to 73.
    assert corners(image) == EXPECTED
    full = read(path, InputSize(128, 96))[0][2]
    reference = np.asarray(Image.fromarray(full).resize((106, 40), Image.Resampling.BICUBIC))[:, 33:73]
    assert np.abs(image - reference).mean() < 4


BARS = [(r, g, b) for r in (30, 200) for g in (30, 200) for b in (30, 200)]
BAR_PICTURE = np.repeat(np.array(BARS, np.uint8)[None], 64, 0).repeat(32, 1)
"""64 x 256; eight bars."""

BT709, NOT_STATED, BT601, BT2020, LIMITED, FULL = 1, 2, 6, 9, 1, 2
"""FFmpeg's numbers of colour matrices and ranges; in the table below, the number of the matrix in swscale follows."""
COLOURS = {
    "bt709": ("libx264", "yuv420p", BT709, 1, LIMITED),
    "bt601": ("libx264", "yuv420p", BT601, 5, LIMITED),
    "bt2020": ("libx264", "yuv420p", BT2020, 9, LIMITED),
    "not stated": ("libx264", "yuv420p", NOT_STATED, 5, LIMITED),
    "full range, bt709": ("libx264", "yuv420p", BT709, 1, FULL),
    "full range, bt601": ("libx264", "yuvj420p", BT601, 5, FULL),
    "4:4:4": ("libx264", "yuv444p", BT709, 1, LIMITED),
    "4:2:2": ("libx264", "yuv422p", BT709, 1, LIMITED),
    "ten bits": ("libx264", "yuv420p10le", BT709, 1, LIMITED),
    "vp9, full range": ("libvpx-vp9", "yuv420p", BT709, 1, FULL),
    "jpeg": ("mjpeg", "yuvj420p", BT601, 5, FULL),
    "rgb": ("libx264rgb", "rgb24", 0, None, 0),
}


def in_colours(
    pix_fmt: str, matrix: int, swscale: int | None, colour_range: int
) -> Callable[[np.ndarray], av.VideoFrame]:
    def convert(picture: np.ndarray) -> av.VideoFrame:
        rgb = av.VideoFrame.from_ndarray(picture)
        if swscale is None:
            return rgb
        accurate = 4 | 0x40000 | 0x2000
        frame = rgb.reformat(
            format=pix_fmt, dst_colorspace=swscale, dst_color_range=colour_range, interpolation=accurate, threads=1
        )
        frame.colorspace, frame.color_range = matrix, colour_range
        return frame

    return convert


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", COLOURS)
def test_colours_are_converted_with_the_matrix_and_range_of_the_stream(tmp_path, kind, mode):
    codec, pix_fmt, matrix, swscale, colour_range = COLOURS[kind]
    path = tmp_path / "bars.mkv"

    def flag(stream: av.VideoStream) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, colour_range

    to_frame = in_colours(pix_fmt, matrix, swscale, colour_range)
    write_pictures(path, codec, [BAR_PICTURE] * 3, set_up=flag, to_frame=to_frame, pix_fmt=pix_fmt)
    _, image = only_frame(path, InputSize(64, 16), mode)
    middles = image[8, 4::8]
    assert np.abs(middles - np.array(BARS)).max() <= 6


@pytest.mark.parametrize(
    ("lines", "stated", "used"),
    [(720, NOT_STATED, 1), (718, NOT_STATED, 5), (720, BT601, 5), (1080, NOT_STATED, 1), (1080, BT709, 1)],
)
@pytest.mark.parametrize("mode", MODES)
def test_video_of_720_lines_or_more_is_bt709_if_nothing_is_stated(tmp_path, lines, stated, used, mode):
    path = tmp_path / "bars.mkv"
    picture = BAR_PICTURE[:1].repeat(lines, 0)

    def flag(stream: av.VideoStream) -> None:
        stream.codec_context.colorspace = stated

    write_pictures(path, "ffv1", [picture], set_up=flag, to_frame=in_colours("yuv420p", stated, used, LIMITED))
    _, image = only_frame(path, InputSize(64, 16), mode)
    assert np.abs(image[8, 4::8] - np.array(BARS)).max() <= 4


@pytest.mark.parametrize("mode", MODES)
def test_grey_frames_are_grey(tmp_path, mode):
    path = tmp_path / "grey.mkv"
    levels = np.repeat(np.arange(0, 256, 2, dtype=np.uint8)[None], 64, 0)
    write_pictures(
        path, "ffv1", [levels] * 2, to_frame=lambda p: av.VideoFrame.from_ndarray(p, format="gray"), pix_fmt="gray"
    )
    _, exact = only_frame(path, InputSize(32, 16), "exact")
    _, image = only_frame(path, InputSize(32, 16), mode)
    assert np.abs(image - exact).max() <= 3
    assert (image[..., 0] == image[..., 1]).all()


@pytest.mark.parametrize("mode", MODES)
def test_frames_whose_last_row_is_stored_first_are_not_flipped(mode):
    graph = av.filter.Graph()
    buffer = graph.add_buffer(width=128, height=96, format=av.VideoFormat("yuv420p"), time_base=Fraction(1, 10))
    graph.link_nodes(buffer, graph.add("vflip"), graph.add("buffersink")).configure()
    graph.push(av.VideoFrame.from_ndarray(np.ascontiguousarray(CORNERS[::-1])).reformat(format="yuv420p"))
    frame = graph.pull()
    assert frame.planes[0].line_size < 0
    assert corners(FrameScaler(Stated("sdr", 1.0), InputSize(48, 36), mode)(frame).astype(int)) == EXPECTED


def test_exact_scales_the_full_frame_with_pil(media):
    path = media / "same-640x360.webm"
    full = read(path, InputSize(640, 360))[0][2]
    for resample, by in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
        expected = np.asarray(Image.fromarray(full).resize((224, 224), by))
        assert np.array_equal(read(path, InputSize(224, 224, resample))[0][2], expected)
    cut = read(path, InputSize(224, 224, shortest_edge=224))[0][2]
    expected = Image.fromarray(full).resize((398, 224), Image.Resampling.BICUBIC).crop((87, 0, 311, 224))
    assert np.array_equal(cut, np.asarray(expected))
    assert np.abs(full.astype(int) - read_with_av(path)[0][1]).max() < 128  # its colours are slightly wrong


def test_the_quicker_mode_is_almost_exact(tmp_path):
    path = tmp_path / "textured.mp4"
    write_video(path, 640, 360, 4)

    def images(mode: str) -> np.ndarray:
        with Video(VideoTask(str(path), InputSize(224, 224), Sampling(every=1), mode)) as video:
            return np.stack([frame.image for frame in video.frames(range(4))]).astype(int)

    off = np.abs(images("fast") - images("exact"))
    assert off.max() > 0  # otherwise this would compare a mode with itself
    assert off.mean() <= 1
    assert np.percentile(off, 99.9) <= 4
    assert off.max() <= 8


def test_enlarged_frames_are_almost_exact(media):
    path = media / "same-480x270.mp4"
    exact = read(path, InputSize(640, 400))[0][2].astype(int)
    off = np.abs(read(path, InputSize(640, 400), Sampling(every=1), "fast")[0][2] - exact)
    assert off.mean() < 3


def test_the_size_of_frames_may_change_within_a_file(tmp_path):
    small, large, both = tmp_path / "small.ts", tmp_path / "large.ts", tmp_path / "both.ts"
    write_pictures(small, "mpeg2video", [CORNERS] * 5)
    write_pictures(large, "mpeg2video", [CORNERS.repeat(2, 0).repeat(2, 1)] * 5)
    with both.open("wb") as target:
        for part in (small, large):
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    frames = read(both, InputSize(48, 36))
    assert len(frames) >= 5
    assert all(corners(frame.astype(int)) == EXPECTED for _, _, frame in frames)
