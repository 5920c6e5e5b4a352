"""What a node counts for each track: sums that only grow, and what the track has to work with now.

Shares, speeds and bottlenecks follow from the sums at two moments, and those of a run from the sums of its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, Self

from reelscribe._cores import usable_cores
from reelscribe.client.balancer import Outage
from reelscribe.reporting.units import Counts


@dataclass(frozen=True)
class Counters:
    """Sums since a node was started, or those of several nodes. Times are in seconds."""

    seconds: float = 0.0
    """Time since the start."""
    done: float = 0.0
    """Frames or seconds of audio with a result, including reused frames and silence."""
    worked: float = 0.0
    """Seconds of media with a result, with SOURCE_SECONDS for each source, as `time_left` counts work."""
    unsent: float = 0.0
    """Part of `done` that was not sent to a server."""
    redone: float = 0.0
    """Part of `done` that replaces results of earlier runs."""
    decoded: float = 0.0
    """Frames or seconds of audio that were decoded, from files that were read to their ends."""
    substituted: float = 0.0
    """Number of sources that PyAV has read in place of the decoder that was chosen."""
    requests: float = 0.0
    """Number of requests that were answered."""
    retries: float = 0.0
    """Number of requests that were sent again."""
    tokens: float = 0.0
    """Number of tokens that a model has written, as far as answers say it."""
    items: float = 0.0
    """Number of items of the requests whose answers say how many their calls had."""
    calls: float = 0.0
    """Number of calls that answered these; a call with requests of other clients counts in part."""
    network: float = 0.0
    """Time that answered requests took to send."""
    queue: float = 0.0
    """Time that answered requests waited in the server's queue."""
    compute: float = 0.0
    """Time that workers computed for answered requests."""
    in_flight: float = 0.0
    """Time that requests were in flight, answered or not."""
    with_file: float = 0.0
    """Time in which decode processes had a file, summed over all of them."""
    busy: float = 0.0
    """Part of `with_file` in which they were at work on it, and not waiting until a batch may be sent."""
    digesting: float = 0.0
    """Part of `with_file` in which they read files for their digests."""
    saving: float = 0.0
    """Time in which results waited until they were on the disk."""
    depending: float = 0.0
    """Time in which sources waited for what other tracks make of them."""
    replaced: float = 0.0
    """Number of decode processes that died, or were killed because they hung."""
    client_cpu: float = 0.0
    """CPU time of the client's own process, which is one thread for the most part."""

    @classmethod
    def total(cls, parts: Sequence[Counters]) -> Self:
        """Return the sums of all parts."""
        return cls(*(sum(getattr(part, name) for part in parts) for name in _NAMES))

    def since(self, earlier: Counters) -> Self:
        """Return what was added after an earlier moment."""
        return type(self)(*(getattr(self, name) - getattr(earlier, name) for name in _NAMES))

    @property
    def request_seconds(self) -> float:
        """Time of all answered requests."""
        return self.network + self.queue + self.compute

    @property
    def call_items(self) -> float:
        """Mean number of items of a call; 0 if nobody says it."""
        return self.items / self.calls if self.calls else 0.0


_NAMES = [each.name for each in fields(Counters)]


@dataclass(frozen=True)
class Resources:
    """The processes, workers and requests that a track has now, and what waits for them."""

    counts: Counts
    """The unit in which it counts; it decides which option adds processes."""
    decode_workers: int
    """Number of decode processes; 0 for a track that asks about texts."""
    server_workers: float
    """Number of workers that serve the model, or this node's part of them; 0 if there is no model."""
    requests_in_flight: int
    """The limit on the number of requests in flight now; 0 if there is no model."""
    requests_wanted: int = 0
    """Number of requests that keep all workers busy."""
    most_requests: int = 0
    """Highest limit that there may be; below `requests_wanted` only if the user has set it so."""
    requests_now: int = 0
    """Number of requests in flight now."""
    full_call: int = 1
    """Number of items of a call when all its requests have come."""
    on_cpu: bool = False
    """True if the workers compute on the CPU."""
    cores: int = field(default_factory=usable_cores)
    """Largest number of decode processes for which there are cores, beside servers and other tracks here."""
    sources_waiting: int = 0
    """Number of leased sources that no decode process has begun."""
    sources_depending: int = 0
    """Number of leased sources that wait for what other tracks make of them."""
    open_seconds: float = 0.0
    """Work that is done of sources that are not finished, counted like `worked`."""
    longest_seconds: float = 0.0
    """The most work that is left of a source that no second process can help with."""
    is_fetching: bool = False
    """True if sources are being fetched from stores."""
    queued: int | None = None
    """Number of requests that wait in the server's queue; None if nobody knows."""
    outage: Outage | None = None
    """Why no server can be used; None if one can."""
    nodes: int = 1
    """Number of nodes to which this belongs."""

    def __add__(self, other: Resources) -> Resources:
        """Return what the track has on both nodes."""
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            longest_seconds=max(self.longest_seconds, other.longest_seconds),
            full_call=max(self.full_call, other.full_call),
            on_cpu=self.on_cpu and other.on_cpu,
            is_fetching=self.is_fetching or other.is_fetching,
            queued=other.queued if self.queued is None else self.queued,
            outage=self.outage and other.outage,
        )


_SUMMED = (
    *("decode_workers", "server_workers", "requests_in_flight", "requests_wanted", "most_requests", "requests_now"),
    *("cores", "sources_waiting", "sources_depending", "open_seconds", "nodes"),
)


class NodeReport(NamedTuple):
    """The figures of a node at one moment."""

    media_seconds: float
    """Seconds of video or audio that it has annotated."""
    tracks: Sequence[tuple[Counters, Resources]]
    """The sums of each track, and what it has now."""

    @property
    def outage(self) -> Outage | None:
        """The outage of a server because of which it waits; None if it does not wait."""
        return next((has.outage for _, has in self.tracks if has.outage), None)
