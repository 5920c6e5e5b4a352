"""Choose frames of a video by their presentation times."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import check_options
from reelscribe.contract.source import Section
from reelscribe.errors import UsageError

DEFAULT_FPS = 1.0
"""Frames that are chosen in each second if nothing else is asked for."""

TIME_TOLERANCE = 1e-6
"""Times count as equal if they differ by less than this many seconds, because they are sums of rounded numbers."""

Times = Sequence[float] | NDArray[np.float64]
"""Presentation times in seconds, ascending."""


@dataclass(frozen=True)
class Sampling:
    """A choice of frames of a video, by at most one of `every`, `fps`, `frames`, `keyframes` and `per_shot`.

    By default one frame a second is chosen. `every=1` chooses all frames.

    Raises:
        UsageError: More than one way to choose frames is given, or a value is out of its range.
    """

    every: int | None = None
    """Choose every n-th frame, beginning with the first; at least 1."""
    fps: float | None = None
    """Choose the frames that are shown at regular times, with this many times per second; more than 0, and DEFAULT_FPS
    if none of the five is given."""
    frames: int | None = None
    """Choose this many evenly spread frames, from the first to the last, or the middle one for 1; at least 1. Of a
    shorter video all frames are chosen."""
    keyframes: bool = False
    """Choose the keyframes."""
    per_shot: int | None = None
    """Choose this many evenly spread frames of each shot, or the middle one for 1; at least 1. Of a shorter shot all
    frames are chosen."""
    start: float | None = None
    """Ignore frames before this time, in seconds from the first frame; None for 0."""
    end: float | None = None
    """Ignore frames from this time on, in seconds from the first frame; None for the end of the video."""

    def __post_init__(self) -> None:
        check_options(self)
        ways = {
            "every": self.every,
            "fps": self.fps,
            "frames": self.frames,
            "keyframes": self.keyframes or None,
            "per_shot": self.per_shot,
        }
        given = [f"{name} {value}" for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise UsageError(
                f"sampling: expected one of every, fps, frames, keyframes and per_shot, got {' and '.join(given)}"
            )
        if not given:
            object.__setattr__(self, "fps", DEFAULT_FPS)
        if self.every is not None and self.every < 1:
            raise UsageError(f"every: expected 1 or more, got {self.every}")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise UsageError(f"fps: expected more than 0 frames a second, got {self.fps}")
        if self.frames is not None and self.frames < 1:
            raise UsageError(f"frames: expected 1 or more, got {self.frames}")
        if self.per_shot is not None and self.per_shot < 1:
            raise UsageError(f"per_shot: expected 1 or more, got {self.per_shot}")
        if not 0 <= self._start < math.inf:
            raise UsageError(f"start: expected 0 seconds or more, got {self.start}")
        if self.end is not None and not self._start < self.end < math.inf:
            raise UsageError(f"end: expected more seconds than the start, {self._start}, got {self.end}")

    def choose(
        self,
        times: Times,
        keyframes: Sequence[bool] | NDArray[np.bool_],
        end_seconds: float,
        shots: Sequence[Section] = (),
    ) -> Sequence[int]:
        """Choose frames of a video.

        Args:
            times: (frames,), presentation time of each frame in seconds, ascending; the first need not be 0.
            keyframes: (frames,), whether each frame is a keyframe.
            end_seconds: Presentation time at which the last frame disappears, in seconds.
            shots: The shots of the video, of which `per_shot` chooses frames.

        Returns:
            Indices of the chosen frames, ascending and without duplicates.
        """
        if len(times) == 0:
            return range(0)
        since_first = np.asarray(times, np.float64) - times[0]
        end = math.inf if self.end is None else self.end
        first, stop = np.searchsorted(since_first, [self._start - TIME_TOLERANCE, end - TIME_TOLERANCE]).tolist()
        if self.fps is not None:
            span_end = self.span_end(times, end_seconds) - times[0]
            return _compact(first + self._shown_at_ticks(since_first[first:stop], span_end))
        if self.frames is not None:
            return _compact(first + _evenly_spread(self.frames, stop - first))
        if self.keyframes:
            return _compact(first + np.flatnonzero(np.asarray(keyframes, bool)[first:stop]))
        if self.per_shot is not None:
            parts = [(max(first, shot.start_frame), min(stop, shot.end_frame)) for shot in shots]
            spread = [start + _centres(self.per_shot, end - start) for start, end in parts if start < end]
            return _compact(np.concatenate([np.zeros(0, np.intp), *spread]))
        return range(first, stop, self.every or 1)

    def describe(self) -> str:
        """Describe in words which frames are chosen, such as "one frame a second" or "every frame from 60 to 90 s"."""
        return self._way_in_words() + self._span_in_words()

    def span_end(self, times: Times, end_seconds: float) -> float:
        """Compute the end of the part of a video from which frames are chosen.

        Args:
            times: Presentation time of each frame in seconds, ascending.
            end_seconds: Presentation time at which the last frame of the video disappears, in seconds.

        Returns:
            Presentation time in seconds.
        """
        if self.end is None or len(times) == 0:
            return end_seconds
        return min(float(times[0]) + self.end, end_seconds)

    def why_empty(self) -> str:
        """Return why no frame was chosen, of a video that has frames."""
        kind = "keyframe" if self.keyframes else "frame"
        if self.start is None and self.end is None:
            return f"no {kind} is in the video"
        remedy = "; give a longer time, or choose with --fps" if self.keyframes else ""
        return f"no {kind} lies between --start and --end{remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a sampling from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The sampling.

        Raises:
            TypeError: A field is unknown.
            UsageError: A value is out of its range.
        """
        return cls(**value)

    @property
    def _start(self) -> float:
        return self.start or 0.0

    def _way_in_words(self) -> str:
        if self.keyframes:
            return "every keyframe"
        if self.per_shot is not None:
            return "the middle frame of each shot" if self.per_shot == 1 else f"{self.per_shot} frames of each shot"
        if self.frames is not None:
            return "the middle frame of each video" if self.frames == 1 else f"{self.frames} frames of each video"
        if self.every is not None:
            return "every frame" if self.every == 1 else f"one of {self.every} frames"
        assert self.fps is not None
        if self.fps == 1:
            return "one frame a second"
        return f"{self.fps:g} frames a second" if self.fps > 1 else f"one frame in {1 / self.fps:g} seconds"

    def _span_in_words(self) -> str:
        if self.start is None:
            return "" if self.end is None else f" up to {self.end:g} s"
        return f" from {self.start:g} s on" if self.end is None else f" from {self.start:g} to {self.end:g} s"

    def _shown_at_ticks(self, times: NDArray[np.float64], end: float) -> NDArray[np.intp]:
        """Return the positions in `times` of the frames that are shown at the ticks start + k / fps before `end`.

        Ticks are counted and never listed, so that a high `fps` does not take more memory.
        """
        assert self.fps is not None
        fps = min(self.fps, 1 / TIME_TOLERANCE)
        ticks_before = np.ceil((np.append(times, end) - TIME_TOLERANCE - self._start) * fps)
        ticks_before[:1] = 0  # the first frame counts as shown at the start, even if it appears a little later
        return np.flatnonzero(np.diff(ticks_before) > 0)


def _evenly_spread(wanted: int, available: int) -> NDArray[np.intp]:
    """Return evenly spread positions, the first and the last among them; the middle one if a single one is wanted."""
    if wanted == 1:
        return np.arange(available)[available // 2 :][:1]
    return np.linspace(0, available - 1, min(wanted, available)).round().astype(np.intp)


def _centres(parts: int, available: int) -> NDArray[np.intp]:
    """Return the positions in the middle of equally long parts of `available` positions; all if they are fewer."""
    if parts >= available:
        return np.arange(available)
    return ((np.arange(parts) + 0.5) * available / parts).astype(np.intp)


def _compact(indices: NDArray[np.intp]) -> Sequence[int]:
    """Return a sequence that takes as little memory as the array and has items of type int."""
    return array("q", indices.astype(np.int64).tobytes())
