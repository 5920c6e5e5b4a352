"""Adds up what the nodes of a run count, and its sources; a snapshot holds the figures of one moment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import reduce
from math import inf
from operator import add
from typing import Any, Self

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.bottleneck import IDLE, STARTING, WAITING, WINDOW_SECONDS, find_bottleneck
from reelscribe.reporting.counters import Counters, NodeReport, Resources
from reelscribe.reporting.time_left import Moments, SourceSize, TimeLeft, Work, time_left
from reelscribe.reporting.units import UNITS, Counts

FIRST_FAILURES = 5
"""Number of failed sources that a snapshot names."""


@dataclass(frozen=True)
class TrackSnapshot:
    """The figures of one track at one moment. All shares are fractions from 0 to 1."""

    counts: Counts
    """Unit of `done`, `done_before`, `unsent` and `decoded`."""
    done: float
    """Frames or seconds of audio with a result from this run, including reused frames and silence."""
    decoded: float
    """Frames or seconds of audio that this run has decoded, from files that were read to their ends."""
    decode_share: float
    """Fraction of decode-process time spent decoding."""
    network_share: float
    """Fraction of all request time spent sending requests."""
    queue_share: float
    """Fraction of all request time spent waiting in the server's queue."""
    compute_share: float
    """Fraction of all request time spent computing in a worker."""
    server_share: float
    """Fraction of worker time spent on requests of this run."""
    bottleneck: str
    """The bottleneck and what would help, in a few words."""
    done_before: float | None = 0.0
    """Frames or seconds of audio of these sources with a result from earlier runs; None after sources were forgotten,
    when nobody knows."""
    unsent: float = 0.0
    """Part of `done` that was not sent to a server: reused frames, or silence."""
    requests: int = 0
    """Number of requests that were answered."""
    retries: int = 0
    """Number of requests that were sent again."""
    tokens: int = 0
    """Number of tokens that a model behind OpenAI's API has written; 0 for others, which do not say."""
    substituted: int = 0
    """Number of sources that PyAV has read in place of the decoder that was chosen."""
    eta_seconds: float | None = None
    """Seconds until the track is done; None until something is known."""
    server_workers: int = 0
    """Number of workers that serve the model now."""
    requests_in_flight: int = 0
    """The limit on the number of requests in flight now."""
    requests_wanted: int = 0
    """Number of requests that keep all these workers busy."""
    call_items: float = 0.0
    """Mean number of items (frames, clips, chunks or windows) of a call; 0 if nobody says it."""
    full_call: int = 0
    """Number of items of a call when all its requests have come."""
    run_bottleneck: str = ""
    """The bottleneck of the whole run so far; `bottleneck` is that of its last half minute."""


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
    done_share: float = 0.0
    """Fraction of the work (0 to 1) that is done, by the duration of sources; those of earlier runs are included."""

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
        """The track that will need longest, of those that have something to do; None before there is a track."""
        return max(self.tracks, key=_rank, default=None)

    @property
    def bottleneck(self) -> str:
        """The bottleneck of the run: that of the slowest track."""
        return self.slowest.bottleneck if self.slowest else STARTING

    @property
    def nodes_ready(self) -> int:
        """Number of nodes to which sources are leased."""
        return sum(node.is_ready for node in self.nodes)

    def _done(self, counts: Counts) -> float:
        return sum(track.done for track in self.tracks if track.counts == counts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Restore a snapshot from the JSON that `asdict` made of it; other keys are left out.

        An earlier version of reelscribe may not have known figures that have a default.

        Raises:
            KeyError: A figure is missing.
            TypeError: A part of it is none.
        """
        known: dict[str, Any] = {
            each.name: value[each.name] for each in fields(cls) if each.name in value or each.default is MISSING
        }
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
    report: NodeReport | None = None
    """The figures that it reported last, since it was started last."""
    read_report: Callable[[], NodeReport] | None = None
    """Reads the figures of a node in this process; None for one that reports them."""
    is_local: bool = False
    """True if it is a part of this process, and so not told apart from the run."""
    window: deque[Sequence[Counters]] = field(default_factory=deque)
    """The sums of its tracks at moments of the last WINDOW_SECONDS, the oldest first."""

    def keep(self, report: NodeReport) -> None:
        """Take note of what the node reports, which is nothing until it has all its tracks."""
        if not report.tracks:
            return
        self.report = report
        sums = [counters for counters, _ in report.tracks]
        if report.outage or not self.window:  # what a run waits for then says nothing about its limits
            self.window = deque([sums if report.outage else [Counters()] * len(sums)])
        self.window.append(sums)
        while len(self.window) > 2 and self.window[1][0].seconds <= sums[0].seconds - WINDOW_SECONDS:
            self.window.popleft()

    def snapshot(self, track: int, *, more_to_come: bool) -> NodeSnapshot:
        """Return the figures at this moment, with the bottleneck of the track of this number."""
        speed, limit = 0.0, ""
        if self.report:
            now, has = self.report.tracks[track]
            speed = self.report.media_seconds / max(now.seconds, 1e-9)
            limit = find_bottleneck(self.window[0][track], now, has, more_to_come=more_to_come)
        return NodeSnapshot(self.name, self.state, self.sources_open, self.sources_done, speed, limit)


class _Track:
    """How much there is to do for a track."""

    def __init__(self, counts: Counts, speed_before: float | None) -> None:
        self.counts, self.speed_before = counts, speed_before
        self.all, self.to_do, self.finished = Work(), Work(), Work()
        """All sources, what earlier runs have left of them, and the part of that which is finished."""
        self.before = 0.0
        """Frames or seconds of audio of the sources that earlier runs have done."""
        self.moments = Moments()

    def has_work(self, size: SourceSize) -> bool:
        """Return whether a source is work for the track: nothing is made of a recording that has no pictures."""
        return size.kind == "video" or not UNITS[self.counts].pictures


class Meter:
    """Measures a run: counts its sources, adds up what its nodes report, and tells the time left."""

    def __init__(self) -> None:
        """Start the clock of a run."""
        self.nodes: dict[str, NodeFigures] = {}
        """All nodes that there were, by their names."""
        self.all_listed = False
        """True if the list of sources is complete."""
        self.all_leased = False
        """True if no source waits to be leased."""
        self.others = self.others_failed = 0
        """Number of sources that this run does not name, and of errors of records that it does not count."""
        self.gone = 0
        """Number of sources of this run and earlier ones that are gone from the disk."""
        self.nodes_lost = 0
        """How often a node was lost."""
        self._began = self._last = time.monotonic()
        self._in_service = 0.0
        """Seconds of the run without those in which it waited for a server."""
        self._sources = self._done = self._before = self._failed = self._copies = 0
        self._failures: list[tuple[str, str, str]] = []
        self._contents: set[int] = set()
        """The contents of the sources that are done, by 8 bytes of their digests, as a million must fit into memory."""
        self._listed = Work()
        """All sources, whose durations tell those of others."""
        self._tracks: list[_Track] = []
        self._totals: list[Counters] = []
        """The sums of each track over all nodes, those included that have ended."""
        self._ended: NodeReport | None = None
        """The sum of what nodes had reported before they ended."""

    def add_track(self, counts: Counts, speed_before: float | None = None) -> None:
        """Add a track, before the first source is expected.

        Args:
            counts: The unit in which it counts.
            speed_before: Its speed in an earlier run, as `speeds` returned it; None if it is not known.
        """
        self._tracks.append(_Track(counts, speed_before))
        self._totals.append(Counters())

    def expect(self, size: SourceSize, shares: Sequence[float], amounts: Sequence[float] = ()) -> None:
        """Count a source as one of the run.

        Args:
            size: What is known about it.
            shares: Fraction of it (0 to 1) that earlier runs have done, for each track.
            amounts: Frames or seconds of audio of it that earlier runs have done, for each track.
        """
        self._sources += 1
        for track, amount in zip(self._tracks, amounts, strict=False):
            track.before += amount
        self._add(size, shares, 1.0)

    def learn(self, old: SourceSize, new: SourceSize, shares: Sequence[float]) -> None:
        """Count a source that is not finished by what has become known of it. See `expect`."""
        self._add(old, shares, -1.0)
        self._add(new, shares, 1.0)

    def done_before(self) -> None:
        """Count a source as one that earlier runs have done."""
        self._done += 1
        self._before += 1

    def finished(
        self,
        source: Source,
        error: SourceError | None,
        size: SourceSize | None = None,
        shares: Sequence[float] = (),
        *,
        before: bool = False,
    ) -> None:
        """Count a source as done.

        Args:
            source: The source.
            error: The error of its record.
            size: What it was counted by last; None if it was not.
            shares: Those with which it was expected.
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
        for track, share in zip(self._tracks, shares, strict=False):
            if size and track.has_work(size):
                track.finished.add(size, 1 - share)

    def ended(self, node: NodeFigures) -> None:
        """Keep what a node has done before it is started again, or for good."""
        self._read_reports()
        if node.report:
            both = [node.report, *([self._ended] if self._ended else [])]
            tracks = [_added(each) for each in zip(*(each.tracks for each in both), strict=True)]
            self._ended = NodeReport(sum(each.media_seconds for each in both), tracks)
        node.report, node.read_report, node.sources_open = None, None, 0
        node.window.clear()

    @property
    def replaced_processes(self) -> int:
        """Number of decode processes that died, or were killed because they hung."""
        self._read_reports()
        return int(sum(total.replaced for total in self._totals))

    def snapshot(self) -> Snapshot:
        """Return the figures of the run now."""
        self._read_reports()
        now, reports, live = time.monotonic(), self._reports, self._live
        self._in_service += 0.0 if live and all(report.outage for report in live) else now - self._last
        self._last, seconds = now, max(now - self._began, 1e-9)
        for number, track in enumerate(self._tracks):
            track.moments.add(self._in_service, self._totals[number].worked)
        everything = sum(track.all.seconds(self._listed) for track in self._tracks)
        seconds_left = sum(self._seconds_left(number) for number in range(len(self._tracks)))
        left = self.time_left()
        tracks = tuple(self._track_snapshot(number) for number in range(len(self._tracks) if reports else 0))
        slowest = max(range(len(tracks)), key=lambda number: _rank(tracks[number]), default=0)
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
            media_seconds_per_second=sum(report.media_seconds for report in reports) / seconds,
            eta_seconds=left.seconds if left else None,
            eta_plus_minus=left.plus_minus if left else None,
            tracks=tracks,
            outage=next((report.outage for report in live if report.outage), None),
            failures=tuple(self._failures),
            nodes=tuple(
                node.snapshot(slowest, more_to_come=self._more_to_come)
                for node in self.nodes.values()
                if not node.is_local
            ),
            nodes_lost=self.nodes_lost,
            all_listed=self.all_listed,
            done_share=1 - seconds_left / everything if everything else float(self.all_listed),
        )

    def time_left(self) -> TimeLeft | None:
        """Return the time left of the track that needs longest; None while nothing is known about one of them."""
        times = [self._time_left(number) for number in range(len(self._tracks))]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) and self.all_listed else None

    def speeds(self) -> list[float | None]:
        """Return the speed of each track, for the next run: seconds of media per second; None if it is not known."""
        speeds: list[float | None] = []
        for number, track in enumerate(self._tracks):
            parts = track.moments.speeds() if track.moments.is_enough(self._seconds_left(number)) else []
            speeds.append(sum(parts) / len(parts) if parts else track.speed_before)
        return speeds

    @property
    def _reports(self) -> list[NodeReport]:
        return [*([self._ended] if self._ended else []), *self._live]

    @property
    def _live(self) -> list[NodeReport]:
        return [node.report for node in self.nodes.values() if node.report]

    @property
    def _more_to_come(self) -> bool:
        return not (self.all_listed and self.all_leased)

    def _read_reports(self) -> None:
        for node in self.nodes.values():
            if node.read_report:
                node.keep(node.read_report())
        self._totals = [
            Counters.total([report.tracks[number][0] for report in self._reports])
            for number in range(len(self._tracks))
        ]

    def _add(self, size: SourceSize, shares: Sequence[float], sign: float) -> None:
        self._listed.add(size, sign)
        for track, share in zip(self._tracks, shares, strict=True):
            if track.has_work(size):
                track.all.add(size, sign)
                track.to_do.add(size, sign * (1 - share))

    def _seconds_done(self, number: int) -> float:
        """Return the seconds of media that this run has done for a track, those of open sources included."""
        opened = sum(report.tracks[number][1].open_seconds for report in self._live)
        return self._tracks[number].finished.seconds(self._listed) + opened

    def _seconds_left(self, number: int) -> float:
        # Sums of shares that are taken away again leave something that is no media.
        return max(0.0, round(self._tracks[number].to_do.seconds(self._listed) - self._seconds_done(number), 3))

    def _time_left(self, number: int) -> TimeLeft | None:
        track, sums = self._tracks[number], self._totals[number]
        left, done = self._seconds_left(number), self._seconds_done(number)
        if not left and not self.all_listed:
            return None
        # As much of what is left will turn out to be damaged, a copy, or without the stream, as of what is done.
        likely = left * sums.worked / done if sums.worked and done else left
        least = (sums.network + sums.compute) / max(1.0, sums.requests)
        if sums.worked and sums.busy > (1 - WAITING) * sums.with_file:  # else it is the server that takes long
            longest = (report.tracks[number][1].longest_seconds for report in self._live)
            least = max(least, max(longest, default=0.0) * sums.busy / sums.worked)
        return time_left(likely, track.moments, self._done - self._before, least, track.speed_before)

    def _track_snapshot(self, number: int) -> TrackSnapshot:
        """Return the sums of a track over all nodes, and the shares and the bottleneck of those that are in use."""
        track, total = self._tracks[number], self._totals[number]
        now, has = _added([report.tracks[number] for report in self._live or self._reports])
        before = Counters.total([node.window[0][number] for node in self.nodes.values() if node.report])
        left = self._time_left(number)
        processes = now.seconds / has.nodes * max(1, has.decode_workers)
        workers = now.seconds / has.nodes * max(1, has.server_workers)
        return TrackSnapshot(
            counts=track.counts,
            done=total.done,
            decoded=total.decoded,
            decode_share=min(1.0, now.busy / max(processes, 1e-9)),
            network_share=now.network / max(now.request_seconds, 1e-9),
            queue_share=now.queue / max(now.request_seconds, 1e-9),
            compute_share=now.compute / max(now.request_seconds, 1e-9),
            server_share=min(1.0, now.compute / max(workers, 1e-9)),
            bottleneck=find_bottleneck(before, now, has, more_to_come=self._more_to_come),
            done_before=max(0.0, track.before - total.redone),
            unsent=total.unsent,
            requests=int(total.requests),
            retries=int(total.retries),
            tokens=int(total.tokens),
            substituted=int(total.substituted),
            eta_seconds=left.seconds if left else None,
            server_workers=round(has.server_workers),
            requests_in_flight=has.requests_in_flight,
            requests_wanted=has.requests_wanted,
            call_items=now.since(before).call_items,
            full_call=has.full_call if now.calls else 0,
            run_bottleneck=find_bottleneck(Counters(), now, has, more_to_come=True),
        )


def _rank(track: TrackSnapshot) -> tuple[bool, float]:
    """Return by what the track is found that holds up the others: it has something to do, and needs longest."""
    return track.bottleneck not in IDLE, inf if track.eta_seconds is None else track.eta_seconds


def _added(parts: Sequence[tuple[Counters, Resources]]) -> tuple[Counters, Resources]:
    return Counters.total([sums for sums, _ in parts]), reduce(add, (has for _, has in parts))
