"""Scale, rotate and crop frames with PIL, as the models' own image processors do."""

from __future__ import annotations

import numpy as np
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

_ROTATIONS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
"""PIL's operation for each clockwise angle in degrees; PIL's own angles are counterclockwise."""


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
