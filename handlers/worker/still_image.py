"""Turns a JPEG, PNG or WebP still into one frame of a model's input size.

A still is scaled as soon as it is decoded, so of a call with many stills, each thread that decodes holds one at full
size.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import ExifTags, Image, PngImagePlugin, UnidentifiedImageError

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.scaling import fit, flatten
from reelscribe.errors import FramesError, LimitExceeded, OutOfDeviceMemory, RequestError, WireError
from worker.body_file import BodyFile

warnings.filterwarnings("ignore", module=r"PIL\.")
"""Pillow warns of sizes below its own limit and of odd metadata. Filters belong to the process, not to a thread, so
this one cannot be set and removed around each still."""

MAX_PIXELS = 50_000_000
"""The most pixels of one still.

Decoding that many takes up to 2 s and, for a moment, 0.2 GB (JPEG, PNG), 0.4 GB (rotated) or 0.8 GB (WebP).
"""

MAX_SCANNED_PIXELS = 16 * MAX_PIXELS
"""The most pixels times scans of a JPEG. A progressive JPEG is decoded once for each of its scans: usually there are
10, in a hostile one thousands."""

MAX_METADATA_PIECES = 16
"""The most pieces of metadata. Pillow joins EXIF pieces in quadratic time, and inflates each colour profile to up to a
megabyte."""

PngImagePlugin.MAX_TEXT_MEMORY = 16 * 2**20
"""Pillow inflates the texts of a PNG, up to so many bytes: in 40 ms, from a body of 16 KB."""

_FORMATS = ("JPEG", "PNG", "WEBP")

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that turns a picture upright, by the value of its EXIF tag Orientation."""


def is_still(body: bytes | bytearray) -> bool:
    """Return whether the first bytes of `body` are those of a JPEG, PNG or WebP file."""
    return body.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP")


def open_still(body: bytes | bytearray) -> Image.Image:
    """Open a still without decoding it: its size is known then, and nothing large is in memory.

    Args:
        body: The bytes of the file.

    Returns:
        A picture of Pillow, for `to_frame`.

    Raises:
        WireError: The file is damaged.
        LimitExceeded: It has too many pixels, scans, pieces of metadata or parts, or takes too long.
        FramesError: It is an animation.
    """
    if body.count(b"Exif\0\0") > MAX_METADATA_PIECES or body.count(b"iCCP") > MAX_METADATA_PIECES:
        raise LimitExceeded(f"still: at most {MAX_METADATA_PIECES} pieces of metadata, got more; save it without")
    with _pillow_errors():
        image = Image.open(BodyFile(body), formats=_FORMATS)  # type: ignore[arg-type]  # IO of typing has more methods
        animated = image.format != "MPO" and getattr(image, "is_animated", False)
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise _too_many_pixels()
    scans = body.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 1
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise LimitExceeded(
            f"still: at most {MAX_SCANNED_PIXELS:,} pixels in all scans together, got more in {scans} scans; save it as"
            " baseline JPEG"
        )
    if animated:  # an MPO file is a JPEG followed by further pictures
        raise FramesError(f"still: expected one picture, got an animated {image.format}; send its frames as an array")
    return image


def to_frame(image: Image.Image, size: InputSize) -> FrameArray:
    """Decode a still, put it on a grey background where it is transparent, turn it upright, and scale it.

    Args:
        image: What `open_still` returned.
        size: The model's input size.

    Returns:
        (height, width, 3) uint8 RGB of that size.

    Raises:
        WireError: The file is damaged.
        LimitExceeded: It has too many parts, or takes too long.
        OutOfDeviceMemory: The decoded picture does not fit the memory.
    """
    with _pillow_errors():
        image.load()
        transpose = _orientation(image)
        if image.mode.startswith("I"):  # 16-bit grey: `convert` would clip everything above 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = flatten(image)
        if transpose is not None:
            image = image.transpose(transpose)
        return fit(image, size)


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """The operation that turns the picture upright; None if it is upright, or its EXIF data is damaged."""
    try:
        orientation: Any = image.getexif().get(ExifTags.Base.Orientation)
        return _TRANSPOSE.get(orientation)
    except Exception:  # noqa: BLE001 - damaged EXIF data raises as many kinds of errors as damaged pixels
        return None


@contextmanager
def _pillow_errors() -> Iterator[None]:
    """Turn whatever Pillow raises for a damaged file into an error of that file's request alone."""
    try:
        yield
    except RequestError:
        raise  # a limit of the file that Pillow reads
    except Image.DecompressionBombError:
        raise _too_many_pixels() from None
    except MemoryError:
        raise OutOfDeviceMemory("still: it does not fit the memory when it is decoded; scale it down") from None
    except Exception as error:  # noqa: BLE001 - Pillow also raises AssertionError, struct.error and others
        raise _damaged(error) from None


def _too_many_pixels() -> LimitExceeded:
    return LimitExceeded(f"still: at most {MAX_PIXELS:,} pixels, got more; scale it down")


def _damaged(error: Exception) -> WireError:
    # Messages of Pillow hold the address of an object, or bytes of the body.
    if isinstance(error, UnidentifiedImageError):
        reason = "its header cannot be read"
    else:
        reason = "it is cut short" if "truncated" in str(error) else "its pixels or metadata cannot be read"
    return WireError(f"still: expected a whole JPEG, PNG or WebP file, got a damaged one: {reason}")
