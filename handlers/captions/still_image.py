"""A JPEG, PNG or WebP still becomes one frame of a model's input size.

It is scaled as soon as it is decoded: of many stills in one call of the handler, one at a time is there at full size.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from reelscribe.errors import FramesError, LimitExceeded, OutOfDeviceMemory, WireError
from reelscribe.media import FrameArray, FrameSize
from reelscribe.scaling import fit

MAX_PIXELS = 50_000_000
"""Of one still; decoding that many takes up to 2 s, and for a moment 0.2 (JPEG, PNG), 0.4 (turned) or 0.8 GB (WebP)."""

MAX_SCANNED_PIXELS = 16 * MAX_PIXELS
"""A progressive JPEG is decoded once for each of its scans: 10 are usual, and hostile ones have thousands."""

MAX_PARTS = 64
"""Pieces of metadata that Pillow joins, which takes the square of their number, or inflates, to a megabyte each."""

_FORMATS = ("JPEG", "PNG", "WEBP")

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

    Raises WireError for a damaged file, LimitExceeded for too many pixels or pieces, FramesError for an animation.
    """
    if body.count(b"Exif\0\0") > MAX_PARTS or body.count(b"iCCP") > MAX_PARTS:
        raise LimitExceeded(f"still: at most {MAX_PARTS} pieces of metadata; save it again without")
    with _pillow():
        image = Image.open(io.BytesIO(body), formats=_FORMATS)
        animated = image.format != "MPO" and getattr(image, "is_animated", False)
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise _too_many_pixels(f"{image.width} x {image.height}")
    scans = body.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 1
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise LimitExceeded(f"still: {image.width} x {image.height} pixels in {scans} scans; save it as baseline JPEG")
    if animated:  # an MPO file is a JPEG with further pictures behind it
        raise FramesError(f"still: expected one picture, got an animated {image.format}; send its frames as an array")
    return image


def to_frame(image: Image.Image, size: FrameSize) -> FrameArray:
    """(height, width, 3) uint8 RGB as `size` wants it, upright by its EXIF orientation.

    Raises WireError for a damaged file, OutOfDeviceMemory if it does not fit the memory.
    """
    with _pillow():
        image.load()
        turn = _turn(image)
        if image.mode.startswith("I"):  # 16-bit grey, of which `convert` would keep only what is under 256
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode != "RGB":
            image = image.convert("RGB")
        if turn is not None:
            image = image.transpose(turn)
        return fit(image, size)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """A picture is worth its caption also when what is written about it is damaged."""
    try:
        orientation: Any = image.getexif().get(ExifTags.Base.Orientation)
        return _TURNS.get(orientation)
    except Exception:  # noqa: BLE001 - see _pillow
        return None


@contextmanager
def _pillow() -> Iterator[None]:
    """Whatever Pillow makes of a damaged file becomes an error of that file's request alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own size limit, over ours, and of oddities in metadata
        try:
            yield
        except Image.DecompressionBombError:
            raise _too_many_pixels("hundreds of millions") from None
        except MemoryError:
            raise OutOfDeviceMemory("still: it does not fit the memory when it is decoded; scale it down") from None
        except Exception as error:  # noqa: BLE001 - asserts and struct's errors are among them, and no list is complete
            raise _damaged(error) from None


def _too_many_pixels(got: str) -> LimitExceeded:
    return LimitExceeded(f"still: at most {MAX_PIXELS:,} pixels, got {got}; scale it down")


def _damaged(error: Exception) -> WireError:
    unknown = isinstance(error, UnidentifiedImageError)  # its own message is an object's address
    reason = "its header cannot be read" if unknown else (str(error) or type(error).__name__).partition("\n")[0][:100]
    return WireError(f"still: expected a whole JPEG, PNG or WebP file, got a damaged one: {reason}")
