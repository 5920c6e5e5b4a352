"""The messages of the driver of a run and its nodes. No frame and no audio is among them.

In one process they are passed as they are; between machines, the package `cluster` carries them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Header, Source
from reelscribe.reporting.counters import NodeReport
from reelscribe.reporting.time_left import SourceSize
from reelscribe.run.tracks.planned import PlannedTrack

# From the driver to a node.


class Lease(NamedTuple):
    """A source that a node shall annotate, with what is known about it."""

    path: str
    size: SourceSize
    stat: str = ""
    """Its `file_stat` when the run found it; empty if there was none."""
    sha256: str | None = None
    """Digest of the content that it had then; None if it is not known."""
    seen_nowhere: bool = False
    """True if no node needs to see it, so that its error is that of a file that is not there."""
    options: str = ""
    """Its own options, as `planned.options_in` returns them."""


class Share(NamedTuple):
    """Number of nodes, this one among them, that share the servers, and so the requests that these take."""

    nodes: int


class GiveBack(NamedTuple):
    """The node shall give back up to so many leases of sources that it has not begun."""

    most: int


class Stop(NamedTuple):
    """The node shall save what is in flight and give back everything else."""


# From a node to the driver.


class Ready(NamedTuple):
    """The node has opened its models."""

    tracks: Sequence[PlannedTrack]
    """Its tracks, as far as a driver plans with them."""

    @property
    def decode_processes(self) -> int:
        """Number of its decode processes."""
        return sum(track.workers for track in self.tracks)

    def difference(self, first: Ready) -> str | None:
        """Return how its tracks differ from those of the first node; None if they are equal."""
        pairs = list(zip(self.tracks, first.tracks, strict=True))
        if all((ours.kind, ours.settings_text) == (theirs.kind, theirs.settings_text) for ours, theirs in pairs):
            return None
        different: list[str] = []
        for one, other in pairs:
            ours, theirs = json.loads(one.settings_text), json.loads(other.settings_text)
            names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            different += [f"{name} of {one.kind}" for name in names]
        return f"expected the models and settings of the first node, got another {', '.join(different) or 'kind'}"


class Opened(NamedTuple):
    """A leased source has been opened."""

    path: str
    header: Header
    """Its duration and its frame rate."""


class Finished(NamedTuple):
    """A leased source is done, and the ledger knows."""

    source: Source
    error: SourceError | None


class Unseen(NamedTuple):
    """A leased source cannot be seen from the node."""

    path: str
    why: str


class GivenBack(NamedTuple):
    """Leased sources that the node has not done and will not do."""

    paths: Sequence[str]


class Report(NamedTuple):
    """The figures of the node."""

    figures: NodeReport


ToNode = Lease | Share | GiveBack | Stop
FromNode = Ready | Opened | Finished | Unseen | GivenBack | Report
