"""Counts what a node of a run does with its sources, and how its tracks spend their time.

On one machine there is one node. What it reports is added up by `meter.Meter`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from reelscribe.client.endpoint import Answer
from reelscribe.contract.source import Header
from reelscribe.reporting.counters import Counters, NodeReport, Resources
from reelscribe.reporting.time_left import SOURCE_SECONDS, SourceSize
from reelscribe.reporting.units import UNITS


@dataclass
class _OpenSource:
    """What a track has done of a source that is not finished."""

    before: float = 0.0
    """Fraction of it (0 to 1) that was done in earlier runs."""
    now: float = 0.0
    """Fraction of it (0 to 1) that is done in this run."""
    seconds: float | None = None
    """Seconds of its duration that are done in this run; None if the track has not opened it."""


class TrackMeter:
    """Counts what one track does."""

    def __init__(
        self, resources: Callable[[], Resources], read: Callable[[], Counters], work_of: Callable[[str], float]
    ) -> None:
        """Start the clock of a track. `NodeMeter.track` describes the arguments but `work_of`, which is its own."""
        self._resources, self._read, self._work_of = resources, read, work_of
        self._sums: defaultdict[str, float] = defaultdict(float)
        """The sums of `Counters` that are added up here."""
        self._lasting: defaultdict[str, int] = defaultdict(int)
        """How many blocks of `during` there are now, by the names of their sums."""
        self._queued: int | None = None
        self._last = time.monotonic()
        self.open: dict[str, _OpenSource] = {}
        """The sources of the node of which the track makes something, until they are finished."""
        self._waiting: set[str] = set()
        """Those of them that no decode process has begun to read."""
        self._begun: set[str] = set()
        """Those that one has begun to read, or had."""

    def expect(self, path: str, size: SourceSize) -> None:
        """Count a source as one that is to be done."""
        # Nothing is made of a recording that has no pictures, so it is no work for a captioner.
        if size.kind == "video" or not UNITS[self._resources().counts].pictures:
            self.open[path] = _OpenSource()
            self._waiting.add(path)

    def begun(self, path: str) -> None:
        """Count a source as one that a decode process has begun to read."""
        self._waiting.discard(path)
        self._begun.add(path)

    def is_begun(self, path: str) -> bool:
        """Return whether a decode process has begun to read a source that is not finished."""
        return path in self._begun

    def is_open(self, path: str) -> bool:
        """Return whether a source is open."""
        return path in self.open and self.open[path].seconds is not None

    def opened(self, path: str, share_done: float) -> None:
        """Count a source as open.

        Args:
            path: The source.
            share_done: Fraction of it that was done in an earlier run (0 to 1).
        """
        self.open[path] = _OpenSource(share_done, seconds=0.0)

    def saved(self, path: str, amount: float, share: float, media_seconds: float, unsent: float = 0.0) -> None:
        """Count a batch of an open source as done.

        Args:
            path: The source.
            amount: Frames or seconds of audio in the batch.
            share: Fraction of the source that the batch is (0 to 1).
            media_seconds: Seconds of the source's duration that the batch covers.
            unsent: Part of `amount` that was not sent to a server.
        """
        self.count(done=amount, unsent=unsent, worked=media_seconds + SOURCE_SECONDS * share)
        source = self.open[path]
        source.now += share
        source.seconds = (source.seconds or 0.0) + media_seconds

    def made(self, path: str, amount: float, unsent: float = 0.0) -> None:
        """Count what was made of a whole source, which the track has not opened. See `saved`."""
        self.count(done=amount, unsent=unsent, worked=self._work_of(path))

    def completed(self, path: str) -> None:
        """Count a source as one of which the track has made all that can be made. Other tracks may go on with it."""
        self._waiting.discard(path)
        if source := self.open.get(path):
            source.now = 1 - source.before

    def answered(self, answer: Answer) -> None:
        """Add what is known of a request: the time in which it was sent, waited and was computed, and its tokens."""
        self.count(
            requests=1,
            network=answer.network_seconds,
            queue=answer.queue_seconds,
            compute=answer.compute_seconds,
            tokens=answer.tokens,
        )
        if answer.call_items:
            self.count(items=answer.items, calls=answer.items / answer.call_items)
        self._queued = answer.queued

    def count(self, **amounts: float) -> None:
        """Add to the sums of these names."""
        for name, amount in amounts.items():
            self._sums[name] += amount

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Add the time of the block to the sum of this name; the time of several blocks at once counts once."""
        self._lasting[name] += 1
        try:
            yield
        finally:
            self._lasting[name] -= 1

    def close(self, path: str) -> float | None:
        """Forget a source that is finished, or that the track does not finish.

        Returns:
            The seconds of its duration that were done; None if the track has not opened it.
        """
        self._waiting.discard(path)
        self._begun.discard(path)
        source = self.open.pop(path, None)
        return source.seconds if source else None

    def report(self) -> tuple[Counters, Resources]:
        """Return the sums now, and what the track has now. What lasts is added up here, so this is called often."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        left = {path: (1 - one.before - one.now) * self._work_of(path) for path, one in self.open.items()}
        has = self._resources()
        reads_in_portions = UNITS[has.counts].pictures  # long ones, by several processes
        has = replace(
            has,
            sources_waiting=len(self._waiting),
            sources_depending=self._lasting["depending"],
            open_seconds=sum(one.now * self._work_of(path) for path, one in self.open.items()),
            longest_seconds=0.0
            if reads_in_portions
            else max((left.get(path, 0.0) for path in self._begun), default=0.0),
            queued=self._queued,
        )
        self.count(in_flight=passed * has.requests_now, seconds=passed)
        self.count(**{name: passed for name, blocks in self._lasting.items() if blocks})
        return Counters.total([Counters(**self._sums), self._read()]), has


class NodeMeter:
    """Counts what a node and its tracks do."""

    def __init__(
        self,
        on_header: Callable[[str, Header], None] = lambda path, header: None,
        is_fetching: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin without tracks.

        Args:
            on_header: Called with the duration and the frame rate of each source that a track has opened.
            is_fetching: Returns whether sources are being fetched from stores now.
        """
        self._on_header, self._is_fetching = on_header, is_fetching
        self._media_seconds = 0.0
        """Seconds of the sources that are finished."""
        self._sizes: dict[str, SourceSize] = {}
        self.tracks: list[TrackMeter] = []
        """The tracks, in the order in which they were added."""

    def track(self, resources: Callable[[], Resources], read: Callable[[], Counters] = Counters) -> TrackMeter:
        """Add a track, before the first source is expected.

        Args:
            resources: Returns the processes, workers and requests that it has now.
            read: Returns the sums that the track counts by itself; by default none.
        """
        self.tracks.append(
            TrackMeter(lambda: replace(resources(), is_fetching=self._is_fetching()), read, self._work_of)
        )
        return self.tracks[-1]

    def expect(self, path: str, size: SourceSize) -> None:
        """Count a source as one that is to be done."""
        self._sizes[path] = size
        for track in self.tracks:
            track.expect(path, size)

    def learn_header(self, path: str, header: Header) -> None:
        """Note the duration of a source that was opened, and tell it with its frame rate."""
        if path in self._sizes and header.seconds is not None:
            self._sizes[path] = replace(self._sizes[path], seconds=header.seconds)
        self._on_header(path, header)

    def _work_of(self, path: str) -> float:
        size = self._sizes.get(path)
        return SOURCE_SECONDS + (size.seconds or 0.0) if size else 0.0

    def is_begun(self, path: str) -> bool:
        """Return whether a decode process of a track has begun to read a source that is not finished."""
        return any(track.is_begun(path) for track in self.tracks)

    def close(self, path: str) -> None:
        """Count a source as finished, or as one that the node does not finish."""
        self._sizes.pop(path, None)
        closed = [track.close(path) for track in self.tracks]
        # A track that never opened the source does not count: it was done in an earlier run, or lacks the stream.
        if seconds := [each for each in closed if each is not None]:
            self._media_seconds += fmean(seconds)

    def report(self) -> NodeReport:
        """Return the figures of the node now."""
        media_seconds = self._media_seconds
        for path in self._sizes:
            seconds = [track.open[path].seconds for track in self.tracks if track.is_open(path)]
            media_seconds += fmean(each or 0.0 for each in seconds) if seconds else 0.0
        return NodeReport(media_seconds, [track.report() for track in self.tracks])
