"""Video of a high dynamic range comes out in the colours that FFmpeg's tone mapping gives it."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelscribe.contract.frames import InputSize, Resize
from reelscribe.contract.source import DynamicRange
from reelscribe.decode.video import Video, VideoTask
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails

REFERENCE = np.load(Path(__file__).parents[1] / "data/hdr_colours/reference.npz")
KINDS = [name.removesuffix(" yuv") for name in REFERENCE if name.endswith(" yuv")]
TRANSFERS = {"pq": 16, "hlg": 18}
"""FFmpeg's numbers of the transfer characteristics."""
BT2020, BT2020_10, UNSPECIFIED, RANGES = 9, 14, 2, {"tv": 1, "pc": 2}
"""FFmpeg's numbers of a matrix, and of the primaries; of a transfer; of what is not stated; and of colour ranges."""
USUAL = "pq yuv420p10le tv"
SIDE, COLUMNS = 16, 21
"""Width and height of the square of each colour in a frame, and how many squares are in a row."""

SIZE = InputSize(8 * COLUMNS, 8 * len(REFERENCE[f"{KINDS[0]} yuv"]) // COLUMNS)
"""Half the size of a frame."""


def write(
    path: Path,
    kind: str,
    codec: str = "ffv1",
    pixel_format: str | None = None,
    *,
    transfer: int | None = None,
    matrix: int = BT2020,
) -> None:
    """A video of two frames with a square of each colour."""
    name, usual_format, levels = kind.split()
    values = REFERENCE[f"{kind} yuv"].reshape(-1, COLUMNS, 3)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = COLUMNS * SIDE, len(values) * SIDE, pixel_format or usual_format
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_range = matrix, BT2020, RANGES[levels]
        context.color_trc = TRANSFERS[name] if transfer is None else transfer
        frame = av.VideoFrame(stream.width, stream.height, stream.pix_fmt)
        for number, plane in enumerate(frame.planes):
            rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
            square = values[..., number].repeat(plane.height // len(values), 0).repeat(plane.width // COLUMNS, 1)
            rows[:, : plane.width] = square
            plane.update(rows)
        frame.color_range = RANGES[levels]
        for number in range(2):
            frame.pts, frame.time_base = number, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def read(path: Path, resize: Resize = "fast") -> tuple[DynamicRange, np.ndarray]:
    """The dynamic range, and the colour at the centre of each square."""
    with Video(VideoTask(str(path), SIZE, resize=resize)) as video:
        image = next(video.frames(range(1))).image
        return video.info.dynamic_range, image[4::8, 4::8].reshape(-1, 3).astype(int)


@pytest.mark.parametrize("resize", ["exact", "fast"])
@pytest.mark.parametrize("kind", KINDS)
def test_colours_are_those_of_ffmpegs_tone_mapping(tmp_path, kind, resize: Resize):
    write(tmp_path / "colours.mkv", kind)
    dynamic_range, colours = read(tmp_path / "colours.mkv", resize)
    off = np.abs(colours - REFERENCE[f"{kind} rgb"])
    assert dynamic_range == kind.split()[0]
    assert off.max() <= 4
    assert off.mean() <= 0.5


def test_a_colour_made_for_a_usual_screen_stays_about_what_it_is():
    red = (REFERENCE[f"{USUAL} yuv"] == (357, 455, 597)).all(1)  # white at 203 cd/m2
    assert REFERENCE[f"{USUAL} rgb"][red].tolist() == [[190, 28, 29]]  # it was (200, 29, 30)


def test_the_matrix_is_that_of_bt2020_if_none_is_stated(tmp_path):
    write(tmp_path / "no-matrix.mkv", USUAL, matrix=UNSPECIFIED)
    assert np.abs(read(tmp_path / "no-matrix.mkv")[1] - REFERENCE[f"{USUAL} rgb"]).max() <= 4


def test_what_the_container_states_counts_where_frames_say_nothing(tmp_path):
    path = tmp_path / "prores.mov"
    write(path, USUAL, "prores_ks", "yuv422p10le")
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.color_trc == TRANSFERS["pq"]
        assert next(container.decode(video=0)).color_trc == UNSPECIFIED
    dynamic_range, colours = read(path)
    assert dynamic_range == "pq"
    assert np.abs(colours - REFERENCE[f"{USUAL} rgb"]).mean() < 1.5  # it does not keep all levels
    ((_, webp),) = make_thumbnails(path, [0.0])
    thumbnail = Image.open(io.BytesIO(webp)).convert("RGB").resize((SIZE.width, SIZE.height))
    shown = np.asarray(thumbnail, int)[4::8, 4::8].reshape(-1, 3)
    assert np.abs(shown - REFERENCE[f"{USUAL} rgb"]).mean() < 8


def test_colours_of_a_standard_dynamic_range_are_not_mapped(tmp_path):
    write(tmp_path / "sdr.mkv", USUAL, transfer=BT2020_10)
    write(tmp_path / "pq.mkv", USUAL)
    dynamic_range, colours = read(tmp_path / "sdr.mkv")
    assert dynamic_range == "sdr"
    assert np.abs(colours - read(tmp_path / "pq.mkv")[1]).mean() > 30
