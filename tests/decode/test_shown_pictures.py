"""Frames look as FFmpeg's own player shows them: turned, cropped, in their own shape, and with nothing hidden."""

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from PIL import ExifTags, Image

from reelscribe.contract.frames import FrameArray, InputSize, PixelBudget, Resize
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import OpenVideo
from reelscribe.viewer.media.preview_maker import make_preview
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from support.odd_media import crop, join
from support.videos import info_of, read, read_with_av, write_pictures

MODES: list[Resize] = ["exact", "fast"]
BUDGET = PixelBudget(factor=8, min_pixels=80 * 48, max_pixels=80 * 64)

CORNERS = np.zeros((96, 128, 3), np.uint8)
CORNERS[:48, :64], CORNERS[:48, 64:], CORNERS[48:, :64], CORNERS[48:, 64:] = 60, 120, 180, 240


def corners(image: FrameArray) -> list[int]:
    """The level at the centre of each quarter, row by row, rounded to those of CORNERS."""
    height, width = image.shape[:2]
    centres = [image[y, x, 0] for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    return [round(int(level) / 60) * 60 for level in centres]


@pytest.mark.parametrize("mode", MODES)
def test_an_odd_angle_loses_the_corners(tmp_path, mode):
    path, matrix = tmp_path / "odd.mp4", [39321, 52428, 0, -52428, 39321, 0, 0, 0, 1 << 30]  # 53 degrees
    write_pictures(path, "libx264", [CORNERS], set_up=lambda stream: stream.set_display_matrix(matrix))
    info, image = info_of(path), read(path, InputSize(128, 96), resize=mode)[0][2].astype(int)
    assert (info.rotation, info.mirrored, info.shown_size) == (53, None, (128, 96))
    expected = np.asarray(Image.fromarray(CORNERS).rotate(-53, Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(image - expected).mean() < 6
    assert image[0, 0].max() < 4


def test_what_a_stream_states_at_keyframes_only_holds_for_all_frames(tmp_path):
    plain, path = tmp_path / "plain.ts", tmp_path / "turned.ts"
    write_pictures(plain, "libx264", [CORNERS] * 12, options={"g": "6", "bf": "2"})
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        video = source.streams.video[0]
        insert = BitStreamFilterContext("h264_metadata=display_orientation=insert:flip=horizontal", video)
        stream = target.add_stream_from_template(video)
        packets = [packet for packet in source.demux(video) if packet.size]
        for packet in [new for each in (*packets, None) for new in insert.filter(each)]:
            packet.stream = stream
            target.mux(packet)
    assert [corners(image) for _, _, image in read(path, InputSize(64, 48))] == [[120, 60, 240, 180]] * 12
    (_, webp), *_ = make_thumbnails(path)
    assert corners(np.asarray(Image.open(io.BytesIO(webp)))) == [120, 60, 240, 180]


def write_jpegs(path: Path, pictures: Sequence[FrameArray], exif: Image.Exif | None = None) -> Path:
    """Ten JPEG files a second, of which each may have another size."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuvj420p"
        for number, picture in enumerate(pictures):
            jpeg = io.BytesIO()
            Image.fromarray(picture).save(jpeg, "JPEG", exif=exif or b"")
            packet = av.Packet(jpeg.getvalue())
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 10), number, number
            packet.is_keyframe = True
            file.mux(packet)
    return path


@pytest.mark.parametrize(
    ("orientation", "rotation", "mirrored", "expected"),
    [(1, 0, False, [60, 120, 180, 240]), (2, 0, True, [120, 60, 240, 180]), (5, 270, True, [60, 180, 120, 240])],
)
@pytest.mark.parametrize("suffix", ["avi", "mov", "mkv"])
def test_pictures_with_exif_data_are_turned_by_it(tmp_path, suffix, orientation, rotation, mirrored, expected):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = write_jpegs(tmp_path / f"exif.{suffix}", [CORNERS], exif)
    assert (info_of(path).rotation, info_of(path).mirrored) == (rotation, mirrored or None)
    assert corners(read(path, InputSize(64, 48))[0][2]) == expected


def square(width: int, height: int, pixel_aspect: Fraction) -> FrameArray:
    """A white square in the middle of a grey frame, half as high as it, if pixels have this shape."""
    picture = np.full((height, width, 3), 60, np.uint8)
    half = round(height / 4 / pixel_aspect)
    picture[height // 4 : 3 * height // 4, width // 2 - half : width // 2 + half] = 240
    return picture


SHAPES = {
    "aspect": [(160, 128, Fraction(16, 15)), (160, 128, Fraction(64, 45)), (160, 128, Fraction(16, 15))],
    "size": [(160, 128, Fraction(1)), (320, 256, Fraction(1))],
    "upright": [(160, 128, Fraction(1)), (128, 160, Fraction(1))],
    "both": [(160, 128, Fraction(16, 15)), (240, 128, Fraction(128, 135))],
}


def write_parts(folder: Path, codec: str, suffix: str, parts: Sequence[tuple[int, int, Fraction]]) -> Path:
    """A recording whose frames change their shape twelve frames after it was last changed."""
    paths = []
    for number, (width, height, aspect) in enumerate(parts):

        def shape(stream: av.VideoStream, aspect: Fraction = aspect) -> None:
            stream.codec_context.sample_aspect_ratio = aspect

        paths.append(folder / f"{number}.{suffix}")
        pictures = [square(width, height, aspect)] * 12
        write_pictures(paths[-1], codec, pictures, options={"bf": "2", "g": "6"}, set_up=shape)
    return join(folder / f"whole.{suffix}", *paths)


def sides(image: FrameArray) -> tuple[int, int]:
    """Width and height of the white square."""
    white = image[..., 0] > 150
    return int(white.any(0).sum()), int(white.any(1).sum())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(("codec", "suffix"), [("libx264", "ts"), ("mpeg2video", "mpg"), ("libx264", "h264")])
def test_each_frame_keeps_its_own_shape(tmp_path, codec, suffix, shapes, mode):
    path = write_parts(tmp_path, codec, suffix, SHAPES[shapes])
    frames = [image for _, _, image in read(path, BUDGET, resize=mode)]
    assert len(frames) >= 12 * len(SHAPES[shapes]) - 3
    assert {image.shape for image in frames} == {frames[0].shape}
    for width, height in map(sides, frames):
        assert abs(width - height) <= 2
    first, last = frames[0], frames[-1]
    has_bars = shapes in ("upright", "both")
    assert (first.min() > 40, last[0, 0].max() < 10) == (True, has_bars)


def test_a_model_that_stretches_gets_no_bars_and_thumbnails_and_previews_get_them(tmp_path):
    parts = [square(160, 128, Fraction(1))] * 10 + [square(128, 160, Fraction(1))] * 10
    path = write_jpegs(tmp_path / "upright.mkv", parts)
    assert min(image.min() for _, _, image in read(path, InputSize(64, 64))) > 40
    for mode in MODES:
        cut = [sides(image) for _, _, image in read(path, InputSize(64, 64, shortest_edge=64), resize=mode)]
        assert all(abs(width - height) <= 1 for width, height in cut)
    first, last = (np.asarray(Image.open(io.BytesIO(webp))) for _, webp in make_thumbnails(path, [0.5, 1.5]))
    assert [first.shape, last.shape] == [(128, 160, 3)] * 2
    assert (first.min() > 40, last[:, :20].max() < 20) == (True, True)
    assert all(abs(width - height) <= 2 for width, height in (sides(first), sides(last)))
    make_preview(path, tmp_path / "preview.webm")
    for _, picture in read_with_av(tmp_path / "preview.webm"):
        assert picture.shape == (128, 160, 3)
        assert abs(sides(picture)[0] - sides(picture)[1]) <= 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["aperture.mp4", "crop.mkv"])
def test_what_a_container_cuts_off_is_not_shown(tmp_path, name, mode):
    framed = np.full((112, 160, 3), 255, np.uint8)
    framed[10:106, 32:] = CORNERS
    path = tmp_path / name
    write_pictures(path, "libx264", [framed] * 3, container={"live": "1"} if name == "crop.mkv" else {})
    crop(path, 32, 10, 0, 6)
    info, image = info_of(path), read(path, InputSize(64, 48), resize=mode)[1][2]
    assert (info.width, info.height, info.shown_size) == (128, 96, (128, 96))
    assert image.max() < 245
    assert corners(image) == [60, 120, 180, 240]
    (_, webp), *_ = make_thumbnails(path, [0.1])
    assert Image.open(io.BytesIO(webp)).size == (128, 96)


TRANSPARENT = {
    "rgba.apng": ("apng", "rgba"),
    "grey.apng": ("apng", "ya8"),
    "png.mov": ("png", "rgba64be"),
    "animation.mov": ("qtrle", "argb"),
    "prores.mov": ("prores_ks", "yuva444p10le"),
    "yuva.mkv": ("ffv1", "yuva420p"),
    "deep.mkv": ("ffv1", "gbrap12le"),
    "utvideo.avi": ("utvideo", "gbrap"),
    "exif.mov": ("tiff", "rgba"),
}


def with_alpha(hidden: int) -> FrameArray:
    """(96, 128, 4): a white bar in the middle, the upper half of which is half transparent; the rest is hidden."""
    picture = np.full((96, 128, 4), hidden, np.uint8)
    picture[..., 3] = 0
    picture[:48, 48:80], picture[48:, 48:80] = (240, 240, 240, 128), (240, 240, 240, 255)
    return picture


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TRANSPARENT)
def test_hidden_colours_of_transparent_frames_do_not_show(tmp_path, name, mode):
    codec, pixel_format = TRANSPARENT[name]
    pictures = [with_alpha(hidden) for hidden in [20] * 8 + [220] * 8]

    def frame(picture: FrameArray) -> av.VideoFrame:
        return av.VideoFrame.from_ndarray(picture, format="rgba").reformat(format=pixel_format)

    path = tmp_path / name
    options = {"alpha_bits": "16"} if codec == "prores_ks" else {}
    write_pictures(path, codec, pictures, options=options, to_frame=frame, pix_fmt=pixel_format)
    images = [image[:, ::8, 0].astype(int) for _, _, image in read(path, InputSize(128, 96), resize=mode)]
    assert len(images) == 16
    expected = np.full((96, 16), 128)
    expected[:48, 6:10], expected[48:, 6:10] = 184, 240
    assert max(np.abs(image[4:-4] - expected[4:-4])[:, [0, 3, 8, 12]].max() for image in images) <= 4
    with OpenVideo(str(path), detection=ShotDetection()) as video:
        assert video.shots is not None
        assert len(video.shots) == 1


@pytest.mark.parametrize("suffix", ["gif", "apng"])
def test_palettes_may_be_transparent(tmp_path, suffix):
    pictures = [Image.fromarray(with_alpha(hidden)) for hidden in (20, 220)]
    palettes = [picture.quantize(8) for picture in pictures] if suffix == "apng" else pictures
    path = tmp_path / f"palette.{suffix}"
    palettes[0].save(path, format="PNG" if suffix == "apng" else "GIF", save_all=True, append_images=palettes[1:])
    for _, _, image in read(path, InputSize(128, 96)):
        assert image[48:, ::8, 0].tolist() == [[128] * 6 + [240] * 4 + [128] * 6] * 48


@pytest.mark.parametrize("tag", [b"\0\0\0\0", b"\3\0\0\0", b"WRAW", b"BGRA"])
def test_bytes_that_windows_reserves_are_no_transparency(tmp_path, tag):
    def frame(picture: FrameArray) -> av.VideoFrame:
        return av.VideoFrame.from_ndarray(picture, format="bgra")

    path, hidden = tmp_path / "screen.avi", np.dstack([CORNERS, np.zeros((96, 128), np.uint8)])
    write_pictures(path, "rawvideo", [hidden] * 2, to_frame=frame, pix_fmt="bgra")
    content = bytearray(path.read_bytes())
    at = content.index(b"strf") + 24  # behind a name and a size, in the header of a bitmap
    content[at : at + 4] = tag
    content[at - 8 : at - 4] = struct.pack(
        "<i", 96
    )  # a positive height: rows are stored from below, as Windows has them
    path.write_bytes(content)
    levels = [120] * 4 if tag == b"BGRA" else [180, 240, 60, 120]
    assert corners(read(path, InputSize(64, 48))[0][2]) == levels
    (_, webp), *_ = make_thumbnails(path)
    assert corners(np.asarray(Image.open(io.BytesIO(webp)))) == levels


@pytest.mark.parametrize("suffix", ["avi", "mov"])
def test_all_frames_have_the_palette_that_comes_with_the_first_packet(tmp_path, suffix):
    palette = np.full((256, 4), 255, np.uint8)
    palette[:, 1:] = np.arange(256)[:, None]

    def frame(picture: FrameArray) -> av.VideoFrame:
        return av.VideoFrame.from_ndarray((picture, palette), format="pal8")  # type: ignore[arg-type]

    path, levels = tmp_path / f"raw.{suffix}", [20, 60, 100, 140]
    pictures = (np.full((48, 64), level, np.uint8) for level in levels)
    write_pictures(path, "rawvideo", pictures, to_frame=frame, pix_fmt="pal8")
    assert [image[0, 0, 0] for _, _, image in read(path, InputSize(64, 48))] == levels
    assert [image[0, 0, 0] for _, _, image in read(path, InputSize(64, 48), Sampling(frames=2))] == [20, 140]
