"""Frames are scaled, cropped and turned with PIL, and put on a background."""

import numpy as np
import pytest
from PIL import Image

from reelscribe.contract.frames import InputSize
from reelscribe.contract.scaling import fit, flatten, turn

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


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_picture_is_mirrored_and_then_turned_clockwise(degrees, mirrored):
    expected = np.asarray(PICTURE)[:, ::-1] if mirrored else np.asarray(PICTURE)
    assert np.array_equal(np.asarray(turn(PICTURE, degrees, mirrored)), np.rot90(expected, -degrees // 90))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_hidden_colours_of_a_transparent_picture_do_not_show(mode):
    picture = Image.new("RGBA", (3, 1), (200, 200, 200, 0))
    picture.putpixel((1, 0), (200, 200, 200, 255))
    if mode != "P":
        picture.putpixel((2, 0), (200, 200, 200, 128))
    row = np.asarray(flatten(picture.convert(mode)))[0, :, 0]
    assert row.tolist() == [128, 200, 128 if mode == "P" else 164]


def test_a_picture_of_an_absurd_shape_takes_little_memory():
    assert fit(PICTURE, InputSize(30, 30, shortest_edge=30), shown_size=(40 * 65_535, 60)).shape == (30, 30, 3)
