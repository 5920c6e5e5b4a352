"""Scale, rotate and crop frames with PIL, as the models' own image processors do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resample

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

_ROTATIONS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
"""PIL's operation for each clockwise angle in degrees; PIL's own angles are counterclockwise."""

_LEFT_SITED = 0.25
"""Distance by which the chroma samples of 4:2:0 and 4:2:2 video lie to the left of the middle between their two luma
samples, in widths of a chroma sample."""


def fit(image: Image.Image, size: InputSize, shown_size: tuple[int, int] | None = None) -> FrameArray:
    """Scale and crop an image to the input size of a captioner.

    Args:
        image: An RGB image.
        size: The input size.
        shown_size: Width and height at which players show the image; None if its pixels are square.

    Returns:
        (size.height, size.width, 3) uint8 RGB.
    """
    scaled_size = size.scaled_size(*(shown_size or image.size))
    return crop(np.asarray(image.resize(scaled_size, _RESAMPLING[size.resample])), size)


def crop(scaled: FrameArray, size: InputSize) -> FrameArray:
    """Return the centre of a scaled (H, W, 3) frame, (size.height, size.width, 3), as a view."""
    height, width = scaled.shape[:2]
    left, top = size.crop_offset(width, height)
    return scaled[top : top + size.height, left : left + size.width]


def rotate(image: Image.Image, degrees: int) -> Image.Image:
    """Rotate an image clockwise by 0, 90, 180 or 270 degrees."""
    return image.transpose(_ROTATIONS[degrees]) if degrees else image


def scale_planes(
    planes: Sequence[Image.Image], scaled_size: tuple[int, int], resample: Resample, matrix: tuple[float, ...]
) -> Image.Image:
    """Scale the planes of a YUV frame one by one and convert the result to RGB.

    The planes of a 4:2:0 frame hold half as many samples as its RGB image, so there is less to scale.

    Args:
        planes: Y, U and V, or Y alone, as 8-bit images.
        scaled_size: Width and height of the result.
        resample: Interpolation.
        matrix: The conversion from YUV to RGB, made by `rgb_matrix`.

    Returns:
        An RGB image of `scaled_size`.
    """
    luma = planes[0]
    bands = [luma.resize(scaled_size, _RESAMPLING[resample])]
    for chroma in planes[1:]:
        left = _LEFT_SITED if chroma.width < luma.width else 0.0
        bands.append(chroma.resize(scaled_size, _RESAMPLING[resample], (left, 0, *chroma.size)))
    bands += [Image.new("L", scaled_size, 128)] * (3 - len(bands))
    return Image.merge("RGB", bands).convert("RGB", matrix)


@cache
def rgb_matrix(red: float, blue: float, *, full_range: bool) -> tuple[float, ...]:
    """Compute the conversion from 8-bit YUV to RGB by the equations of ITU-T H.273.

    Args:
        red: Weight of red in luma, Kr.
        blue: Weight of blue in luma, Kb.
        full_range: Whether luma uses 0 to 255 instead of 16 to 235, and chroma 0 to 255 instead of 16 to 240.

    Returns:
        12 numbers as `PIL.Image.Image.convert` takes them: for each of R, G and B the factors of Y, U and V and an
        offset.
    """
    green = 1 - red - blue
    luma, chroma, black = (1.0, 2.0, 0) if full_range else (255 / 219, 2 * 255 / 224, 16)
    red_v, blue_u = chroma * (1 - red), chroma * (1 - blue)
    uv_factors = ((0.0, red_v), (-blue_u * blue / green, -red_v * red / green), (blue_u, 0.0))
    return tuple(value for u, v in uv_factors for value in (luma, u, v, -luma * black - 128 * (u + v)))
