"""Find where another process may begin to decode a video, so that its frames are those of one process, byte for byte.

Decoding may begin at a clean keyframe: nothing that is shown from it on refers to anything that is stored before it.
Which keyframes are clean depends on the codec; a container also marks others as keyframes, such as frames of H.264 at
which an encoder only begins to renew the picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_PORTIONS = 50
"""Largest number of portions of a video. More would only make more of what each of them costs."""

MAX_REORDER = 32
"""Number of frames in front of a frame among which those are counted that are shown after it; no codec needs more."""


class EntryPoints:
    """The chosen frames of a video at which another process may begin.

    Args:
        chosen: Indices of the chosen frames, ascending.
        keyframes: Whether each frame is a keyframe.
        clean_keyframes: Whether each frame is a clean keyframe.
    """

    def __init__(
        self,
        chosen: Sequence[int],
        keyframes: NDArray[np.bool_],
        clean_keyframes: NDArray[np.bool_],
    ) -> None:
        self._chosen, self._keyframes = np.asarray(chosen, np.int64), keyframes
        self._clean = clean_keyframes

    def spaced(self, least: float) -> list[int]:
        """Choose entry points that divide the video into portions.

        Args:
            least: Smallest number of frames to decode for a portion.

        Returns:
            Ordinals of chosen frames, ascending; none if the video has not enough frames or no clean keyframes.
        """
        if len(self._keyframes) < 2 * least or len(self._chosen) < 2:
            return []
        ordinals = np.arange(1, len(self._chosen))
        keyframes = self._keyframes_before(ordinals)
        # A keyframe in front of the frame before would be decoded twice.
        possible = (keyframes > self._chosen[:-1]) & self._clean[keyframes]
        return space(ordinals[possible], self._decoded_before(), least, MAX_PORTIONS)

    def lead_in(self, ordinal: int) -> range:
        """Return what must be decoded before a chosen frame, so that decoding gives the frame that one process reads.

        Args:
            ordinal: Ordinal of the chosen frame.

        Returns:
            Indices of the frames; none if it is an entry point.
        """
        first = int(self._chosen[ordinal])
        clean = max(np.flatnonzero(self._clean[: first + 1]).tolist(), default=0)
        keyframe = int(self._keyframes_before(np.array([ordinal]))[0])
        return range(0) if keyframe == clean else range(clean, first)

    def _keyframes_before(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the last keyframe that is not behind each of these chosen frames; -1 if there is none."""
        keyframes = np.append(-1, np.flatnonzero(self._keyframes))
        found: NDArray[np.int64] = keyframes[np.searchsorted(keyframes, self._chosen[ordinals], "right") - 1]
        return found

    def _decoded_before(self) -> NDArray[np.int64]:
        """Return how many frames are decoded before each chosen frame, and before the end."""
        keyframes = self._keyframes_before(np.arange(len(self._chosen)))
        begins = np.maximum(np.append(-1, self._chosen[:-1]), keyframes - 1)
        return np.append(0, np.cumsum(self._chosen - begins))


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
