"""Frames are scaled, cropped and rotated with PIL."""

import numpy as np
import pytest
from PIL import Image

from reelscribe.contract.frames import InputSize
from reelscribe.contract.scaling import fit, rotate

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
