"""Scale, turn and crop frames with PIL, as the models' own image processors do, and put them on a background."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageChops

from reelscribe.contract.frames import FrameArray, InputSize

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

_TURNS = {
    (0, True): Image.Transpose.FLIP_LEFT_RIGHT,
    (90, False): Image.Transpose.ROTATE_270,
    (90, True): Image.Transpose.TRANSVERSE,
    (180, False): Image.Transpose.ROTATE_180,
    (180, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (270, False): Image.Transpose.ROTATE_90,
    (270, True): Image.Transpose.TRANSPOSE,
}
"""PIL's operation for each clockwise angle in degrees, without and with a mirror; PIL's own angles are
counterclockwise."""

BACKGROUND = (128, 128, 128)
"""The colour behind transparent pictures: neither white titles nor black drawings vanish on grey."""


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


def turn(image: Image.Image, degrees: int, mirrored: bool) -> Image.Image:
    """Exchange left and right of an image if it is mirrored, and then turn it clockwise by a multiple of 90 degrees."""
    operation = _TURNS.get((degrees, mirrored))
    return image if operation is None else image.transpose(operation)


def flatten(image: Image.Image) -> Image.Image:
    """Return an image in RGB, on `BACKGROUND` where it is transparent, so that no hidden colour shows."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    flat = image.convert("RGB")
    alpha = image if "A" in image.getbands() else image.convert("RGBA")
    flat.paste(BACKGROUND, mask=ImageChops.invert(alpha.getchannel("A")))
    return flat
