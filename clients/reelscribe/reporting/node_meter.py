"""Measures what a node of a run does with its sources: how much it has done, and where its time goes.

On one machine there is one node. What it reports is added up by `meter.Meter`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from reelscribe.client.balancer import Outage
from reelscribe.contract.source import Header
from reelscribe.reporting.bottleneck import Resources
from reelscribe.reporting.forecast import OpenCost, SourceCost, SourceSize
from reelscribe.reporting.track_meter import Readings, TrackMeter, TrackSnapshot


class NodeReport(NamedTuple):
    """The figures of a node at one moment."""

    seconds: float
    """Seconds since the node was started."""
    media_seconds: float
    """Seconds of video or audio that it has annotated."""
    tracks: Sequence[TrackSnapshot]
    """One for each track."""
    in_progress: Sequence[Mapping[str, OpenCost]]
    """For each track, the sources that it is decoding, by their paths, with what they have cost so far."""
    outage: Outage | None = None
    """The outage of a server because of which it waits; None if it does not wait."""
    replaced_processes: int = 0
    """Number of decode processes that died, or were killed because they hung."""


class NodeMeter:
    """Measures a node and its tracks."""

    def __init__(
        self,
        on_header: Callable[[str, Header], None] = lambda path, header: None,
        is_fetching: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the clock of a node.

        Args:
            on_header: Called with the duration and the frame rate of each source that a track has opened.
            is_fetching: Returns whether sources are being fetched from stores now.
        """
        self._is_fetching = is_fetching
        self.learn_header = on_header
        """Tells the duration and the frame rate of a source that was opened."""
        self._began = time.monotonic()
        self._media_seconds = 0.0
        """Seconds of the sources that are done."""
        self.tracks: list[TrackMeter] = []
        """The tracks, in the order in which they were added."""

    def track(self, resources: Callable[[], Resources], readings: Readings | None = None) -> TrackMeter:
        """Add a track, before the first source is opened.

        Args:
            resources: Returns the processes, workers and requests that it has now.
            readings: Functions that return what it knows by itself; by default nothing.
        """
        track = TrackMeter(resources, readings or Readings(), self._is_fetching)
        self.tracks.append(track)
        return track

    def expect(self, path: str, size: SourceSize) -> None:
        """Count a source as one that is to be done."""
        for track in self.tracks:
            track.expect(path, size)

    def is_begun(self, path: str) -> bool:
        """Return whether a decode process of a track has begun to read a source that is not done."""
        return any(track.is_begun(path) for track in self.tracks)

    def close(self, path: str) -> list[SourceCost | None]:
        """Count a source as done, or as one that the node does not finish.

        Returns:
            What it has cost each track; None for one that has decoded nothing of it.
        """
        closed = [track.close(path) for track in self.tracks]
        # A track that never opened the source does not count: it was done in an earlier run, or lacks the stream.
        if seconds := [media_seconds for media_seconds, _ in closed if media_seconds is not None]:
            self._media_seconds += fmean(seconds)
        return [cost for _, cost in closed]

    def report(self, replaced_processes: int = 0) -> NodeReport:
        """Return the figures of the node now.

        Args:
            replaced_processes: Number of decode processes that died, or were killed because they hung.
        """
        seconds = max(time.monotonic() - self._began, 1e-9)
        for track in self.tracks:
            track.update_clock()
        paths = {path for track in self.tracks for path in track.open}
        progress = [[track.open[path] for track in self.tracks if path in track.open] for path in paths]
        return NodeReport(
            seconds,
            self._media_seconds + sum(fmean(one.seconds for one in source) for source in progress),
            [track.snapshot(seconds) for track in self.tracks],
            [track.in_progress() for track in self.tracks],
            next((outage for track in self.tracks if (outage := track.outage())), None),
            replaced_processes,
        )
