"""A JPEG, PNG or WebP still becomes one frame of a model's input size.

It is scaled as soon as it is decoded: of many stills in one call of the handler, one at a time is there at full size.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from reelscribe.errors import FramesError, LimitExceeded, WireError
from reelscribe.media import FrameArray, FrameSize
from reelscribe.scaling import fit

MAX_PIXELS = 50_000_000
"""Of one still: 200 MB when decoded, and twice that while it is turned."""

_FORMATS = ("JPEG", "PNG", "WEBP")
_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, struct.error)
"""What Pillow raises for files that are damaged in one way or another."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF's orientation."""


def is_still(body: bytes | bytearray) -> bool:
    """Whether `body` starts as a JPEG, PNG or WebP file does."""
    return body.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP")


def open_still(body: bytes | bytearray) -> Image.Image:
    """The still in `body`, not decoded yet: its size is known, and nothing large has been made.

    Raises WireError for a damaged file, LimitExceeded for too many pixels, FramesError for an animation.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own size limit, twice ours, and of oddities in metadata
        try:
            image = Image.open(io.BytesIO(body), formats=_FORMATS)
            animated = image.format != "MPO" and getattr(image, "is_animated", False)
        except Image.DecompressionBombError:
            raise _too_many_pixels("hundreds of millions") from None
        except _DAMAGED as error:
            raise _damaged(error) from None
    if image.width * image.height > MAX_PIXELS:
        raise _too_many_pixels(f"{image.width} x {image.height}")
    if animated:  # an MPO file is a JPEG with further pictures behind it
        raise FramesError(f"still: expected one picture, got an animated {image.format}; send its frames as an array")
    return image


def to_frame(image: Image.Image, size: FrameSize) -> FrameArray:
    """(height, width, 3) uint8 RGB as `size` wants it, upright by its EXIF orientation. Raises WireError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image.load()
            turn = _turn(image)
            if image.mode.startswith("I"):  # 16-bit grey, of which `convert` would keep only what is under 256
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            upright = image if turn is None else image.transpose(turn)
            return fit(upright.convert("RGB"), size)
        except _DAMAGED as error:
            raise _damaged(error) from None


def _turn(image: Image.Image) -> Image.Transpose | None:
    """A picture is worth its caption also when what is written about it is damaged."""
    try:
        orientation: Any = image.getexif().get(ExifTags.Base.Orientation)
        return _TURNS.get(orientation)
    except _DAMAGED:
        return None


def _too_many_pixels(got: str) -> LimitExceeded:
    return LimitExceeded(f"still: at most {MAX_PIXELS:,} pixels, got {got}; scale it down")


def _damaged(error: Exception) -> WireError:
    unknown = isinstance(error, UnidentifiedImageError)  # its own message is an object's address
    reason = "its header cannot be read" if unknown else (str(error) or type(error).__name__).partition("\n")[0][:100]
    return WireError(f"still: expected a whole JPEG, PNG or WebP file, got a damaged one: {reason}")
