"""Which frames of a video are chosen, by their presentation times."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import UsageError

FEWEST, MOST = 4, 768
"""Frames that can be asked for by their number: FPS_MIN_FRAMES and FPS_MAX_FRAMES of Qwen's video processing."""

SAME_SECONDS = 1e-6
"""Times that differ by less are the same: they are sums of rounded numbers."""


Times = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """Every `every`-th frame, `fps` frames a second, `frames` frames evenly spread, or the keyframes: one of these, or
    else every frame. Only frames from `start` to before `end` count, in seconds from the first frame on.

    Raises UsageError for values that mean nothing.
    """

    every: int | None = None
    fps: float | None = None
    frames: int | None = None
    keyframes: bool = False
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        ways = {"every": self.every, "fps": self.fps, "frames": self.frames, "keyframes": self.keyframes or None}
        given = [f"{name} {value}" for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"sampling: expected one of every, fps, frames and keyframes, got {' and '.join(given)}")
        if not given:
            object.__setattr__(self, "every", 1)
        if self.every is not None and self.every < 1:
            raise UsageError(f"every: expected 1 or more, got {self.every}")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise UsageError(f"fps: expected more than 0 frames a second, got {self.fps}")
        if self.frames is not None and (self.frames % 2 or not FEWEST <= self.frames <= MOST):
            raise UsageError(f"frames: expected an even number from {FEWEST} to {MOST}, got {self.frames}")
        if not 0 <= self._from < math.inf:
            raise UsageError(f"start: expected 0 seconds or more, got {self.start}")
        if self.end is not None and not self._from < self.end < math.inf:
            raise UsageError(f"end: expected more seconds than the start, {self._from}, got {self.end}")

    def choose(self, times: Times, keys: Sequence[bool] | NDArray[np.bool_], end_seconds: float) -> Sequence[int]:
        """Indices of the chosen frames, ascending, each once.

        `times` are presentation times in seconds, ascending; the first need not be 0. `keys` says which frames are
        keyframes, and `end_seconds` when the last frame has been shown.
        """
        if len(times) == 0:
            return range(0)
        since_first = np.asarray(times, np.float64) - times[0]
        first, stop = np.searchsorted(since_first, [self._from - SAME_SECONDS, self._before]).tolist()
        if self.fps is not None:
            until = self.span_end(times, end_seconds) - times[0]
            return _indices(first + self._shown_at_ticks(since_first[first:stop], until))
        if self.frames is not None:
            return _indices(first + _evenly(self.frames, stop - first))
        if self.keyframes:
            return _indices(first + np.flatnonzero(np.asarray(keys, bool)[first:stop]))
        return range(first, stop, self.every or 1)

    def span_end(self, times: Times, end_seconds: float) -> float:
        """When what is chosen has been shown, in seconds as `times` and `end_seconds` are."""
        if self.end is None or len(times) == 0:
            return end_seconds
        return min(float(times[0]) + self.end, end_seconds)

    def to_json(self) -> dict[str, Any]:
        """What is set."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Sampling:
        """The other way round. Raises UsageError, or TypeError for names that are not fields."""
        return cls(**value)

    @property
    def _from(self) -> float:
        return self.start or 0.0

    @property
    def _before(self) -> float:
        return math.inf if self.end is None else self.end - SAME_SECONDS

    def _shown_at_ticks(self, times: NDArray[np.float64], until: float) -> NDArray[np.intp]:
        """Positions in `times` of the frames that are being shown at the ticks, start + k / fps, before `until`.

        Counting the ticks before each frame takes no memory for ticks, however many there are.
        """
        assert self.fps is not None
        fps = min(self.fps, 1 / SAME_SECONDS)
        ticks_before = np.ceil((np.append(times, until) - SAME_SECONDS - self._from) * fps)
        ticks_before[:1] = 0  # the first frame of the span stands at its start, also if it is shown a little later
        return np.flatnonzero(np.diff(ticks_before) > 0)


def _evenly(wanted: int, there: int) -> NDArray[np.intp]:
    """An even number, from the first to the last, as `smart_nframes` and the readers of qwen-vl-utils have it."""
    count = min(wanted, there // 2 * 2) or there
    return np.linspace(0, there - 1, count).round().astype(np.intp)


def _indices(values: NDArray[np.intp]) -> Sequence[int]:
    """As compact as the array, and its items are Python's ints."""
    return array("q", values.astype(np.int64).tobytes())
