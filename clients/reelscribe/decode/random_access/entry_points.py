"""Find where another process may begin to decode a video, so that its frames are those of one process, byte for byte.

A closed group of pictures reaches from one clean keyframe to the next: nothing that is shown from it on refers to
anything that is stored before it. So groups do not depend on each other, and each portion begins with the first chosen
frame of one. Which keyframes are clean depends on the codec; a container also marks others as keyframes, such as frames
of H.264 at which an encoder only begins to renew the picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reelscribe.decode.random_access.decode_order import MAX_REORDER, decoded_before, most_held, reorder_depth

MAX_PORTIONS = 50
"""Largest number of portions of a video. More would only make more of what each of them costs."""


def find_groups(
    keyframes: NDArray[np.bool_],
    clean_keyframes: NDArray[np.bool_],
    file_order: NDArray[np.int64],
    stated_depth: int,
) -> NDArray[np.int64] | None:
    """Find the groups of pictures of a video.

    Args:
        keyframes: Whether each frame is a keyframe.
        clean_keyframes: Whether each frame is a clean keyframe.
        file_order: Position of each frame among the frames as stored in the file, in the order of presentation.
        stated_depth: Number of frames for which a decoder waits before it shows one, as far as it knows at first.

    Returns:
        Number of the group of each frame, ascending; None if not all groups are closed, or frames are stored in an odd
        order.
    """
    are_closed = keyframes[0] and (keyframes == clean_keyframes).all()
    # A decoder that does not know how long to wait for frames that are shown earlier loses some at first.
    is_usual = reorder_depth(file_order) <= stated_depth and most_held(file_order) <= MAX_REORDER
    return np.cumsum(keyframes) if are_closed and is_usual else None


def find_entry_points(
    chosen: Sequence[int], keyframes: NDArray[np.bool_], groups: NDArray[np.int64], least: float
) -> list[int]:
    """Choose entry points that divide a video into portions.

    Args:
        chosen: Indices of the chosen frames, ascending.
        keyframes: Whether each frame is a keyframe.
        groups: Number of the group of each frame, ascending.
        least: Smallest number of frames to decode for a portion.

    Returns:
        Ordinals of chosen frames, ascending; none if the video has not enough frames or groups.
    """
    firsts = np.flatnonzero(np.diff(groups[np.asarray(chosen, np.int64)])) + 1
    return space(firsts, decoded_before(chosen, keyframes), least, MAX_PORTIONS)


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
