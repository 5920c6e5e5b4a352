"""The drawings of pages as numbers for SVG: the timeline of a source, and the speed of a run over time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reelscribe.viewer.pages.views import Line, Rate, SourceView, Track

MOST_PICTURES = 16
"""Largest number of thumbnails on the timeline: more would be too narrow, and too many files to load."""

LEAST_WIDTH = 0.15
"""Narrowest bar in percent, so that the shortest line can be seen."""

CHART_WIDTH, CHART_HEIGHT = 600, 120
"""Size of the chart in units of the SVG, which is stretched to the width of the page."""

MOST_POINTS = 300
"""Largest number of points; where there are more, each is the mean of several."""


@dataclass(frozen=True)
class Bar:
    """A line of a track on the timeline."""

    left: float
    """The left edge, from 0 to 100."""
    width: float
    failed: bool
    """True if the line is a failure."""


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
    """The left edge, from 0 to 100."""
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


@dataclass(frozen=True)
class Chart:
    """A line, its scale and its figures."""

    points: str
    """The points of the line, as `polyline` of SVG has them."""
    area: str
    """The points of the area below the line."""
    top: float
    """The value at the upper edge; the lower edge is 0."""
    begin: float
    """Seconds at the left edge."""
    end: float
    """Seconds at the right edge."""
    last: float
    """The last value."""
    mean: float
    """The mean of all values."""


def rate_chart(rates: Sequence[Rate]) -> Chart | None:
    """Return the chart of the speed of a run; None if there are too few values for a line.

    Args:
        rates: The speed over time, in order.
    """
    finite = [rate for rate in rates if math.isfinite(rate.value) and math.isfinite(rate.seconds)]
    if len(finite) < 2:
        return None
    step = -(-len(finite) // MOST_POINTS)
    groups = [finite[k : k + step] for k in range(0, len(finite), step)]
    means = [(group[-1].seconds, sum(rate.value for rate in group) / len(group)) for group in groups]
    if len(means) < 2:
        return None
    begin, end = means[0][0], means[-1][0]
    top = _round_up(max(value for _, value in means))
    length = max(end - begin, 0.001)
    points = [
        ((time - begin) / length * CHART_WIDTH, CHART_HEIGHT - max(0.0, value) / top * CHART_HEIGHT)
        for time, value in means
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    mean = sum(rate.value for rate in finite) / len(finite)
    return Chart(line, f"0,{CHART_HEIGHT} {line} {CHART_WIDTH},{CHART_HEIGHT}", top, begin, end, finite[-1].value, mean)


def _round_up(value: float) -> float:
    """Return the next number that is easy to read: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)
