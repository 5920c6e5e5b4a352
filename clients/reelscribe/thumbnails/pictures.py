"""The size, the encoding and the times of thumbnails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image, WebPImagePlugin  # noqa: F401 - otherwise, Pillow imports all of its formats to find this one

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import Times
from reelscribe.thumbnails.store import MOST_PICTURES

LONGER_SIDE = 320
"""Largest side of a thumbnail, in pixels."""

QUALITY = 70
"""Quality of the WebP files, of 100. The pictures of a film then have about 8,000 bytes each."""

EFFORT = 2
"""Effort of the encoder to make a smaller file, from 0 to 6. With 4, its own default, it takes 1.5 times as long, for
files that are a few hundredths smaller."""

USUAL_COUNT = 12
"""Largest number of thumbnails of a source whose shots are not known, if nobody has chosen another one."""

USUAL_SECONDS = 5.0
"""Such a source has no more than one in so many seconds. In short files, encoding more of them takes a good part of the
time of decoding."""


def thumbnail_size(shown_size: tuple[int, int], longer_side: int = LONGER_SIDE) -> InputSize:
    """Return the size of a thumbnail, with the shape of the picture; it is never larger than the picture.

    Args:
        shown_size: Width and height of a frame as players show it, in pixels.
        longer_side: Largest side of the thumbnail, in pixels.
    """
    scale = min(1.0, longer_side / max(shown_size))
    width, height = (max(1, round(side * scale)) for side in shown_size)
    return InputSize(width, height, "bilinear")


def to_webp(picture: FrameArray) -> bytes:
    """Return a picture, (H, W, 3) uint8 RGB, as a WebP file."""
    file = BytesIO()
    Image.fromarray(picture).save(file, "WEBP", quality=QUALITY, method=EFFORT)
    return file.getvalue()


def usual_count(duration: float) -> int:
    """Return the number of thumbnails of a source whose shots are not known, by its duration in seconds."""
    return min(USUAL_COUNT, max(1, math.ceil(duration / USUAL_SECONDS))) if duration < math.inf else USUAL_COUNT


def even_times(duration: float, n: int, start: float = 0.0) -> list[float]:
    """Return the middles of equal parts of a duration.

    Args:
        duration: Duration in seconds; not finite or negative counts as 0.
        n: Number of parts, at least 0.
        start: Presentation time at which the first part begins, in seconds.

    Returns:
        N presentation times in seconds, ascending; one of them if the duration is 0.
    """
    if not 0 < duration < math.inf:
        return [start] if n else []
    return [round(start + duration * (k + 0.5) / n, 3) for k in range(n)]


def moments(most: int | None, shots: Sequence[Section], start: float, end: float) -> list[float]:
    """Return the presentation times in seconds, ascending, of which a source shall have thumbnails, if it can.

    Args:
        most: Number of thumbnails; None for one of each shot or, if there are none, the usual number.
        shots: The shots, in order; none if they are not known.
        start: Presentation time at which the first frame appears, in seconds.
        end: Presentation time at which the last frame disappears, in seconds.
    """
    if most is not None or not shots:
        count = usual_count(end - start) if most is None else most
        return even_times(end - start, min(count, MOST_PICTURES), start)
    middles = [(shot.start_seconds + shot.end_seconds) / 2 for shot in shots]
    count = min(len(middles), MOST_PICTURES)
    return [middles[(2 * k + 1) * len(middles) // (2 * count)] for k in range(count)]


def nearest_frames(chosen: Sequence[int], times: Times, wanted: Sequence[float]) -> set[int]:
    """Return the chosen frames that are nearest to some times.

    Args:
        chosen: Indices of the frames that are decoded anyway, ascending.
        times: Presentation time of each frame of the video in seconds, ascending.
        wanted: The presentation times, in seconds.

    Returns:
        Indices of frames, at most one for each time.
    """
    if not len(chosen):
        return set()
    indices = np.asarray(chosen)
    at = np.asarray(times)[indices]
    after = np.searchsorted(at, wanted).clip(0, len(at) - 1)
    before = (after - 1).clip(0)
    nearest = np.where(np.abs(at[before] - wanted) <= np.abs(at[after] - wanted), before, after)
    return {*indices[nearest].tolist()}
