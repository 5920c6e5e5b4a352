"""Where a video is cut into clips, and what a decode process needs to know to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.fields import check_options
from reelscribe.contract.frames import Resize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import TIME_TOLERANCE, Times
from reelscribe.decode.shots import ShotDetection
from reelscribe.errors import UsageError

Cut = Literal["shots", "windows"]
"""Where clips begin: at cuts, or at regular times."""

LEAST_SECONDS = 0.1
"""Least that clips may be limited to, and least time between the starts of windows, in seconds. With less, a video of
hours would have more clips than fit into memory."""

MAX_SECONDS = 30.0
"""Default of the longest clip of a shot, in seconds."""

WINDOW_SECONDS = 10.0
"""Default length of a window, in seconds."""


@dataclass(frozen=True)
class ClipCutting:
    """Where a video is cut into clips.

    Raises:
        UsageError: A value is out of its range, or is not for clips of this kind.
    """

    cut: Cut | None = None
    """Whether clips are shots, or windows of equal length. None, which becomes either, means windows if a value is
    given that only windows have, and otherwise shots."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """How shots are found."""
    min_seconds: float = 1.0
    """Shorter shots are joined to the next one, and the last one to the one before; so is a short last window."""
    max_seconds: float | None = None
    """Longer shots are divided evenly; more than `min_seconds`, and at least LEAST_SECONDS. None for MAX_SECONDS.
    Windows have none."""
    window_seconds: float | None = None
    """Length of a window; at least LEAST_SECONDS. None for WINDOW_SECONDS. Shots have none."""
    overlap_seconds: float | None = None
    """How long successive windows overlap; less than the length of a window by at least LEAST_SECONDS. None for 0.
    Shots have none."""

    def __post_init__(self) -> None:
        check_options(self)
        of_windows = {"clip seconds": self.window_seconds, "clip overlap": self.overlap_seconds}
        others = {"shots": of_windows, "windows": {"clip seconds max": self.max_seconds}}
        if self.cut is None:
            given = any(value is not None for value in of_windows.values())
            object.__setattr__(self, "cut", "windows" if given else "shots")
        if self.cut not in others:
            raise UsageError(f"clips: expected one of {', '.join(get_args(Cut))}, got {self.cut!r}")
        for name, value in others[self.cut].items():
            if value is not None:
                (other,) = others.keys() - {self.cut}
                raise UsageError(
                    f"{name}: expected {other} with it, got clips that are {self.cut}; leave it out, or choose {other}"
                )
        if not 0 <= self.min_seconds < math.inf:
            raise UsageError(f"clip seconds min: expected 0 seconds or more, got {self.min_seconds}")
        if self.cut == "shots" and not max(self.min_seconds, LEAST_SECONDS - TIME_TOLERANCE) < self._max < math.inf:
            raise UsageError(
                f"clip seconds max: expected {LEAST_SECONDS} seconds or more, and more than the shortest,"
                f" {self.min_seconds}, got {self._max}"
            )
        if not LEAST_SECONDS <= self._window < math.inf:
            raise UsageError(f"clip seconds: expected {LEAST_SECONDS} seconds or more, got {self.window_seconds}")
        most = round(self._window - LEAST_SECONDS, 6)
        if not 0 <= self._overlap <= most:
            raise UsageError(
                f"clip overlap: expected from 0 to {most} of the {self._window} seconds of a window, got"
                f" {self.overlap_seconds}"
            )

    @property
    def _max(self) -> float:
        return MAX_SECONDS if self.max_seconds is None else self.max_seconds

    @property
    def _window(self) -> float:
        return WINDOW_SECONDS if self.window_seconds is None else self.window_seconds

    @property
    def _overlap(self) -> float:
        return self.overlap_seconds or 0.0

    @property
    def longest_seconds(self) -> float:
        """Length of the longest possible clip, in seconds."""
        return self._max if self.cut == "shots" else self._window + self.min_seconds

    @property
    def step_seconds(self) -> float:
        """Time between the starts of successive windows, in seconds."""
        return self._window - self._overlap

    def describe(self) -> str:
        """Describe in words what the clips are, such as "a clip for each shot"."""
        if self.cut == "shots":
            return "a clip for each shot"
        return f"a clip of each {self._window:g} seconds"

    def settings(self) -> dict[str, Any]:
        """Return what decides where the clips are, as JSON."""
        if self.cut == "shots":
            detection = self.detection.to_json()
            return {"cut": "shots", "detection": detection, "min": self.min_seconds, "max": self._max}
        return {
            "cut": "windows",
            "window": self._window,
            "overlap": self._overlap,
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
        parts = max(1, math.ceil((end - start) / self._max - TIME_TOLERANCE))
        edges = [*(start + (end - start) * k / parts for k in range(parts)), end]
        return _sections(edges[:-1], edges[1:], times)

    def _windows(self, start: float, end: float) -> tuple[list[float], list[float]]:
        step = self.step_seconds
        # The last window begins early enough to show something that no window before it has shown.
        count = max(1, math.ceil((end - start - self._overlap) / step - TIME_TOLERANCE))
        starts = [start + step * k for k in range(count)]
        ends = [min(each + self._window, end) for each in starts]
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
    deinterlace: bool = False
    """Whether frames that are marked as interlaced are deinterlaced."""
    known_shots: Sequence[Section] | None = None
    """The shots, if they have been found before."""
    stat: str = ""
    """The `file_stat` that the file must have; empty for the one that it has when it is opened."""

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
