"""Measures how much a run has done and where its time goes; a snapshot holds the figures of one moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, Self, TypeVar

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Header, Source
from reelscribe.reporting.forecast import Costs, SourceSize, TimeLeft
from reelscribe.reporting.limits import Resources
from reelscribe.reporting.track_meter import Readings, TrackMeter, TrackSnapshot
from reelscribe.reporting.units import Counts

TICK_SECONDS = 0.01
"""Seconds between two measurements of the delay of the event loop."""

FIRST_FAILURES = 5
"""Number of failed sources that a snapshot names."""

T = TypeVar("T")


@dataclass(frozen=True)
class NodeSnapshot:
    """The figures of one node of a run over many machines."""

    name: str
    state: str
    """How it is, in a few words: "starting", "ready", or why it is not used."""
    sources_open: int
    """Number of sources that are leased to it."""
    sources_done: int
    """Number of sources that it has done."""
    media_hours_per_hour: float
    """Hours of video or audio that it annotates per hour."""
    bottleneck: str
    """What limits its speed; empty if nothing is known."""

    @property
    def is_ready(self) -> bool:
        """Whether sources are leased to it."""
        return self.state == "ready"


@dataclass(frozen=True)
class Snapshot:
    """The figures of a run at one moment."""

    sources: int
    """Number of sources of the run, or of those that have been found so far."""
    sources_done: int
    """Number of sources that are done, including failed ones."""
    sources_failed: int
    """Number of sources whose record has an error."""
    seconds: float
    """Seconds since the start of the run."""
    media_hours_per_hour: float
    """Hours of video or audio that the run has annotated per hour."""
    eta_seconds: float | None
    """Seconds until the run is done; None until something is known about what sources cost."""
    lanes: tuple[TrackSnapshot, ...]
    """One for each track. The name `lanes` is a key in ledgers and in --json-log, so it stays."""
    stall_p99_ms: int
    """99th percentile of the delays of the event loop, in milliseconds."""
    stall_longest_ms: int
    """Longest delay of the event loop, in milliseconds."""
    eta_plus_minus: float | None = None
    """The time left lies within this many seconds of `eta_seconds` with a probability of about 90 %."""
    sources_before: int = 0
    """Number of sources that earlier runs had done."""
    sources_copies: int = 0
    """Number of sources with the content of another source. They are annotated once."""
    sources_gone: int = 0
    """Number of sources of this run and earlier ones that were gone from the disk when this run ended."""
    others: int = 0
    """Number of sources with a record in the folder that this run does not name."""
    others_failed: int = 0
    """Number of records in the folder with an error that `sources_failed` does not count."""
    outage: Outage | None = None
    """The outage of a server because of which the run waits; None if it does not wait."""
    failures: tuple[tuple[str, str, str], ...] = ()
    """The first failed sources: path, type and message of the error."""
    nodes: tuple[NodeSnapshot, ...] = ()
    """The nodes of a run over many machines, those that were lost included; none for a run on one machine."""
    nodes_lost: int = 0
    """How often a node was lost. What was in flight there was done again."""
    all_listed: bool = True
    """Whether all sources have been found; a run over many machines begins before."""

    @property
    def frames(self) -> int:
        """Number of frames that were captioned in this run, including reused ones."""
        return int(self._done("frames"))

    @property
    def clips(self) -> int:
        """Number of clips that were described in this run."""
        return int(self._done("clips"))

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio that were transcribed in this run, including silence."""
        return self._done("seconds of audio")

    @property
    def slowest(self) -> TrackSnapshot | None:
        """The track that will need longest; None before the first snapshot of a track."""
        return max(self.lanes, key=lambda track: track.eta_seconds or 0.0, default=None)

    @property
    def bottleneck(self) -> str:
        """The bottleneck of the run: that of the slowest track."""
        return self.slowest.bottleneck if self.slowest else "starting"

    @property
    def nodes_ready(self) -> int:
        """Number of nodes to which sources are leased."""
        return sum(node.is_ready for node in self.nodes)

    def _done(self, counts: Counts) -> float:
        return sum(track.done for track in self.lanes if track.counts == counts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Restore a snapshot from the JSON that `asdict` made of it, in this version or another one."""
        known = _known_fields(cls, value)
        known["lanes"] = tuple(TrackSnapshot(**_known_fields(TrackSnapshot, track)) for track in value["lanes"])
        known["outage"] = Outage(**value["outage"]) if value.get("outage") else None
        known["nodes"] = tuple(NodeSnapshot(**_known_fields(NodeSnapshot, node)) for node in value.get("nodes", ()))
        known["failures"] = tuple((path, kind, message) for path, kind, message in value.get("failures", ()))
        return cls(**known)


def _known_fields(of: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(of)}
    return {name: each for name, each in value.items() if name in names}


class Stalls:
    """Measures stalls: delays of the event loop, during which every request waits."""

    def __init__(self) -> None:
        self._late: Counter[int] = Counter()

    async def watch(self) -> None:
        """Measure every TICK_SECONDS by how many milliseconds the event loop is late, until cancelled."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._late[int((time.monotonic() - due) * 1000)] += 1

    @property
    def longest_ms(self) -> int:
        """The longest stall, in whole milliseconds."""
        return max(self._late, default=0)

    @property
    def p99_ms(self) -> int:
        """The 99th percentile of stalls, in whole milliseconds."""
        left = 0.01 * self._late.total()
        for milliseconds in sorted(self._late, reverse=True):
            left -= self._late[milliseconds]
            if left < 0:
                return milliseconds
        return 0


class Meter:
    """Measures a run and its tracks."""

    def __init__(self, sources: int, before: Collection[str] = ()) -> None:
        """Start the clock of a run.

        Args:
            sources: Number of sources.
            before: The paths of those that earlier runs have done.
        """
        self.stalls = Stalls()
        self._sources, self._before = sources, frozenset(before)
        self._began = time.monotonic()
        self._done = len(self._before)
        self._failed = self._copies = 0
        self._failures: list[tuple[str, str, str]] = []
        self._digests: set[str] = set()
        """The contents of the sources that are done."""
        self._media_seconds = 0.0
        """Seconds of these sources that this run has done."""
        self.others = self.others_failed = 0
        """Number of sources that this run does not name, and of errors of records that it does not count."""
        self.gone = 0
        """Number of sources of this run and earlier ones that are gone from the disk."""
        self.headers: dict[str, Header] = {}
        """What is known of sources: the durations and frame rates that their headers state, or decoding has shown."""
        self.begun = asyncio.Event()
        """Set when a source has been opened, or is done."""
        self.tracks: list[TrackMeter] = []
        """The tracks, in the order in which they were added."""

    def track(self, resources: Resources, readings: Readings | None = None, costs: Costs | None = None) -> TrackMeter:
        """Add a track, before the first source is opened.

        Args:
            resources: What it has to work with.
            readings: What it knows by itself; by default nothing.
            costs: What earlier runs have learned about the cost of sources; None if nothing is known.
        """
        track = TrackMeter(resources, readings or Readings(), costs)
        self.tracks.append(track)
        return track

    def expect(self, path: str, size: SourceSize) -> None:
        """Count a source as one that all tracks are to do."""
        for track in self.tracks:
            track.expect(path, size, 0.0, 0.0)

    def is_begun(self, path: str) -> bool:
        """Return whether a decode process of a track has begun to read a source that is not done."""
        return any(track.is_begun(path) for track in self.tracks)

    def give_up(self, path: str) -> None:
        """Count a source as one that this run does not finish."""
        for track in self.tracks:
            track.close(path)

    def learn_header(self, path: str, header: Header) -> None:
        """Keep the duration and the frame rate of a source; what is None in `header` does not change what is known."""
        known = self.headers.get(path, header)
        seconds = known.seconds if header.seconds is None else header.seconds
        rate = known.frames_per_second if header.frames_per_second is None else header.frames_per_second
        self.headers[path] = Header(seconds, rate)
        if header.seconds is not None:
            for track in self.tracks:
                track.forecast.learn_duration(path, header.seconds)

    def finished(self, source: Source, error: SourceError | None) -> None:
        """Count a source as done, with the error of its record if it has one."""
        self.begun.set()
        self._done += source.path not in self._before
        if error:
            self._failed += 1
            if len(self._failures) < FIRST_FAILURES:
                self._failures.append((source.path, *error))
        if source.sha256:
            self._copies += source.sha256 in self._digests and source.path not in self._before
            self._digests.add(source.sha256)
        # A track that never opened the source does not count: it was done in an earlier run, or lacks the stream.
        if progress := [each for track in self.tracks if (each := track.close(source.path))]:
            self._media_seconds += fmean(each.seconds for each in progress)

    def snapshot(self) -> Snapshot:
        """Return the figures of the run now."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        for track in self.tracks:
            track.look()
        paths = {path for track in self.tracks for path in track.open}
        progress = [[track.open[path] for track in self.tracks if path in track.open] for path in paths]
        media_seconds = self._media_seconds + sum(fmean(one.seconds for one in source) for source in progress)
        left = self.time_left()
        return Snapshot(
            sources=self._sources,
            sources_done=self._done,
            sources_failed=self._failed,
            sources_before=len(self._before),
            sources_copies=self._copies,
            sources_gone=self.gone,
            others=self.others,
            others_failed=self.others_failed,
            seconds=seconds,
            media_hours_per_hour=media_seconds / seconds,
            eta_seconds=left.seconds if left else None,
            eta_plus_minus=left.plus_minus if left else None,
            lanes=tuple(track.snapshot(seconds) for track in self.tracks),
            outage=next((outage for track in self.tracks if (outage := track.outage())), None),
            failures=tuple(self._failures),
            stall_p99_ms=self.stalls.p99_ms,
            stall_longest_ms=self.stalls.longest_ms,
        )

    def time_left(self) -> TimeLeft | None:
        """Return the time left of the track that needs longest; None while nothing is known about one of them."""
        times = [track.time_left() for track in self.tracks]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None
