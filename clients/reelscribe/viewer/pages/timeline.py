"""Where the lines of tracks and the thumbnails are on the timeline of a source, in percent of its width."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reelscribe.viewer.pages.views import Line, SourceView, Track

MOST_PICTURES = 16
"""Largest number of thumbnails on the timeline: more would be too narrow, and too many files to load."""

LEAST_WIDTH = 0.15
"""Narrowest bar in percent, so that the shortest line can be seen."""


@dataclass(frozen=True)
class Bar:
    """A line of a track on the timeline."""

    left: float
    """From 0 to 100."""
    width: float
    failed: bool
    """Whether the line is a failure."""


@dataclass(frozen=True)
class Lane:
    """A track on the timeline."""

    track: Track
    bars: tuple[Bar, ...]
    """One for each line, in the same order."""


@dataclass(frozen=True)
class Picture:
    """A thumbnail on the timeline."""

    seconds: float
    """The time of the thumbnail."""
    left: float
    """From 0 to 100."""
    width: float


def timeline_bars(view: SourceView) -> list[Lane]:
    """Return the tracks of a source with the places of their lines.

    Args:
        view: The source.
    """
    scale = _Scale(view)
    return [Lane(track, tuple(scale.bar(line) for line in track.lines)) for track in view.tracks]


def film_strip(view: SourceView) -> list[Picture]:
    """Return thumbnails that together fill the timeline, each where `picture_starts` says.

    Args:
        view: The source.
    """
    times = [time for time in view.thumbnails if view.start <= time <= view.end]
    if len(times) > MOST_PICTURES:
        times = [times[k * (len(times) - 1) // (MOST_PICTURES - 1)] for k in range(MOST_PICTURES)]
    scale = _Scale(view)
    edges = [scale.place(start) for start in picture_starts(view, times)] + [100.0]
    return [Picture(time, left, right - left) for time, (left, right) in zip(times, pairwise(edges), strict=True)]


def picture_starts(view: SourceView, times: Sequence[float]) -> list[float]:
    """Return from when on each of some thumbnails shows what the source does, in seconds.

    Two neighbours meet at the cut between them, or halfway if there is none.

    Args:
        view: The source.
        times: The times of the thumbnails, ascending.
    """
    cuts = [line.start for track in view.tracks if track.kind == "shots" for line in track.lines]
    starts = [view.start] if times else []
    for one, next_one in pairwise(times):
        at = bisect_right(cuts, one)
        starts.append(cuts[at] if at < len(cuts) and cuts[at] <= next_one else (one + next_one) / 2)
    return starts


class _Scale:
    def __init__(self, view: SourceView) -> None:
        self._start = view.start
        self._length = max(view.end - view.start, 0.001)

    def place(self, seconds: float) -> float:
        """Return the place of a time, from 0 to 100."""
        return min(max(0.0, (seconds - self._start) / self._length * 100), 100.0)

    def bar(self, line: Line) -> Bar:
        left = min(self.place(line.start), 100 - LEAST_WIDTH)
        return Bar(left, max(self.place(line.end) - left, LEAST_WIDTH), line.failed)
