"""Frames are scaled and cut with PIL, as the models' own processors do it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from reelscribe.media import FrameArray, FrameSize

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def fit(image: Image.Image, size: FrameSize) -> FrameArray:
    """An RGB image as (height, width, 3) uint8 of `size`."""
    if image.size == (size.width, size.height):
        return np.asarray(image)
    scaled = size.scaled(*image.size)
    left, top = size.cut(*scaled)
    return np.asarray(image.resize(scaled, _RESAMPLING[size.resample]))[
        top : top + size.height, left : left + size.width
    ]
