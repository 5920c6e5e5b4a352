"""Plan which frames are decoded for those that are wanted, and where decoding may begin.

Frames are stored in another order than they are shown. Nothing here reads a file: everything follows from the index of
a video, that is from which of its frames are keyframes and where each frame is stored.

A closed group of pictures (GOP) reaches from one keyframe to the next: nothing that is shown from it on refers to
anything that is stored before it. So closed GOPs do not depend on each other, and another process may begin to decode
with the first chosen frame of one; its frames are those of one process, byte for byte. Which keyframes begin a closed
GOP depends on the codec; a container also marks others as keyframes, such as frames of H.264 at which an encoder only
begins to renew the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_REORDER = 32
"""Number of frames in front of a frame among which those are counted that are shown after it; no codec needs more."""

MAX_PORTIONS = 50
"""Largest number of portions of a video. More would only make more of the work that each of them costs."""


class DecodeRun(NamedTuple):
    """Wanted frames, and the range of the file to decode for them."""

    keyframe: int
    """Index of the keyframe from which to decode; -1 for the beginning of the file."""
    first: int
    """Position of the run's first frame among the wanted frames."""
    stop: int
    """Position among the wanted frames after the run's last frame."""
    last: int
    """Index of the run's frame that is stored last in the file; -1 if unknown, so decode to the end of the file."""


def plan_runs(
    wanted: Sequence[int], keyframes: NDArray[np.bool_], file_order: NDArray[np.int64]
) -> Iterator[DecodeRun]:
    """Divide wanted frames into runs, so that frames between a run and the next keyframe are not decoded.

    Args:
        wanted: Indices of frames, ascending; at least one.
        keyframes: (frames,) bool, whether each frame is a keyframe, as in `PacketIndex`.
        file_order: (frames,) int64, position of each frame in the file, as in `PacketIndex`.

    Yields:
        The runs, each stored after the one before it in the file.
    """
    starts = _keyframes_before(wanted, keyframes)
    first, last = 0, wanted[0]
    for position in range(1, len(wanted)):
        index, start = wanted[position], int(starts[position])
        if start > wanted[position - 1] + 1 and file_order[start] > file_order[last]:
            yield DecodeRun(int(starts[first]), first, position, last)
            first, last = position, index
        elif file_order[index] > file_order[last]:
            last = index
    yield DecodeRun(int(starts[first]), first, len(wanted), last)


def count_decoded_before(wanted: Sequence[int], keyframes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many frames are decoded before each wanted frame, and before the end.

    Args:
        wanted: Indices of frames, ascending.
        keyframes: (frames,) bool, whether each frame is a keyframe.

    Returns:
        (len(wanted) + 1,) int64, ascending from 0.
    """
    frames = np.asarray(wanted, np.int64)
    begins = np.maximum(np.append(-1, frames)[:-1], _keyframes_before(wanted, keyframes) - 1)
    return np.append(0, np.cumsum(frames - begins))


def _keyframes_before(wanted: Sequence[int], keyframes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the index of the last keyframe that is not behind each wanted frame; -1 if there is none."""
    starts = np.append(-1, np.flatnonzero(keyframes))
    found: NDArray[np.int64] = starts[np.searchsorted(starts, np.asarray(wanted, np.int64), "right") - 1]
    return found


def reorder_depth(file_order: NDArray[np.int64]) -> int:
    """Return the largest number of frames, up to MAX_REORDER, that are stored before a frame and shown after it.

    Args:
        file_order: (frames,) int64, position of each frame in the file, in the order of presentation.
    """
    shown = np.argsort(file_order)
    later = np.zeros(len(shown), np.int64)
    for distance in range(1, min(MAX_REORDER, len(shown))):
        later[distance:] += shown[:-distance] > shown[distance:]
    return int(later.max())


def highest_decoded(file_order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each frame the highest index of those that are decoded up to it, itself included.

    Args:
        file_order: (frames,) int64, position of each frame in the file, in the order of presentation.

    Returns:
        (frames,) int64.
    """
    stored, highest = np.argsort(file_order), np.zeros(len(file_order), np.int64)
    highest[stored] = np.maximum.accumulate(stored)
    return highest


def max_decode_ahead(file_order: NDArray[np.int64]) -> int:
    """Return by how many frames decoding is ahead of presentation at most.

    That many frames may be shown before damage of one that is decoded earlier comes to light.

    Args:
        file_order: (frames,) int64, position of each frame in the file, in the order of presentation.
    """
    return int((highest_decoded(file_order) - np.arange(len(file_order))).max())


def find_closed_gops(
    keyframes: NDArray[np.bool_],
    gop_starts: NDArray[np.bool_],
    file_order: NDArray[np.int64],
    stated_depth: int,
) -> NDArray[np.int64] | None:
    """Find the closed groups of pictures (GOPs) of a video.

    Args:
        keyframes: (frames,) bool, whether each frame is a keyframe.
        gop_starts: (frames,) bool, whether each frame begins a closed GOP.
        file_order: (frames,) int64, position of each frame in the file, in the order of presentation.
        stated_depth: Number of frames for which a decoder waits before it shows one, as far as it knows at first.

    Returns:
        (frames,) int64, number of the GOP of each frame, ascending; None if not all GOPs are closed, or frames are
        stored in an odd order.
    """
    are_closed = keyframes[0] and (keyframes == gop_starts).all()
    # A decoder that does not know how long to wait for frames that are shown earlier loses some at first.
    is_usual = reorder_depth(file_order) <= stated_depth and max_decode_ahead(file_order) <= MAX_REORDER
    return np.cumsum(keyframes) if are_closed and is_usual else None


def find_entry_points(
    chosen: Sequence[int], keyframes: NDArray[np.bool_], gops: NDArray[np.int64], min_frames: float
) -> list[int]:
    """Choose entry points that divide a video into portions.

    Args:
        chosen: Indices of the chosen frames, ascending.
        keyframes: (frames,) bool, whether each frame is a keyframe.
        gops: (frames,) int64, number of the closed GOP of each frame, ascending.
        min_frames: Smallest number of frames to decode for a portion.

    Returns:
        Ordinals of chosen frames, ascending; none if the video has not enough frames or GOPs.
    """
    firsts = np.flatnonzero(np.diff(gops[np.asarray(chosen, np.int64)])) + 1
    return spaced_entry_points(firsts, count_decoded_before(chosen, keyframes), min_frames, MAX_PORTIONS)


def spaced_entry_points(
    possible: NDArray[np.int64], decoded_before: NDArray[np.int64], min_frames: float, max_portions: int
) -> list[int]:
    """Choose some of the possible entry points, so that no portion is small and there are not too many.

    Args:
        possible: Ordinals of chosen frames at which another process may begin, ascending; not 0.
        decoded_before: Number of frames that are decoded before each chosen frame, and before the end, ascending.
        min_frames: Smallest number of frames to decode in a portion.
        max_portions: Largest number of portions.

    Returns:
        The ordinals that are chosen, ascending.
    """
    total = decoded_before[-1]
    min_frames = max(min_frames, total / max_portions)
    spaced, begins = list[int](), 0
    for ordinal in possible.tolist():
        here = decoded_before[ordinal]
        if here - begins >= min_frames and total - here >= min_frames:
            spaced.append(ordinal)
            begins = here
    return spaced
