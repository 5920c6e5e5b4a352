"""Stills from anywhere: every orientation and colour mode, and files that lie."""

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps

from reelscribe.contract.frames import InputSize
from reelscribe.contract.scaling import fit
from reelscribe.errors import FramesError, LimitExceeded, OutOfDeviceMemory, WireError
from support.memory import peak_memory
from worker import still_image

SIZE = InputSize(24, 16)
RNG = np.random.default_rng(0)
PICTURE = Image.fromarray(RNG.integers(0, 256, (6, 4, 3), np.uint8)).resize((40, 60), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(body: bytes) -> np.ndarray:
    assert still_image.is_still(body)
    return still_image.to_frame(still_image.open_still(body), SIZE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_stills_are_turned_as_their_exif_data_says(kind, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    body = saved(PICTURE, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(body)))
    assert upright.size == ((40, 60) if orientation < 5 else (60, 40))
    assert np.array_equal(read(body), fit(upright.convert("RGB"), SIZE))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_colour_mode_becomes_rgb(mode):
    grey = Image.fromarray(np.linspace(0, 255, 600, dtype=np.uint8).reshape(20, 30))
    sixteen = Image.fromarray(np.asarray(grey).astype(np.uint16) << 8)
    got = read(saved(sixteen if mode == "I;16" else grey.convert(mode), "PNG"))
    assert got.shape == (16, 24, 3)
    expected = fit((grey.convert(mode) if mode != "I;16" else grey).convert("RGB"), SIZE)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGB", "PNG"), ("RGBA", "WEBP")]
)
def test_hidden_colours_of_a_transparent_still_do_not_show(mode, kind):
    still = Image.new("RGBA", (32, 32), (250, 250, 250, 0))
    still.paste((10, 10, 10, 255), (0, 0, 32, 16))
    options = {"transparency": (250, 250, 250)} if mode == "RGB" else {"lossless": True, "exact": True}
    got = read(saved(still.convert(mode), kind, **options))
    assert np.unique(got[:6]).tolist() == [10]
    assert np.unique(got[-6:]).tolist() == [128]


def test_jpegs_of_other_colour_spaces():
    cmyk = saved(PICTURE.convert("CMYK"), "JPEG", quality=95)
    assert np.abs(read(cmyk).astype(int) - fit(PICTURE, SIZE)).mean() < 8
    assert read(saved(PICTURE.convert("L"), "JPEG")).shape == (16, 24, 3)


def test_the_first_picture_of_a_phone_s_mpo_file_is_used():
    body = saved(PICTURE, "MPO", save_all=True, append_images=[PICTURE.rotate(180)])
    assert np.abs(read(body).astype(int) - fit(PICTURE, SIZE)).mean() < 8


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_animations_are_refused(kind):
    body = saved(PICTURE, kind, save_all=True, append_images=[PICTURE.rotate(180)], duration=100)
    with pytest.raises(FramesError, match=f"expected one picture, got an animated {kind}"):
        still_image.open_still(body)


PNG_START = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG of the size that is claimed, with whatever data."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return PNG_START + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("sides", [(10_000, 5_001), (10_000, 10_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bombs_cost_nothing(sides):
    body = png(*sides)
    with peak_memory() as peak, pytest.raises(LimitExceeded, match="at most 50,000,000 pixels"):
        still_image.open_still(body)
    assert peak() < 1e6


def test_a_jpeg_that_repeats_its_scans_is_refused_before_it_is_decoded():
    body = saved(Image.new("L", (8000, 6000)), "JPEG", progressive=True)
    last = body.rindex(b"\xff\xda")
    bomb = body[:last] + body[last:-2] * 100 + body[-2:]
    assert still_image.open_still(body).size == (8000, 6000)
    with pytest.raises(LimitExceeded, match=r"got more in 10\d scans"):
        still_image.open_still(bomb)


@pytest.mark.parametrize("part", [b"\xff\xe1\0\x0aExif\0\0xx", b"iCCP"])
def test_metadata_in_very_many_pieces_is_refused(part):
    with pytest.raises(LimitExceeded, match="at most 16 pieces of metadata"):
        still_image.open_still(b"\xff\xd8" + part * 17)


def test_an_assertion_error_of_pillow_means_a_damaged_file():
    """A palette's transparency without a palette."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 3, 0, 0, 0)
    data = zlib.compress(b"\0\0")
    body = PNG_START + chunk(b"IHDR", header) + chunk(b"tRNS", b"\0") + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    with pytest.raises(WireError, match="damaged"):
        read(body)


def test_a_still_that_does_not_fit_the_memory_has_an_error_of_its_own(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "resize", no_memory)
    with pytest.raises(OutOfDeviceMemory, match="does not fit the memory"):
        read(WHOLE[0])


def test_a_still_of_no_pixels_is_refused():
    with pytest.raises(WireError, match="damaged"):
        read(png(0, 5))


def test_damaged_exif_data_does_not_cost_the_caption():
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    body = saved(PICTURE, "JPEG", exif=exif)
    at = body.index(b"Exif\0\0")
    damaged = body[: at + 8] + b"\xff" * 12 + body[at + 20 :]
    assert np.array_equal(read(damaged), fit(Image.open(io.BytesIO(damaged)).convert("RGB"), SIZE))


WHOLE = [saved(PICTURE, kind) for kind in ("JPEG", "PNG", "WEBP")]


@pytest.mark.parametrize("body", WHOLE, ids=["JPEG", "PNG", "WEBP"])
def test_a_still_that_was_cut_is_refused_wherever_it_was_cut(body):
    for size in range(12, len(body) - 24):  # after that, no pixel is missing
        with pytest.raises(WireError, match="got a damaged one: "):
            still_image.to_frame(still_image.open_still(body[:size]), SIZE)


@given(st.sampled_from(WHOLE), st.integers(12, 3000), st.binary(min_size=1, max_size=8))
def test_a_damaged_still_is_refused_or_read_and_nothing_else(body, at, damage):
    at %= len(body)
    with suppress(WireError, LimitExceeded, FramesError):
        assert read(body[: max(at, 12)] + damage + body[at + len(damage) :]).shape == (16, 24, 3)
