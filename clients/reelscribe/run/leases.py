"""The leases of sources to nodes: which node works on which source, and what happens when a node is lost.

`LeaseBook` decides what is leased, leased again, or given up, and `Pace` how much at once. `OutcomesInOrder` puts what
came of sources into the order of the list. None of them does any I/O.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reelscribe.contract.outcomes import SourceError
from reelscribe.reporting.formatting import count

SUSPECT_LOSSES = 2
"""Number of lost nodes after which a source is suspected to be the cause. It is then leased alone to a node."""

LOSSES_ALONE = 3
"""Number of nodes that must be lost while a suspect was leased alone, until it counts as the cause."""

LEASE_SECONDS = 4.0
"""Seconds of work that are leased to a node at once, at the speed at which it did its last sources."""

MOST_LEASES = 1024
"""Largest number of sources that are leased to a node at once."""

MOST_UNSEEN = 100
"""Number of sources that a node cannot see, and that wait for others, from which on it gets no new ones."""


@dataclass
class _Source:
    """A source that is leased, or is to be leased again."""

    path: str
    losses: int = 0
    """Number of nodes that were lost while they had begun it, or might have."""
    lost_alone: list[str] = field(default_factory=list)
    """The nodes that were lost while it was leased alone, as a suspect."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Why nodes cannot see it, by their names."""
    seen_nowhere: bool = False
    """True if the driver cannot see it either, so that it is leased to any node, which tells what is wrong with it."""

    @property
    def is_suspect(self) -> bool:
        return self.losses >= SUSPECT_LOSSES


class Leased(NamedTuple):
    """A source that is leased now."""

    path: str
    seen_nowhere: bool


class LeaseBook:
    """The leases of a run.

    The sources of a node that is lost are leased again. So are those that a node cannot see, to another one. A source
    that was leased to several nodes when they were lost may have killed them: it is leased alone, after all others.
    """

    def __init__(self, next_sources: Callable[[int], list[str]]) -> None:
        """Begin without leases.

        Args:
            next_sources: Returns up to so many sources that were never leased.
        """
        self._next_sources = next_sources
        self._again: deque[_Source] = deque()
        """Sources that are to be leased again."""
        self._leased: dict[str, dict[str, _Source]] = {}
        """The sources that each node works on, by the name of the node and the path."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is leased, and nothing is to be leased again."""
        return not self._again and not any(self._leased.values())

    def count(self, node: str) -> int:
        """Return how many sources a node works on."""
        return len(self._leased.get(node, ()))

    def take(self, node: str, most: int, others: Collection[str] = ()) -> list[Leased]:
        """Lease up to so many sources to a node.

        Args:
            node: Name of the node.
            most: Largest number of sources.
            others: The names of the other nodes. A suspect goes to one that was not lost with it, if there is one.
        """
        held = self._leased.setdefault(node, {})
        if any(source.is_suspect for source in held.values()):
            return []
        chosen = self._pick(lambda source: not source.is_suspect and node not in source.unseen, most)
        if sum(node in source.unseen for source in self._again) < MOST_UNSEEN:
            chosen += [_Source(path) for path in self._next_sources(most - len(chosen))]
        if not chosen and not held:
            chosen = self._pick(lambda source: self._may_be_tried_alone(source, node, others), 1)
        held.update((source.path, source) for source in chosen)
        return [Leased(source.path, source.seen_nowhere) for source in chosen]

    def holds(self, node: str, path: str) -> bool:
        """Return whether a source is leased to a node."""
        return path in self._leased.get(node, ())

    def finish(self, node: str, path: str) -> None:
        """Note that a node has done a source."""
        self._leased[node].pop(path, None)

    def give_back(self, node: str, paths: Iterable[str]) -> None:
        """Note that a node will not do sources."""
        held = self._leased.get(node, {})
        self._again.extend(source for path in paths if (source := held.pop(path, None)))

    def give_back_all(self, node: str) -> None:
        """Note that a node will do nothing more."""
        self._again.extend(self._leased.pop(node, {}).values())

    def surplus(self, at_once: Mapping[str, int]) -> tuple[str, int] | None:
        """Return the node with the most sources, and half of those that wait there, if another one has nothing to do.

        Args:
            at_once: How many sources each ready node can decode at once, by its name.

        Returns:
            The name of the node and the number of sources that it should give back; None if no node waits for any.
        """
        if self._again or all(map(self.count, at_once)):
            return None
        busiest = max(at_once, key=self.count)
        waiting = self.count(busiest) - at_once[busiest]
        return (busiest, math.ceil(waiting / 2)) if waiting > 0 else None

    def unseen(self, node: str, path: str, why: str) -> None:
        """Note that a node cannot see a source; another node may."""
        if source := self._leased[node].pop(path, None):
            source.unseen[node] = why
            self._again.append(source)

    def seen_nowhere(self, path: str) -> None:
        """Note that the driver cannot see a source either, so that any node can tell what is wrong with it."""
        for source in self._again:
            if source.path == path:
                source.unseen, source.seen_nowhere = {}, True

    def lose(self, node: str) -> bool:
        """Note that a node is lost. Returns whether it worked on a suspect, which may be the cause."""
        lost = list(self._leased.pop(node, {}).values())
        with_suspect = any(source.is_suspect for source in lost)
        for source in lost:
            if source.is_suspect:
                source.lost_alone.append(node)
            source.losses += 1
        self._again.extend(lost)
        return with_suspect

    def hopeless(self, nodes: Collection[str]) -> list[tuple[str, str]]:
        """Return the sources that are not leased any more, because they kill nodes or no node sees them, and why.

        Args:
            nodes: The names of all nodes that sources can be leased to.
        """
        reasons = [(source.path, reason) for source in self._again if (reason := _why_hopeless(source, nodes))]
        if reasons:
            paths = {path for path, _ in reasons}
            self._again = deque(source for source in self._again if source.path not in paths)
        return reasons

    @staticmethod
    def _may_be_tried_alone(source: _Source, node: str, others: Collection[str]) -> bool:
        elsewhere = any(other not in source.lost_alone and other not in source.unseen for other in others)
        return node not in source.unseen and not (node in source.lost_alone and elsewhere)

    def _pick(self, fits: Callable[[_Source], bool], most: int) -> list[_Source]:
        chosen: list[_Source] = []
        for _ in range(len(self._again)):
            source = self._again.popleft()
            (chosen if len(chosen) < most and fits(source) else self._again).append(source)
        return chosen


class Pace:
    """How fast each node does sources, and so how many are leased to it at once."""

    def __init__(self) -> None:
        """Begin without knowing any node."""
        self._rates: dict[str, float] = {}
        """Sources per second that each node has done lately."""
        self._finished: Counter[str] = Counter()
        """Number of sources that each node has done since the last update."""

    def finished(self, node: str) -> None:
        """Count a source that a node has done."""
        self._finished[node] += 1

    def update_rates(self, nodes: Iterable[str], seconds: float) -> None:
        """Learn the speed of nodes, so many seconds after the last update."""
        for node in nodes:
            self._update_rate(node, seconds)

    def _update_rate(self, node: str, seconds: float) -> None:
        self._rates[node] = (self._rates.get(node, 0.0) + self._finished.pop(node, 0) / seconds) / 2

    def room(self, node: str, held: int, at_once: int) -> int:
        """Return how many more sources are to be leased to a node.

        Args:
            node: Name of the node.
            held: Number of sources that are leased to it.
            at_once: Number of sources on which it can work at the same time.

        Returns:
            The number; 0 also if so few are missing that they can wait for others.
        """
        wanted = min(MOST_LEASES, max(2 * at_once, math.ceil(LEASE_SECONDS * self._rates.get(node, 0.0))))
        room = wanted - held
        return room if room >= max(1, wanted // 4) else 0


def _why_hopeless(source: _Source, nodes: Collection[str]) -> str | None:
    if len(source.lost_alone) >= LOSSES_ALONE:
        return (
            f"{source.losses} nodes were lost while they worked on it, {len(source.lost_alone)} of them on nothing"
            " else; it is tried again with the next run"
        )
    if nodes and all(node in source.unseen for node in nodes):
        (node, why), *others = source.unseen.items()
        and_others = f", nor on {count(len(others), 'other')}" if others else ""
        return (
            f"it cannot be seen on the node {node} ({why}){and_others}, only where the command runs; mount its folder"
            " at the same path on all nodes, and run the command again"
        )
    return None


class OutcomesInOrder:
    """The outcomes of sources, in the order in which the sources were taken from the list."""

    def __init__(self, limit: int) -> None:
        """Begin without sources.

        Args:
            limit: Largest number of outcomes that wait for a source before them.
        """
        self._limit = limit
        self._held: list[tuple[int, str, SourceError | None]] = []
        self._open: list[int] = []
        """The numbers of all sources that are taken and not passed on, those that are not done included."""

    def __len__(self) -> int:
        """Return how many outcomes wait for a source before them."""
        return len(self._held)

    @property
    def open(self) -> int:
        """Number of sources that are taken from the list and not passed on."""
        return len(self._open)

    def taken(self, number: int) -> None:
        """Note that a source was taken from the list; the numbers ascend."""
        self._open.append(number)

    def done(self, number: int, path: str, error: SourceError | None) -> None:
        """Note that a source is done, with the error of its record."""
        heapq.heappush(self._held, (number, path, error))

    def pop(self) -> tuple[str, SourceError | None] | None:
        """Return the next outcome; None if a source before it is not done, and not too many wait for that."""
        if not self._held or (self._held[0][0] != self._open[0] and len(self._held) <= self._limit):
            return None
        number, path, error = heapq.heappop(self._held)
        if number == self._open[0]:
            heapq.heappop(self._open)
        else:
            self._open.remove(number)
            heapq.heapify(self._open)
        return path, error
