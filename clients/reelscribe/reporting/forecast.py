"""Forecasts the time that a track of a run still needs, and how sure that is.

A source occupies one decode process of its track from its first frame to its last, also while its batches wait for the
server. So the time left is that of a queue: the sources that are left, in their order, through as many processes as the
track has. What a source costs is learned from the sources that were done: a constant, plus so much for each second and
each megabyte, none of them negative, for video files and recordings apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Kind = Literal["video", "audio"]
"""Kind of a source, by the suffix of its name."""

MOST_SINGLE = 10_000
"""Largest number of waiting sources that are kept one by one. Of more, only their sum is kept, as a million of them
would fill the memory."""

SIMULATED_SOURCES = 2000
"""Up to this many sources, the queue is simulated, which takes some milliseconds. Beyond, it is so long that the sum of
all costs says the same."""

MEMORY = 0.99
"""Weight that an observation keeps with each later one, because servers and machines change."""

PRIOR_SOURCES = 10
"""Largest number of sources that what an earlier run has learned counts for."""

LIKELY = 1.64
"""Standard deviations in the stated uncertainty: 90 % of outcomes lie within it, if they are normally distributed."""

LEAST_ERROR = 0.1
"""Relative standard deviation that every forecast has at least."""

FIRST_ERROR = 0.5
"""Relative standard deviation of the cost of a source, before two sources of its kind have been observed."""

INEXPERIENCE = 1.2
"""Relative standard deviation of a forecast by a single source that was done. It falls with the root of their number:
the first sources wait for a server that is still warming up, and others may be of another kind."""

_FEATURES = 3
_SUBSETS = [list(subset) for size in (1, 2, 3) for subset in combinations((1, 2, 0), size)]
"""The sets of features that a fit may use, in the order of preference: seconds before megabytes before the constant."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SourceSize:
    """The properties that decide the cost of a source, as far as it is known before the source is opened."""

    kind: Kind
    """Kind of the source: a video file or a recording."""
    bytes: int
    """Size of the file in bytes."""
    seconds: float | None = None
    """Duration in seconds; None if it is not known."""


class TimeLeft(NamedTuple):
    """A forecast."""

    seconds: float
    """Time left, in seconds."""
    plus_minus: float
    """Half the width of the interval in which the time left is with a probability of 90 %, in seconds."""


class OpenCost(NamedTuple):
    """A source that is being decoded."""

    size: SourceSize
    left: float
    """Fraction of it (0 to 1) that is left."""
    now: float
    """Fraction of it (0 to 1) that this run has decoded."""
    seconds: float
    """Time for which it has occupied a process, in seconds."""


class SourceCost(NamedTuple):
    """The cost of a source that is done, or of the part of it that was."""

    size: SourceSize
    share: float
    """Fraction of it (0 to 1) that was done."""
    seconds: float
    """Time for which it occupied a process, in seconds."""


def _extent(features: Vector) -> float:
    """Return by what the variance of a cost grows: its duration, and a second for the file itself."""
    return float(features[0] + features[1])


class _Observations:
    """The costs of sources of one kind, as the sums that a least-squares fit needs, weighted by 1 / extent."""

    def __init__(self) -> None:
        self.count = 0.0
        self.extent = 0.0
        """Sum of the extents."""
        self.square = 0.0
        """Sum of the squares of the costs."""
        self.by_feature = np.zeros(_FEATURES)
        """Sum of cost x feature."""
        self.by_features = np.zeros((_FEATURES, _FEATURES))
        """Sum of feature x feature."""

    def add(self, features: Vector, cost: float) -> None:
        extent = _extent(features)
        self.count += 1
        self.extent += extent
        self.square += cost * cost / extent
        self.by_feature = self.by_feature + cost / extent * features
        self.by_features = self.by_features + np.outer(features, features) / extent

    def scaled(self, factor: float) -> _Observations:
        scaled = _Observations()
        scaled.count, scaled.extent, scaled.square = factor * self.count, factor * self.extent, factor * self.square
        scaled.by_feature, scaled.by_features = factor * self.by_feature, factor * self.by_features
        return scaled

    def fit(self) -> tuple[Vector, float]:
        """Return the cost for each feature, and the variance of a cost for each second of its extent."""
        best, least = np.zeros(_FEATURES), np.inf
        variance = FIRST_ERROR**2 * self.square / max(self.count, 1.0)
        for subset in _SUBSETS:
            squares = self.by_features[np.ix_(subset, subset)]
            if not np.diag(squares).all() or len(subset) > max(1.0, self.count - 1):
                continue
            ridge = 1e-9 * np.diag(np.diag(squares))  # features may be multiples of each other
            solution = np.linalg.solve(squares + ridge, self.by_feature[subset])
            error = max(0.0, self.square - float(self.by_feature[subset] @ solution))
            # An additional feature must explain more than chance would.
            score = (error + 1e-3 * self.square) * (1 + 2 * len(subset) / self.count)
            if (solution >= 0).all() and score < 0.999 * least:
                best, least = np.zeros(_FEATURES), score
                best[subset] = solution
                if self.count >= len(subset) + 1:
                    variance = error / (self.count - len(subset))
        return best, variance

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "extent": self.extent,
            "square": self.square,
            "by_feature": self.by_feature.tolist(),
            "by_features": self.by_features.tolist(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        observations = cls()
        observations.count, observations.extent = float(value["count"]), float(value["extent"])
        observations.square = float(value["square"])
        observations.by_feature = np.array(value["by_feature"], np.float64)
        observations.by_features = np.array(value["by_features"], np.float64)
        return observations


class Costs:
    """The costs of the sources of a track, in seconds of a decode process; a ledger keeps it as JSON."""

    def __init__(self) -> None:
        self._observed: dict[Kind, _Observations] = {}

    @property
    def known(self) -> bool:
        """True if the cost of any source is known."""
        return any(observed.count for observed in self._observed.values())

    @property
    def sources(self) -> float:
        """Number of sources behind them; recent ones count most."""
        return sum(observed.count for observed in self._observed.values())

    def add(self, kind: Kind, features: Vector, seconds: float) -> None:
        """Learn from a source, or from the part of one: its features, and the time that it occupied a process."""
        old = self._observed.get(kind, _Observations())
        self._observed[kind] = old.scaled(MEMORY)
        self._observed[kind].add(features, seconds)

    def copy(self) -> Costs:
        """Return costs that can learn more without a change of these."""
        copy = Costs()
        copy._observed = dict(self._observed)
        return copy

    def fit(self, kind: Kind) -> tuple[Vector, float, float]:
        """Return the cost for each feature, the variance of a cost for each second, and the extent behind both.

        Where no source of a kind has been seen, video files are taken for as costly as recordings or the reverse.
        """
        observed = self._observed.get(kind) or next(iter(self._observed.values()), _Observations())
        return *observed.fit(), observed.extent

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {kind: observed.to_json() for kind, observed in self._observed.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned; it counts for PRIOR_SOURCES sources at most."""
        costs = cls()
        for kind in ("video", "audio"):
            if kind in value:
                observed = _Observations.from_json(value[kind])
                costs._observed[kind] = observed.scaled(min(1.0, PRIOR_SOURCES / max(observed.count, 1.0)))
        return costs


class Forecast:
    """The sources that a track has not opened yet, and what they will cost."""

    def __init__(self, workers: int, costs: Costs | None = None) -> None:
        """Begin with no sources.

        Args:
            workers: Number of decode processes of the track.
            costs: What earlier runs have learned; by default nothing.
        """
        self.costs = costs or Costs()
        """The costs of sources so far; it grows with `learn`."""
        self.workers = workers
        """Number of decode processes of the track."""
        self._more = 0
        """Number of waiting sources that are not kept one by one."""
        self._waiting: dict[str, tuple[SourceSize, float]] = {}
        self._known: dict[Kind, Vector] = {kind: np.zeros(_FEATURES) for kind in ("video", "audio")}
        """Sums of the features of waiting sources, without the seconds of those whose duration is not known."""
        self._unknown_megabytes: dict[Kind, float] = {"video": 0.0, "audio": 0.0}
        self._durations: dict[Kind, Vector] = {"video": np.zeros(2), "audio": np.zeros(2)}
        """Sums of seconds and megabytes of all sources whose duration has become known."""
        self._longest: list[tuple[float, str]] = []

    def expect(self, path: str, size: SourceSize, share: float = 1.0) -> None:
        """Add a source, or what has become known about it.

        Args:
            path: The source.
            size: What is known about it.
            share: Fraction of it that is not done yet (0 to 1).
        """
        self.opened(path)
        self._count(size, share)
        if size.seconds is not None:
            self._durations[size.kind] += size.seconds, size.bytes / 1e6
        if len(self._waiting) >= MOST_SINGLE:
            self._more += 1
            return
        self._waiting[path] = size, share
        if size.seconds is not None:
            heapq.heappush(self._longest, (-size.seconds, path))

    def single_out(self, path: str, size: SourceSize, share: float = 1.0) -> None:
        """Keep a waiting source by itself from now on, because it will be opened soon. The arguments are its own."""
        if path not in self._waiting and self._more:
            self._more -= 1
            self._waiting[path] = size, share

    def learn_duration(self, path: str, seconds: float) -> None:
        """Keep the duration of a source that waits; that of any other is not needed."""
        if path in self._waiting:
            size, share = self._waiting[path]
            self.expect(path, SourceSize(size.kind, size.bytes, seconds), share)

    def opened(self, path: str) -> SourceSize | None:
        """Take out a source that does not wait any more; returns what is known about it, if it waited."""
        if path not in self._waiting:
            return None
        size, share = self._waiting.pop(path)
        self._count(size, -share)
        return size

    def learn(self, size: SourceSize, share: float, seconds: float) -> None:
        """Learn from a source that is done: this fraction of it (0 to 1) occupied a process for so many seconds."""
        if share > 0:
            self.costs.add(size.kind, self._features(size, share), seconds)

    def costs_with(self, in_progress: Sequence[OpenCost]) -> Costs:
        """Return what sources have cost, those included of which a part has been decoded."""
        costs = self.costs.copy()
        for source in in_progress:
            if source.now > 0:
                costs.add(source.size.kind, self._features(source.size, source.now), source.seconds)
        return costs

    def time_left(self, in_progress: Sequence[OpenCost] = ()) -> TimeLeft | None:
        """Forecast the time until all sources are done.

        Args:
            in_progress: The sources that are being decoded.

        Returns:
            The time left; None as long as nothing is known about what sources cost.
        """
        costs = self.costs_with(in_progress)
        if not (self._waiting or self._more or in_progress):
            return TimeLeft(0.0, 0.0)
        if not costs.known:
            return None
        fits = {kind: costs.fit(kind) for kind in self._known}
        begun = [float(self._features(one.size, one.left) @ fits[one.size.kind][0]) for one in in_progress]
        waiting = {kind: float(self._sum(kind) @ fits[kind][0]) for kind in self._known}
        total = sum(begun) + sum(waiting.values())
        seconds = self._queue(begun, waiting, {kind: fit[0] for kind, fit in fits.items()})
        return TimeLeft(seconds, LIKELY * seconds * self._deviation(total, in_progress, fits))

    def _queue(self, begun: Iterable[float], waiting: Mapping[Kind, float], fits: Mapping[Kind, Vector]) -> float:
        """Return the time until the last process has done its last source."""
        free_at = sorted(begun)[-self.workers :]  # others have been decoded, and wait for answers only
        free_at += [0.0] * (self.workers - len(free_at))
        if len(self._waiting) + self._more > SIMULATED_SOURCES:
            longest = self._longest_waiting(fits)
            return max(free_at[-1], longest, (sum(free_at) + sum(waiting.values())) / len(free_at))
        heapq.heapify(free_at)
        end = max(free_at)
        prices = {kind: fit.tolist() for kind, fit in fits.items()}
        for size, share in self._waiting.values():
            for_source, for_second, for_megabyte = prices[size.kind]
            megabytes = size.bytes / 1e6
            seconds = self._seconds(size.kind, megabytes) if size.seconds is None else size.seconds
            cost = share * (for_source + for_second * seconds + for_megabyte * megabytes)
            done_at = free_at[0] + cost
            heapq.heapreplace(free_at, done_at)
            end = max(end, done_at)
        return end

    def _longest_waiting(self, fits: Mapping[Kind, Vector]) -> float:
        while self._longest and self._longest[0][1] not in self._waiting:
            heapq.heappop(self._longest)
        if not self._longest:
            return 0.0
        size, share = self._waiting[self._longest[0][1]]
        return float(self._features(size, share) @ fits[size.kind])

    def _deviation(
        self,
        total: float,
        in_progress: Sequence[OpenCost],
        fits: Mapping[Kind, tuple[Vector, float, float]],
    ) -> float:
        """Return the relative standard deviation of the sum of all costs: of chance, and of what they are judged by."""
        # Before any source is done, its parts count for little.
        variance = (LEAST_ERROR * total) ** 2 + (INEXPERIENCE * total) ** 2 / max(self.costs.sources, 0.25)
        for kind, (_, variance_per_second, observed) in fits.items():
            begun = [self._features(one.size, one.left) for one in in_progress if one.size.kind == kind]
            extent = _extent(self._sum(kind)) + sum(map(_extent, begun))
            variance += variance_per_second * extent * (1 + extent / max(observed, 1.0))
        return sqrt(variance) / total if total else 0.0

    def _features(self, size: SourceSize, share: float) -> Vector:
        megabytes = size.bytes / 1e6
        seconds = self._seconds(size.kind, megabytes) if size.seconds is None else size.seconds
        return np.array([share, share * seconds, share * megabytes], np.float64)

    def _sum(self, kind: Kind) -> Vector:
        unknown = self._seconds(kind, self._unknown_megabytes[kind])
        # What remains of sums of shares, when all of them have been taken away again, may be a little below 0.
        return np.maximum(self._known[kind] + (0.0, unknown, 0.0), 0.0).astype(np.float64)

    def _seconds(self, kind: Kind, megabytes: float) -> float:
        """Return the likely duration of so many megabytes, by the files whose duration is known."""
        seconds, known_megabytes = self._durations[kind]
        return megabytes * float(seconds) / float(known_megabytes) if known_megabytes else 0.0

    def _count(self, size: SourceSize, share: float) -> None:
        megabytes = share * size.bytes / 1e6
        self._known[size.kind] += (share, share * (size.seconds or 0.0), megabytes)
        if size.seconds is None:
            self._unknown_megabytes[size.kind] += megabytes
