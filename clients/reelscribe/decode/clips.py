"""Where a video is cut into clips, and what a decode process needs to know to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import Resize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import TIME_TOLERANCE, Times
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import Library
from reelscribe.errors import UsageError

Cut = Literal["shots", "windows"]
"""Where clips begin: at cuts, or at regular times."""

LEAST_SECONDS = 0.1
"""Least that clips may be limited to, and least time between the starts of windows, in seconds. With less, a video of
hours would have more clips than fit into memory."""


@dataclass(frozen=True)
class ClipCutting:
    """Where a video is cut into clips.

    Raises:
        UsageError: A value is out of its range.
    """

    cut: Cut = "shots"
    """Whether clips are shots, or windows of equal length."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """How shots are found."""
    min_seconds: float = 1.0
    """Shorter shots are joined to the next one, and the last one to the one before; so is a short last window."""
    max_seconds: float = 30.0
    """Longer shots are divided evenly; more than `min_seconds`, and at least LEAST_SECONDS."""
    window_seconds: float = 10.0
    """Length of a window; at least LEAST_SECONDS."""
    overlap_seconds: float = 0.0
    """How long successive windows overlap; less than `window_seconds` by at least LEAST_SECONDS."""

    def __post_init__(self) -> None:
        if self.cut not in get_args(Cut):
            raise UsageError(f"clips: expected one of {', '.join(get_args(Cut))}, got {self.cut!r}")
        if not 0 <= self.min_seconds < math.inf:
            raise UsageError(f"clip seconds min: expected 0 seconds or more, got {self.min_seconds}")
        if not max(self.min_seconds, LEAST_SECONDS - TIME_TOLERANCE) < self.max_seconds < math.inf:
            raise UsageError(
                f"clip seconds max: expected {LEAST_SECONDS} seconds or more, and more than the shortest,"
                f" {self.min_seconds}, got {self.max_seconds}"
            )
        if not LEAST_SECONDS <= self.window_seconds < math.inf:
            raise UsageError(f"clip seconds: expected {LEAST_SECONDS} seconds or more, got {self.window_seconds}")
        most = round(self.window_seconds - LEAST_SECONDS, 6)
        if not 0 <= self.overlap_seconds <= most:
            raise UsageError(
                f"clip overlap: expected from 0 to {most} of the {self.window_seconds} seconds of a window, got"
                f" {self.overlap_seconds}"
            )

    @property
    def longest_seconds(self) -> float:
        """Length of the longest possible clip, in seconds."""
        return self.max_seconds if self.cut == "shots" else self.window_seconds + self.min_seconds

    def describe(self) -> str:
        """Describe in words what the clips are, such as "a clip for each shot"."""
        if self.cut == "shots":
            return "a clip for each shot"
        return f"a clip of each {self.window_seconds:g} seconds"

    def settings(self) -> dict[str, Any]:
        """Return what decides where the clips are, as JSON."""
        if self.cut == "shots":
            detection = self.detection.to_json()
            return {"cut": "shots", "detection": detection, "min": self.min_seconds, "max": self.max_seconds}
        return {
            "cut": "windows",
            "window": self.window_seconds,
            "overlap": self.overlap_seconds,
            "min": self.min_seconds,
        }

    def clips(self, shots: Sequence[Section], times: Times, end_seconds: float) -> list[Section]:
        """Cut a video into clips.

        Args:
            shots: Its shots, in order; windows need none.
            times: Presentation time of each frame in seconds, ascending.
            end_seconds: Presentation time at which the last frame disappears, in seconds.

        Returns:
            The clips in the order of time. Those of shots hold every frame once.
        """
        if len(times) == 0:
            return []
        if self.cut == "windows":
            return _sections(*self._windows(float(times[0]), end_seconds), times)
        starts = [shots[0].start_seconds if shots else float(times[0])]
        for shot in shots[1:]:
            if self.is_start(shot.start_seconds, starts[-1], end_seconds):
                starts.append(shot.start_seconds)
        edges = pairwise([*starts, end_seconds])
        return [clip for start, end in edges for clip in self.divide(start, end, times)]

    def is_start(self, shot_start: float, clip_start: float, end_seconds: float) -> bool:
        """Return whether a shot begins a new clip, and is not joined to the shots before it.

        Args:
            shot_start: Where the shot begins, in seconds.
            clip_start: Where the clip of the shot before it begins, in seconds.
            end_seconds: Where the video ends, in seconds.
        """
        return min(shot_start - clip_start, end_seconds - shot_start) >= self.min_seconds - TIME_TOLERANCE

    def divide(self, start: float, end: float, times: Times) -> list[Section]:
        """Return the clips of shots that are joined, or of a single one: one clip, or equal parts if it is too long.

        Args:
            start: Where the first of the shots begins, in seconds.
            end: Where the last of them ends, in seconds.
            times: Presentation time of each frame of the video in seconds, ascending.
        """
        parts = max(1, math.ceil((end - start) / self.max_seconds - TIME_TOLERANCE))
        edges = [*(start + (end - start) * k / parts for k in range(parts)), end]
        return _sections(edges[:-1], edges[1:], times)

    def _windows(self, start: float, end: float) -> tuple[list[float], list[float]]:
        step = self.window_seconds - self.overlap_seconds
        # The last window begins early enough to show something that no window before it has shown.
        count = max(1, math.ceil((end - start - self.overlap_seconds) / step - TIME_TOLERANCE))
        starts = [start + step * k for k in range(count)]
        ends = [min(each + self.window_seconds, end) for each in starts]
        if count > 1 and ends[-1] - starts[-1] < self.min_seconds - TIME_TOLERANCE:
            starts.pop()
            ends = [*ends[:-2], end]
        return starts, ends


def _sections(starts: Sequence[float], ends: Sequence[float], times: Times) -> list[Section]:
    first = np.searchsorted(times, np.asarray(starts) - TIME_TOLERANCE).tolist()
    stop = np.searchsorted(times, np.asarray(ends) - TIME_TOLERANCE).tolist()
    return [
        Section(a, b, round(start, 6), round(end, 6))
        for a, b, start, end in zip(first, stop, starts, ends, strict=True)
        if a < b  # a stretch of a variable frame rate may have no frame
    ]


@dataclass(frozen=True)
class ClipTask:
    """Which clips to read, and how."""

    path: str
    """Path of the video file."""
    budget: ClipBudget
    """How many frames of a clip are taken, and at which size."""
    cutting: ClipCutting = field(default_factory=ClipCutting)
    """Where the video is cut into clips."""
    resize: Resize = "fast"
    """How frames are scaled."""
    library: Library = "av"
    """Library to decode with; see `VideoTask`."""
    known_shots: Sequence[Section] | None = None
    """The shots, if they have been found before."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "budget": self.budget.to_json(), "cutting": asdict(self.cutting)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned. Raises TypeError, KeyError or UsageError for anything else."""
        cutting, shots = value["cutting"], value["known_shots"]
        fields = {
            "budget": ClipBudget.from_json(value["budget"]),
            "cutting": ClipCutting(**{**cutting, "detection": ShotDetection.from_json(cutting["detection"])}),
            "known_shots": None if shots is None else [Section(*shot) for shot in shots],
        }
        return cls(**{**value, **fields})
