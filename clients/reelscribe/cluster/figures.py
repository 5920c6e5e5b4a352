"""Adds up the figures of all nodes to those of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.meter import FIRST_FAILURES, NodeSnapshot, Snapshot, Stalls
from reelscribe.reporting.track_meter import TrackSnapshot


@dataclass
class NodeFigures:
    """The figures of one node."""

    name: str
    state: str = "starting"
    """How it is, in a few words."""
    sources_open: int = 0
    sources_done: int = 0
    report: Snapshot | None = None
    """What it reported last, since it was started last."""
    replaced_processes: int = 0
    """Number of its decode processes that died, or were killed because they hung, since it was started last."""

    def snapshot(self) -> NodeSnapshot:
        """Return the figures at this moment."""
        speed = self.report.media_hours_per_hour if self.report else 0.0
        limit = self.report.bottleneck if self.report else ""
        return NodeSnapshot(self.name, self.state, self.sources_open, self.sources_done, speed, limit)


class ClusterMeter:
    """Measures a run over many machines."""

    def __init__(self) -> None:
        """Start the clock of the run."""
        self.stalls = Stalls()
        """Measures the event loop of the driver."""
        self.nodes: dict[str, NodeFigures] = {}
        """All nodes that there were, by their names."""
        self.sources = 0
        """Number of sources on the list so far."""
        self.all_listed = False
        """Whether the list of sources is complete."""
        self.others = self.others_failed = 0
        """Number of sources that this run does not name, and of errors of records that it does not count. Known at its
        end."""
        self.gone = 0
        """Number of sources of this run and earlier ones that are gone from the disk."""
        self.nodes_lost = 0
        self._began = time.monotonic()
        self._done = self._before = self._failed = self._copies = 0
        self._failures: list[tuple[str, str, str]] = []
        self._contents: set[int] = set()
        """Contents of the sources that are done, by 8 bytes of their digests, as a million must fit into memory."""
        self._ended: list[Snapshot] = []
        """The sum of what nodes had reported before they ended; at most one."""
        self._replaced = 0
        """Number of decode processes that were replaced on nodes before they ended."""

    def finished(self, source: Source, error: SourceError | None, *, known: bool) -> None:
        """Count a source as done.

        Args:
            source: The source.
            error: The error of its record.
            known: Whether an earlier run had done it.
        """
        self._done += 1
        self._before += known
        if error:
            self._failed += 1
            if len(self._failures) < FIRST_FAILURES:
                self._failures.append((source.path, *error))
        if source.sha256:
            content = int(source.sha256[:16], 16)
            self._copies += content in self._contents and not known
            self._contents.add(content)

    def ended(self, node: NodeFigures) -> None:
        """Keep what a node has done before it is started again, or for good."""
        if node.report:
            self._ended = [_added([*self._ended, node.report])]
        self._replaced += node.replaced_processes
        node.report, node.replaced_processes, node.sources_open = None, 0, 0

    @property
    def replaced_processes(self) -> int:
        """Number of decode processes that died, or were killed because they hung."""
        return self._replaced + sum(node.replaced_processes for node in self.nodes.values())

    def snapshot(self) -> Snapshot:
        """Return the figures of the run now."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        live = [node.report for node in self.nodes.values() if node.report]
        total = _added([*self._ended, *live])
        new = self._done - self._before
        left = self.sources - self._done
        return replace(
            total,
            sources=self.sources,
            sources_done=self._done,
            sources_failed=self._failed,
            sources_before=self._before,
            sources_copies=self._copies,
            sources_gone=self.gone,
            others=self.others,
            others_failed=self.others_failed,
            seconds=seconds,
            media_hours_per_hour=total.media_hours_per_hour / seconds,
            # What sources cost is learned on nodes, so here all sources that are left count the same.
            eta_seconds=left * seconds / new if new and self.all_listed else None,
            lanes=tuple(_with_shares(lane, number, live) for number, lane in enumerate(total.lanes)),
            failures=tuple(self._failures),
            stall_p99_ms=self.stalls.p99_ms,
            stall_longest_ms=self.stalls.longest_ms,
            nodes=tuple(node.snapshot() for node in self.nodes.values()),
            nodes_lost=self.nodes_lost,
            all_listed=self.all_listed,
        )


_NOTHING = Snapshot(0, 0, 0, 0.0, 0.0, None, (), 0, 0)


def _added(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the sum of what nodes have done; in place of a speed, it has the hours of media times 3600."""
    if not snapshots:
        return _NOTHING
    media_seconds = sum(each.media_hours_per_hour * each.seconds for each in snapshots)
    lanes = zip(*(each.lanes for each in snapshots if each.lanes), strict=False)
    outage = next((each.outage for each in snapshots if each.outage), None)
    return replace(
        _NOTHING, seconds=1.0, media_hours_per_hour=media_seconds, lanes=tuple(map(_added_lanes, lanes)), outage=outage
    )


def _added_lanes(lanes: Iterable[TrackSnapshot]) -> TrackSnapshot:
    first, *others = lanes
    added = ("done", "decoded", "done_before", "unsent", "requests", "retries")
    return replace(first, **{name: sum(getattr(lane, name) for lane in (first, *others)) for name in added})


def _with_shares(total: TrackSnapshot, number: int, live: Sequence[Snapshot]) -> TrackSnapshot:
    """Return the sum of a track with the means of how busy live nodes are, and what limits most of them."""
    lanes = [each.lanes[number] for each in live if len(each.lanes) > number]
    if not lanes:
        return replace(total, eta_seconds=None)
    shares = ("decode_share", "network_share", "queue_share", "compute_share", "server_share")
    means = {name: sum(getattr(lane, name) for lane in lanes) / len(lanes) for name in shares}
    ((limit, nodes),) = Counter(lane.bottleneck for lane in lanes).most_common(1)
    where = f" on {nodes} of {len(lanes)} nodes" if nodes < len(lanes) else ""
    return replace(total, **means, bottleneck=f"{limit}{where}", eta_seconds=None)
