"""Frames are scaled, cropped and rotated with PIL, and converted from YUV to RGB."""

import numpy as np
import pytest
from PIL import Image

from reelscribe.contract.frames import InputSize
from reelscribe.contract.scaling import fit, rgb_matrix, rotate, scale_planes

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 40, 3), np.uint8))


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_a_picture_is_stretched_like_pil_does_it(resample):
    expected = PICTURE.resize((24, 16), Image.Resampling[resample.upper()])
    assert np.array_equal(fit(PICTURE, InputSize(24, 16, resample)), np.asarray(expected))


def test_a_picture_of_the_right_size_is_not_changed():
    assert np.array_equal(fit(PICTURE, InputSize(40, 60)), np.asarray(PICTURE))


@pytest.mark.parametrize(
    ("size", "scaled_size", "box"),
    [
        (InputSize(18, 18, shortest_edge=20), (20, 30), (1, 6, 19, 24)),
        # A picture that has the wanted size already is enlarged and cropped too, as the models' own processors do.
        (InputSize(40, 60, shortest_edge=50), (50, 75), (5, 7, 45, 67)),
    ],
)
def test_with_a_shortest_edge_a_picture_is_scaled_and_cropped_at_the_centre(size, scaled_size, box):
    expected = PICTURE.resize(scaled_size, Image.Resampling.BICUBIC).crop(box)
    assert np.array_equal(fit(PICTURE, size), np.asarray(expected))


def test_pixels_that_are_not_square_become_square():
    expected = PICTURE.resize((40, 30), Image.Resampling.BICUBIC).crop((5, 0, 35, 30))
    fitted = fit(PICTURE, InputSize(30, 30, shortest_edge=30), shown_size=(80, 60))
    assert np.array_equal(fitted, np.asarray(expected))


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_is_clockwise(degrees):
    assert np.array_equal(np.asarray(rotate(PICTURE, degrees)), np.rot90(np.asarray(PICTURE), -degrees // 90))


@pytest.mark.parametrize(
    ("yuv", "full_range", "rgb"),
    [
        ((16, 128, 128), False, (0, 0, 0)),
        ((235, 128, 128), False, (255, 255, 255)),
        ((81, 90, 240), False, (254, 0, 0)),  # SMPTE's red, green and blue in BT.601
        ((145, 54, 34), False, (0, 255, 1)),
        ((41, 240, 110), False, (0, 0, 255)),
        ((76, 85, 255), True, (254, 0, 0)),
        ((0, 128, 128), True, (0, 0, 0)),
        ((255, 128, 128), True, (255, 255, 255)),
    ],
)
def test_yuv_becomes_the_rgb_colour_of_the_standard(yuv, full_range, rgb):
    planes = [Image.new("L", (8, 8), yuv[0]), *(Image.new("L", (4, 4), value) for value in yuv[1:])]
    image = scale_planes(planes, (4, 4), "bicubic", rgb_matrix(0.299, 0.114, full_range=full_range))
    assert image.getpixel((2, 2)) == pytest.approx(rgb, abs=1)


def test_luma_without_chroma_is_grey():
    image = scale_planes([Image.new("L", (8, 8), 100)], (4, 4), "bicubic", rgb_matrix(0.299, 0.114, full_range=True))
    assert (np.asarray(image) == 100).all()
