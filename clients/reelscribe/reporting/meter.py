"""Measures how much a run has done and where its time goes; a snapshot holds the figures of one moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.forecast import Costs, Forecast, OpenCost, SourceCost, SourceSize, TimeLeft
from reelscribe.reporting.node_meter import NodeReport
from reelscribe.reporting.track_meter import TrackSnapshot
from reelscribe.reporting.units import UNITS, Counts

FIRST_FAILURES = 5
"""Number of failed sources that a snapshot names."""


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
    media_seconds_per_second: float
    """Seconds of video or audio that it annotates per second."""
    bottleneck: str
    """The bottleneck of its speed; empty if nothing is known."""

    @property
    def is_ready(self) -> bool:
        """True if sources are leased to it."""
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
    media_seconds_per_second: float
    """Seconds of video or audio that the run has annotated per second."""
    eta_seconds: float | None
    """Seconds until the run is done; None until something is known about what sources cost."""
    tracks: tuple[TrackSnapshot, ...]
    """One for each track."""
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
    """True if all sources have been found; a run begins before."""

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
        return max(self.tracks, key=lambda track: track.eta_seconds or 0.0, default=None)

    @property
    def bottleneck(self) -> str:
        """The bottleneck of the run: that of the slowest track."""
        return self.slowest.bottleneck if self.slowest else "starting"

    @property
    def nodes_ready(self) -> int:
        """Number of nodes to which sources are leased."""
        return sum(node.is_ready for node in self.nodes)

    def _done(self, counts: Counts) -> float:
        return sum(track.done for track in self.tracks if track.counts == counts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Restore a snapshot from the JSON that `asdict` made of it; other keys are left out.

        Raises:
            KeyError: A figure is missing.
            TypeError: A part of it is none.
        """
        known: dict[str, Any] = {field.name: value[field.name] for field in fields(cls)}
        known["tracks"] = tuple(TrackSnapshot(**track) for track in known["tracks"])
        known["outage"] = Outage(**known["outage"]) if known["outage"] else None
        known["nodes"] = tuple(NodeSnapshot(**node) for node in known["nodes"])
        known["failures"] = tuple((path, kind, message) for path, kind, message in known["failures"])
        return cls(**known)


@dataclass
class NodeFigures:
    """The figures of one node."""

    name: str
    state: str = "starting"
    """How it is, in a few words."""
    sources_open: int = 0
    sources_done: int = 0
    workers: Sequence[int] = ()
    """Number of decode processes of each track; empty while it is not ready."""
    report: NodeReport | None = None
    """The figures that it reported last, since it was started last."""
    read_report: Callable[[], NodeReport] | None = None
    """Reads the figures of a node in this process; None for one that reports them."""
    is_local: bool = False
    """True if it is a part of this process, and so not told apart from the run."""

    def snapshot(self, track: int) -> NodeSnapshot:
        """Return the figures at this moment, with the bottleneck of the track of this number."""
        speed = self.report.media_seconds / self.report.seconds if self.report else 0.0
        bottleneck = self.report.tracks[track].bottleneck if self.report else ""
        return NodeSnapshot(self.name, self.state, self.sources_open, self.sources_done, speed, bottleneck)


class Meter:
    """Measures a run: counts its sources, adds up what its nodes report, and forecasts the time left."""

    def __init__(self) -> None:
        """Start the clock of a run."""
        self.nodes: dict[str, NodeFigures] = {}
        """All nodes that there were, by their names."""
        self.forecasts: list[Forecast] = []
        """The forecast of each track."""
        self.all_listed = False
        """True if the list of sources is complete."""
        self.others = self.others_failed = 0
        """Number of sources that this run does not name, and of errors of records that it does not count."""
        self.gone = 0
        """Number of sources of this run and earlier ones that are gone from the disk."""
        self.nodes_lost = 0
        """How often a node was lost."""
        self._began = time.monotonic()
        self._sources = self._done = self._before = self._failed = self._copies = 0
        self._failures: list[tuple[str, str, str]] = []
        self._contents: set[int] = set()
        """The contents of the sources that are done, by 8 bytes of their digests, as a million must fit into memory."""
        self._units: list[Counts] = []
        self._done_before: list[float] = []
        """For each track, what earlier runs have done of these sources."""
        self._ended: list[NodeReport] = []
        """The sum of what nodes had reported before they ended; at most one."""

    def add_track(self, counts: Counts, costs: Costs | None = None) -> None:
        """Add a track, before the first source is expected.

        Args:
            counts: The unit in which it counts.
            costs: The cost of sources as earlier runs have learned it; None if nothing is known.
        """
        self._units.append(counts)
        self._done_before.append(0.0)
        self.forecasts.append(Forecast(1, costs))

    def expect(self, path: str, size: SourceSize, shares: Sequence[float], amounts: Sequence[float] = ()) -> None:
        """Count a source as one of the run.

        Args:
            path: The source.
            size: What is known about it.
            shares: Fraction of it (0 to 1) that earlier runs have done, for each track.
            amounts: Frames or seconds of audio of it that earlier runs have done, for each track.
        """
        self._sources += 1
        for number, amount in enumerate(amounts):
            self._done_before[number] += amount
        self.expect_again(path, size, shares)

    def expect_again(self, path: str, size: SourceSize, shares: Sequence[float]) -> None:
        """Forecast a source as one that waits, because it is new or its node does not do it. See `expect`."""
        for forecast, share in self._forecasts_of(size, shares):
            forecast.expect(path, size, 1 - share)

    def leased(self, path: str, size: SourceSize, shares: Sequence[float]) -> None:
        """Note that a node may soon begin with a source. See `expect`."""
        for forecast, share in self._forecasts_of(size, shares):
            forecast.single_out(path, size, 1 - share)

    def done_before(self) -> None:
        """Count a source as one that earlier runs have done."""
        self._done += 1
        self._before += 1

    def learn_duration(self, path: str, seconds: float) -> None:
        """Keep the duration of a source that waits."""
        for forecast in self.forecasts:
            forecast.learn_duration(path, seconds)

    def finished(
        self,
        source: Source,
        error: SourceError | None,
        costs: Sequence[SourceCost | None] = (),
        *,
        before: bool = False,
    ) -> None:
        """Count a source as done.

        Args:
            source: The source.
            error: The error of its record.
            costs: What it has cost each track; None for one that has decoded nothing of it.
            before: Whether `done_before` has counted it.
        """
        self._done += not before
        if error:
            self._failed += 1
            if len(self._failures) < FIRST_FAILURES:
                self._failures.append((source.path, *error))
        if source.sha256:
            content = int(source.sha256[-16:], 16)
            self._copies += content in self._contents and not before
            self._contents.add(content)
        for forecast in self.forecasts:
            forecast.opened(source.path)
        for forecast, cost in zip(self.forecasts, costs, strict=False):
            if cost:
                forecast.learn(*cost)

    def ended(self, node: NodeFigures) -> None:
        """Keep what a node has done before it is started again, or for good."""
        self._read_reports()
        if node.report:
            self._ended = [_added([*self._ended, node.report])]
        node.report, node.read_report, node.workers, node.sources_open = None, None, (), 0

    @property
    def replaced_processes(self) -> int:
        """Number of decode processes that died, or were killed because they hung."""
        return sum(report.replaced_processes for report in self._reports)

    def snapshot(self) -> Snapshot:
        """Return the figures of the run now."""
        self._read_reports()
        seconds = max(time.monotonic() - self._began, 1e-9)
        live = [node.report for node in self.nodes.values() if node.report]
        total = _added(self._reports)
        times = self._times_left()
        left = self._longest(times)
        slowest = max(range(len(times)), key=lambda number: times[number] or _NO_TIME, default=0)
        return Snapshot(
            sources=self._sources,
            sources_done=self._done,
            sources_failed=self._failed,
            sources_before=self._before,
            sources_copies=self._copies,
            sources_gone=self.gone,
            others=self.others,
            others_failed=self.others_failed,
            seconds=seconds,
            media_seconds_per_second=total.media_seconds / seconds,
            eta_seconds=left.seconds if left else None,
            eta_plus_minus=left.plus_minus if left else None,
            tracks=tuple(
                replace(
                    _with_shares(track, [report.tracks[number] for report in live]),
                    done_before=self._done_before[number],
                    eta_seconds=time_left.seconds if time_left else None,
                )
                for number, (track, time_left) in enumerate(zip(total.tracks, times, strict=False))
            ),
            outage=total.outage,
            failures=tuple(self._failures),
            nodes=tuple(node.snapshot(slowest) for node in self.nodes.values() if not node.is_local),
            nodes_lost=self.nodes_lost,
            all_listed=self.all_listed,
        )

    def time_left(self) -> TimeLeft | None:
        """Return the time left of the track that needs longest; None while nothing is known about one of them."""
        return self._longest(self._times_left())

    def costs(self) -> list[Costs]:
        """Return what sources have cost each track, those that are being decoded included, for the next run."""
        self._read_reports()
        return [forecast.costs_with(self._in_progress(number)) for number, forecast in enumerate(self.forecasts)]

    @property
    def _reports(self) -> list[NodeReport]:
        return [*self._ended, *(node.report for node in self.nodes.values() if node.report)]

    def _read_reports(self) -> None:
        for node in self.nodes.values():
            if node.read_report:
                node.report = node.read_report()

    def _times_left(self) -> list[TimeLeft | None]:
        for number, forecast in enumerate(self.forecasts):
            forecast.workers = max(1, sum(node.workers[number] for node in self.nodes.values() if node.workers))
        return [forecast.time_left(self._in_progress(number)) for number, forecast in enumerate(self.forecasts)]

    def _longest(self, times: Sequence[TimeLeft | None]) -> TimeLeft | None:
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) and self.all_listed else None

    def _in_progress(self, number: int) -> list[OpenCost]:
        """Return what sources that are being decoded have cost a track so far."""
        costs: list[OpenCost] = []
        for node in self.nodes.values():
            if node.report and number < len(node.report.in_progress):
                for path, cost in node.report.in_progress[number].items():
                    self.forecasts[number].opened(path)
                    costs.append(cost)
        return costs

    def _forecasts_of(self, size: SourceSize, shares: Sequence[float]) -> Iterator[tuple[Forecast, float]]:
        """Yield the forecasts of the tracks that have something to do for a source, and how much of it is done."""
        for forecast, counts, share in zip(self.forecasts, self._units, shares, strict=True):
            # Nothing is decoded of a recording that has no pictures, so it costs a captioner nothing.
            if share < 1 and (size.kind == "video" or not UNITS[counts].pictures):
                yield forecast, share


_NO_TIME = TimeLeft(0.0, 0.0)
_NOTHING = NodeReport(0.0, 0.0, (), ())


def _added(reports: Sequence[NodeReport]) -> NodeReport:
    """Return the sum of what nodes have done."""
    if not reports:
        return _NOTHING
    return NodeReport(
        0.0,
        sum(report.media_seconds for report in reports),
        [_added_tracks(tracks) for tracks in zip(*(report.tracks for report in reports), strict=True)],
        (),
        next((report.outage for report in reports if report.outage), None),
        sum(report.replaced_processes for report in reports),
    )


def _added_tracks(tracks: Sequence[TrackSnapshot]) -> TrackSnapshot:
    added = ("done", "decoded", "unsent", "requests", "retries", "tokens", "substituted")
    limits = ("requests_in_flight", "requests_wanted")
    return replace(tracks[0], **{name: sum(getattr(track, name) for track in tracks) for name in (*added, *limits)})


def _with_shares(total: TrackSnapshot, tracks: Sequence[TrackSnapshot]) -> TrackSnapshot:
    """Return the sum of a track with the means of how busy live nodes are, and the bottleneck of most of them."""
    if not tracks:
        return total
    shares = ("decode_share", "network_share", "queue_share", "compute_share", "server_share", "call_items")
    means = {name: sum(getattr(track, name) for track in tracks) / len(tracks) for name in shares}
    ((bottleneck, nodes),) = Counter(track.bottleneck for track in tracks).most_common(1)
    where = f" on {nodes} of {len(tracks)} nodes" if nodes < len(tracks) else ""
    return replace(total, **means, bottleneck=f"{bottleneck}{where}")
