"""The speed of a run over time, as the points of a line for an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reelscribe.viewer.pages.views import Rate

WIDTH, HEIGHT = 600, 120
"""Size of the chart in units of the SVG, which is stretched to the width of the page."""

MOST_POINTS = 300
"""Largest number of points; where there are more, each is the mean of several."""


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
    sound = [rate for rate in rates if math.isfinite(rate.value) and math.isfinite(rate.seconds)]
    if len(sound) < 2:
        return None
    step = -(-len(sound) // MOST_POINTS)
    groups = [sound[k : k + step] for k in range(0, len(sound), step)]
    means = [(group[-1].seconds, sum(rate.value for rate in group) / len(group)) for group in groups]
    if len(means) < 2:
        return None
    begin, end = means[0][0], means[-1][0]
    top = _round_up(max(value for _, value in means))
    length = max(end - begin, 0.001)
    points = [((time - begin) / length * WIDTH, HEIGHT - max(0.0, value) / top * HEIGHT) for time, value in means]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    mean = sum(rate.value for rate in sound) / len(sound)
    return Chart(line, f"0,{HEIGHT} {line} {WIDTH},{HEIGHT}", top, begin, end, sound[-1].value, mean)


def _round_up(value: float) -> float:
    """Return the next number that is easy to read: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)
