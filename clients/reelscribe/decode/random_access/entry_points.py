"""Find where another process may begin to decode a video, so that its frames are those of one process, byte for byte.

Each portion begins with the first chosen frame of a sequence, because sequences do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_PORTIONS = 50
"""Largest number of portions of a video. More would only make more of what each of them costs."""


def find_entry_points(
    chosen: Sequence[int], keyframes: NDArray[np.bool_], sequences: NDArray[np.int64], least: float
) -> list[int]:
    """Choose entry points that divide a video into portions.

    Args:
        chosen: Indices of the chosen frames, ascending.
        keyframes: Whether each frame is a keyframe.
        sequences: Number of the sequence of each frame, ascending.
        least: Smallest number of frames to decode for a portion.

    Returns:
        Ordinals of chosen frames, ascending; none if the video has not enough frames or sequences.
    """
    firsts = np.flatnonzero(np.diff(sequences[np.asarray(chosen, np.int64)])) + 1
    return space(firsts, decoded_before(chosen, keyframes), least, MAX_PORTIONS)


def decoded_before(chosen: Sequence[int], keyframes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many frames are decoded before each chosen frame, and before the end.

    Args:
        chosen: Indices of the chosen frames, ascending.
        keyframes: Whether each frame is a keyframe.
    """
    frames, begins = np.asarray(chosen, np.int64), np.append(-1, np.flatnonzero(keyframes))
    begins = begins[np.searchsorted(begins, frames, "right") - 1]
    return np.append(0, np.cumsum(frames - np.maximum(np.append(-1, frames)[:-1], begins - 1)))


def space(
    possible: NDArray[np.int64], decoded_before: NDArray[np.int64], least: float, most_portions: int
) -> list[int]:
    """Choose some of the possible entry points, so that no portion is small and there are not too many.

    Args:
        possible: Ordinals of chosen frames at which another process may begin, ascending; not 0.
        decoded_before: Number of frames that are decoded before each chosen frame, and before the end, ascending.
        least: Smallest number of frames to decode in a portion.
        most_portions: Largest number of portions.

    Returns:
        The ordinals that are chosen, ascending.
    """
    total = decoded_before[-1]
    least = max(least, total / most_portions)
    spaced, begins = list[int](), 0
    for ordinal in possible.tolist():
        here = decoded_before[ordinal]
        if here - begins >= least and total - here >= least:
            spaced.append(ordinal)
            begins = here
    return spaced
