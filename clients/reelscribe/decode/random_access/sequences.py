"""Divide a video into coded sequences, each of which a decoder shows alike whatever it has decoded before.

A sequence reaches from one clean keyframe to the next: nothing that is shown from it on refers to anything that is
stored before it. Which keyframes are clean depends on the codec; a container also marks others as keyframes, such as
frames of H.264 at which an encoder only begins to renew the picture.

What a decoder makes of damage may show what its memory still has from before, so a damaged sequence needs a decoder
that has decoded nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_REORDER = 32
"""Number of frames in front of a frame among which those are counted that are shown after it; no codec needs more."""


def find_sequences(
    clean_keyframes: NDArray[np.bool_], file_order: NDArray[np.int64], stated_depth: int
) -> NDArray[np.int64] | None:
    """Find the sequences of a video.

    Args:
        clean_keyframes: Whether each frame is a clean keyframe.
        file_order: Position of each frame among the frames as stored in the file, in the order of presentation.
        stated_depth: Number of frames for which a decoder waits before it shows one, as far as it knows at first.

    Returns:
        Number of the sequence of each frame, ascending; None if they depend on each other.
    """
    # A decoder that does not know how long to wait for frames that are shown earlier loses some at first.
    is_known = clean_keyframes[0] and reorder_depth(file_order) <= stated_depth
    return np.cumsum(clean_keyframes) if is_known else None


def reorder_depth(file_order: NDArray[np.int64]) -> int:
    """Return the largest number of frames, up to MAX_REORDER, that are stored before a frame and shown after it.

    Args:
        file_order: Position of each frame among the frames as stored in the file, in the order of presentation.
    """
    shown = np.argsort(file_order)
    later = np.zeros(len(shown), np.int64)
    for distance in range(1, min(MAX_REORDER, len(shown))):
        later[distance:] += shown[:-distance] > shown[distance:]
    return int(later.max())


def shown_last(file_order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each frame the index of the one that is shown last, of those that are stored up to it.

    Args:
        file_order: Position of each frame among the frames as stored in the file, in the order of presentation.
    """
    stored, last = np.argsort(file_order), np.zeros(len(file_order), np.int64)
    last[stored] = np.maximum.accumulate(stored)
    return last
