"""Finds the stretches of audio in which somebody speaks, by their loudness, and the windows in them.

Speech is much louder than what is between words. So of the levels of a chunk, the quietest are those of the room, and
what is clearly louder than these, and not much quieter than the loudest, counts as speech. Music counts as speech, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from speakers.voice_encoder import HOP

_SMALLEST_POWER = 1e-10
"""Lower powers, such as those of digital silence, count as this."""

_SMOOTHED = 5
"""Number of frames over which powers are averaged, so that no single click counts as speech."""

ROOM_PERCENTILE, ROOM_MARGIN_DB = 10, 6.0
"""Percentile of the levels of a chunk that is taken for the room, and how much louder speech is at least."""

LOUD_PERCENTILE, LOUD_RANGE_DB = 95, 35.0
"""Percentile of the levels that is taken for loud speech, and how much quieter other speech is at most."""

QUIETEST_DB = -60.0
"""What is quieter than this, in dB of full scale, is no speech."""

PAUSE_FRAMES = 50
"""Shorter pauses are within a stretch, in frames of 10 ms."""

SHORTEST_FRAMES = 20
"""Shorter stretches are no speech, in frames of 10 ms."""


class Stretch(NamedTuple):
    """A stretch of a chunk in which somebody speaks, in frames of 10 ms."""

    start: int
    """First frame."""
    stop: int
    """Frame after its last one."""
    speaker: int | None = None
    """Number of the speaker among those of the chunk, from 0; None if speakers are not told apart."""


class Window(NamedTuple):
    """A part of a stretch of speech, and the frames around it of which an embedding is made."""

    start: int
    """First frame of the part. The parts of a stretch follow each other."""
    stop: int
    """Frame after its last one."""
    first: int
    """First frame of the window."""
    end: int
    """Frame after its last one."""


def speech_in(samples: NDArray[np.float32]) -> list[Stretch]:
    """Return the stretches with speech, whoever speaks.

    Args:
        samples: (N,) values from -1 to 1.
    """
    hops = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    if not len(hops):
        return []
    powers = np.convolve(np.square(hops, dtype=np.float64).mean(1), np.full(_SMOOTHED, 1 / _SMOOTHED), "same")
    levels = 10 * np.log10(np.maximum(powers, _SMALLEST_POWER))
    room, loud = np.percentile(levels, [ROOM_PERCENTILE, LOUD_PERCENTILE])
    # Where nobody pauses, the quietest levels are those of speech.
    threshold = max(QUIETEST_DB, loud - LOUD_RANGE_DB, min(room + ROOM_MARGIN_DB, loud - 15.0))
    stretches: list[Stretch] = []
    for each in _stretches(levels > threshold):
        if stretches and each.start - stretches[-1].stop < PAUSE_FRAMES:
            stretches[-1] = stretches[-1]._replace(stop=each.stop)
        else:
            stretches.append(each)
    return [each for each in stretches if each.stop - each.start >= SHORTEST_FRAMES]


def alone(own: Sequence[Stretch], stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the parts of a speaker's stretches in which nobody else speaks, but for very short ones.

    Args:
        own: The stretches of the speaker.
        stretches: Those of all speakers of the chunk.
    """
    frames = np.zeros((2, max(each.stop for each in stretches)), bool)  # of the speaker, and of others
    for each in stretches:
        frames[int(each.speaker != own[0].speaker), each.start : each.stop] = True
    stretches = _stretches(frames[0] & ~frames[1], own[0].speaker)
    return [each for each in stretches if each.stop - each.start >= SHORTEST_FRAMES]


def windows_of(start: int, stop: int, length: int, step: int) -> list[Window]:
    """Divide a stretch of speech into parts, each with a window around it that does not leave the stretch.

    Args:
        start: First frame of the stretch.
        stop: Frame after its last one.
        length: Number of frames of a window; those of a shorter stretch are fewer.
        step: Number of frames of a part, about.
    """
    edges = np.linspace(start, stop, max(1, round((stop - start) / step)) + 1).round().astype(int).tolist()
    windows = []
    for first, end in pairwise(edges):
        begin = max(start, min((first + end - length) // 2, stop - length))
        windows.append(Window(first, end, begin, min(stop, begin + length)))
    return windows


def _stretches(active: NDArray[np.bool_], speaker: int | None = None) -> list[Stretch]:
    """Return the stretches of frames that are true, (N,)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], active, [False]])))
    return [Stretch(start, stop, speaker) for start, stop in edges.reshape(-1, 2).tolist()]
