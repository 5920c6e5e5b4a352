"""How much of a run is left, in seconds of media, and how long that takes at the speed of late.

What is left is a sum over the sources, from which each is taken when it is finished, and what is answered and saved of
an open one. What is only decoded does not count. A source whose duration is not known counts by its bytes, at the
seconds per byte of those whose duration is known. The speed is that of the second half of the time since the first
answers, as the start of servers tells nothing of it, and its spread over parts of that half tells how sure the time is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal, NamedTuple

Kind = Literal["video", "audio"]
"""Kind of a source, by the suffix of its name."""

SOURCE_SECONDS = 1.0
"""Seconds of media that opening a source counts as, whatever its length: a damaged file or a still takes time, too."""

USUAL_SECONDS_PER_BYTE: dict[Kind, float] = {"video": 1 / 250_000, "audio": 1 / 16_000}
"""Those of usual files, which are taken as long as no duration of a source of the kind is known."""

PARTS = 8
"""Number of parts of the time that the speed is taken from. How unlike their speeds are tells how sure it is."""

MOST_MOMENTS = 240
"""Largest number of moments that are kept. Of more, every second one is forgotten."""

FIRST_SECONDS, FIRST_SHARE = 10.0, 0.1
"""Time since the first answers, and fraction of the work (0 to 1), below which a run's own speed is not taken."""

ENOUGH_SECONDS = 60.0
"""Time since the first answers after which it is told, however little is done."""

LIKELY = 1.64
"""Standard deviations in the stated uncertainty: 90 % of outcomes lie within it, if they are normally distributed."""

LEAST_ERROR = 0.1
"""Relative standard deviation that every time left has at least."""

INEXPERIENCE = 1.2
"""Relative standard deviation of a time left after one source was finished. It falls with the root of their number:
the first sources wait for a server that is still warming up, and others may be of another kind."""


@dataclass(frozen=True)
class SourceSize:
    """The properties that decide how much work a source is, as far as it is known before the source is opened."""

    kind: Kind
    """Kind of the source: a video file or a recording."""
    bytes: int
    """Size of the file in bytes."""
    seconds: float | None = None
    """Duration in seconds; None if it is not known."""


class TimeLeft(NamedTuple):
    """How long a run takes until it is done."""

    seconds: float
    """Time left, in seconds."""
    plus_minus: float
    """Half the width of the interval in which the time left is with a probability of 90 %, in seconds."""


class Work:
    """A sum over sources: how many they are, and how long."""

    def __init__(self) -> None:
        """Begin without sources."""
        self._sums = {kind: [0.0] * 4 for kind in USUAL_SECONDS_PER_BYTE}
        """For each kind, the number of sources, the seconds and the bytes of those whose duration is known, and the
        bytes of the others."""

    def add(self, size: SourceSize, share: float = 1.0) -> None:
        """Add a source, or a fraction of one, which is negative for what is taken away."""
        sums = self._sums[size.kind]
        sums[0] += share
        if size.seconds is None:
            sums[3] += share * size.bytes
        else:
            sums[1] += share * size.seconds
            sums[2] += share * size.bytes

    def seconds(self, known: Work) -> float:
        """Return the seconds of media in it, with SOURCE_SECONDS for each source.

        Args:
            known: The sources whose durations tell those of the others.
        """
        total = 0.0
        for kind, (sources, seconds, _, unknown_bytes) in self._sums.items():
            _, known_seconds, known_bytes, _ = known._sums[kind]
            per_byte = known_seconds / known_bytes if known_bytes > 0 else USUAL_SECONDS_PER_BYTE[kind]
            total += SOURCE_SECONDS * sources + seconds + unknown_bytes * per_byte
        return max(0.0, total)  # what remains of sums of shares may be a little below 0


class Moments:
    """How much of a track was done at moments of a run, from the last one before its first answers on.

    Old ones lie further apart.
    """

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._moments = [(0.0, 0.0)]
        """The last moment at which nothing was done, and those at which more was done than before."""
        self._now = self._most = 0.0

    def add(self, time: float, done: float) -> None:
        """Keep how many seconds of media were done, at a time since the start of the run in seconds."""
        self._now = time
        if not done:
            self._moments = [(time, done)]
        elif done != self._moments[-1][1]:
            if self.answers:  # the first answers tell nothing of how many come
                self._most = max(self._most, done - self._moments[-1][1])
            self._moments.append((time, done))
        if len(self._moments) > MOST_MOMENTS:
            self._moments = [*self._moments[:-1:2], self._moments[-1]]

    def is_enough(self, left: float) -> bool:
        """Return whether enough was done for telling how long the rest takes, of so many seconds of media."""
        seconds, done = self._now - self._moments[0][0], self._moments[-1][1]
        return left <= 0 or seconds >= ENOUGH_SECONDS or (seconds >= FIRST_SECONDS and done >= FIRST_SHARE * left)

    @property
    def answers(self) -> int:
        """Number of moments at which more was done than before."""
        return len(self._moments) - 1

    @property
    def underway(self) -> float:
        """Seconds of media that are probably done since the last answers, as many come at once.

        They are done at the speed until then, but are never more than the most that came at once.
        """
        time, done = self._moments[-1]
        return min((self._now - time) * done / max(1e-9, time - self._moments[0][0]), self._most)

    def speeds(self) -> Sequence[float]:
        """Return the seconds of media done per second, in equal parts of the second half of the time.

        If nothing was done in it, the parts are those of the whole time.
        """
        start = self._moments[0][0]
        moments = [*self._moments, (self._now, self._moments[-1][1] + self.underway)]
        for begin in ((start + self._now) / 2, start):
            part = (self._now - begin) / PARTS
            done = [_done_at(begin + number * part, moments) for number in range(PARTS + 1)]
            if done[-1] > done[0]:
                return [(after - before) / max(1e-9, part) for before, after in pairwise(done)]
        return []

    @property
    def part_seconds(self) -> float:
        """Length of a part whose speed is told, in seconds."""
        return (self._now - self._moments[0][0]) / 2 / PARTS


def _done_at(time: float, moments: Sequence[tuple[float, float]]) -> float:
    """Return what was done at a time between moments, or at the first or the last one."""
    after = bisect_right(moments, time, key=lambda moment: moment[0])
    (earlier, done), (later, more) = moments[max(0, after - 1)], moments[min(after, len(moments) - 1)]
    return done + (more - done) * (time - earlier) / (later - earlier) if later > earlier else done


def time_left(
    left: float, moments: Moments, sources: float, least_seconds: float = 0.0, speed_before: float | None = None
) -> TimeLeft | None:
    """Return how long a track needs.

    Args:
        left: Seconds of media that are left.
        moments: What was done until now.
        sources: Number of sources that were finished.
        least_seconds: Time below which nothing that is left is done, in seconds.
        speed_before: Seconds of media per second of an earlier run, which are taken until enough is done in this run.

    Returns:
        The time left; None as long as too little is known of the speed.
    """
    if left <= 0:
        return TimeLeft(0.0, 0.0)
    if speeds := moments.speeds() if moments.is_enough(left) else []:
        left -= min(moments.underway, left / 2)  # what is answered last may take longer
        speed = sum(speeds) / PARTS
        spread = sqrt(sum((part - speed) ** 2 for part in speeds) / (PARTS - 1)) / speed
        parts_left = max(1.0, left / speed / max(moments.part_seconds, 1e-9))
        chance = spread**2 * (1 / PARTS + 1 / parts_left)
    elif speed_before:
        speed, chance = speed_before, 0.0
    else:
        return None
    seconds = max(left / speed, least_seconds)
    finished = min(sources, moments.answers) if speeds else sources  # many may come with one answer
    deviation = sqrt(LEAST_ERROR**2 + chance + INEXPERIENCE**2 / max(1.0, finished))
    return TimeLeft(seconds, LIKELY * seconds * deviation)
