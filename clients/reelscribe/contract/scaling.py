"""Frames scaled, turned and cut with PIL, as the models' own processors do it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resample

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

_TURNS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
"""By degrees clockwise; PIL's are counterclockwise."""

LEFT_SITED = 0.25
"""Where 4:2:0 and 4:2:2 have their chroma samples: so much of one to the left of the middle between two pixels."""


def fit(image: Image.Image, size: InputSize, shown: tuple[int, int] | None = None) -> FrameArray:
    """An RGB image as (height, width, 3) uint8 of `size`.

    `shown` is the width and height that it is shown with, where its pixels are not square.
    """
    scaled = size.scaled(*(shown or image.size))
    return cut(np.asarray(image.resize(scaled, _RESAMPLING[size.resample])), size)


def cut(scaled: FrameArray, size: InputSize) -> FrameArray:
    """The part of a scaled frame that `size` keeps."""
    height, width = scaled.shape[:2]
    left, top = size.cut(width, height)
    return scaled[top : top + size.height, left : left + size.width]


def turn(image: Image.Image, rotation: int) -> Image.Image:
    """The image turned clockwise by 0, 90, 180 or 270 degrees."""
    return image.transpose(_TURNS[rotation]) if rotation else image


def scale_planes(
    planes: Sequence[Image.Image], scaled: tuple[int, int], resample: Resample, matrix: tuple[float, ...]
) -> Image.Image:
    """Y, U and V, or Y alone, as an RGB image of `scaled` (width, height).

    `matrix` is that of `rgb_matrix`. Scaled each on its own, they are a half of what an RGB image would be.
    """
    luma = planes[0]
    bands = [luma.resize(scaled, _RESAMPLING[resample])]
    for chroma in planes[1:]:
        left = LEFT_SITED if chroma.width < luma.width else 0.0
        bands.append(chroma.resize(scaled, _RESAMPLING[resample], (left, 0, *chroma.size)))
    bands += [Image.new("L", scaled, 128)] * (3 - len(bands))
    return Image.merge("RGB", bands).convert("RGB", matrix)


@cache
def rgb_matrix(red: float, blue: float, *, full_range: bool) -> tuple[float, ...]:
    """What takes Y, U and V of 8 bits to R, G and B: 3 rows of 3 factors and what is added.

    `red` and `blue` are the weights of both in luma, Kr and Kb of ITU-T H.273, whose equations these are.
    """
    green = 1 - red - blue
    luma, chroma, black = (1.0, 2.0, 0) if full_range else (255 / 219, 2 * 255 / 224, 16)
    of_v, of_u = chroma * (1 - red), chroma * (1 - blue)
    rows = ((0.0, of_v), (-of_u * blue / green, -of_v * red / green), (of_u, 0.0))
    return tuple(value for u, v in rows for value in (luma, u, v, -luma * black - 128 * (u + v)))
