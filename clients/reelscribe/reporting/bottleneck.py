"""Finds what limits the speed of a track, and says it in a few words with what would help.

A decode process that has a file is at work, or waits because its batches may not be sent yet. By Little's law the two
tell where the queue is: while processes wait, batches arrive faster than they are answered, and the server or the way
to it is the limit; while they do not, every batch is sent at once, and decoding is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Self

from reelscribe._cores import usable_cores
from reelscribe.reporting.units import UNITS, Counts

WINDOW_SECONDS = 30.0
"""The limit is that of the last seconds, as it may change during a run."""

FIRST_SECONDS = 2.0
"""Until processes have worked on files for this long, nothing is known."""

BUSY = 0.9
"""A part of the system that is busy for at least this fraction of the time (0 to 1) can do no more."""

WAITING = 0.15
"""If decode processes wait for at least this fraction of the time (0 to 1) that they have a file, the server is the
limit. It is this small because a server that is only just the limit leaves them little to wait for."""

NETWORK_BOUND = 0.5
"""The network is the limit if sending takes at least this fraction (0 to 1) of request time."""

WITHOUT_FILE = 0.3
"""If decode processes have no file for at least this fraction of the time (0 to 1), more of them would not help."""

SMALL = 0.5
"""A call that has less than this fraction (0 to 1) of the items that it could have is small. A worker looks as busy
with small calls, but takes more items in the same time as they grow."""

READING = 0.5
"""Storage is the limit if reading files for their digests takes at least this fraction (0 to 1) of the processes'
time with a file."""


@dataclass(frozen=True)
class Load:
    """How long the parts of a track were busy since the start of the run, in seconds, and how full calls were."""

    seconds: float = 0.0
    """Time since the start."""
    with_file: float = 0.0
    """Time in which decode processes had a file, summed over all of them."""
    busy: float = 0.0
    """Part of `with_file` in which they were at work on it, and not waiting until a batch may be sent."""
    digesting: float = 0.0
    """Part of `with_file` in which they read files for their digests."""
    network: float = 0.0
    """Time that requests took to send, summed over all of them."""
    queue: float = 0.0
    """Time that requests waited in the server's queue, summed over all of them."""
    compute: float = 0.0
    """Time that workers computed for this run, summed over all of them."""
    client_cpu: float = 0.0
    """CPU time of the client's own process, which is one thread for the most part."""
    items: float = 0.0
    """Number of items of the requests whose answers say how many their calls had."""
    calls: float = 0.0
    """Number of calls that answered these; a call with requests of other clients counts in part."""

    @property
    def call_items(self) -> float:
        """Mean number of items of a call; 0 if nobody says it."""
        return self.items / self.calls if self.calls else 0.0

    def since(self, earlier: Load) -> Self:
        """Return the load between an earlier moment and this one."""
        names = [each.name for each in fields(self)]
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


@dataclass(frozen=True)
class Resources:
    """The processes, workers and requests that a track has to work with."""

    counts: Counts
    """The unit in which it counts; it decides which option adds processes."""
    decode_workers: int
    """Number of decode processes; 0 for a track that asks about texts."""
    server_workers: int
    """Number of workers that serve the model; 0 if there is no model."""
    requests_in_flight: int
    """The limit on the number of requests in flight now."""
    requests_wanted: int = 0
    """Number of requests that keep all workers busy."""
    most_requests: int = 0
    """Highest limit that there may be; below `requests_wanted` only if the user has set it so."""
    full_call: int = 1
    """Number of items of a call when all its requests have come."""
    on_cpu: bool = False
    """True if the workers compute on the CPU."""
    cores: int = field(default_factory=usable_cores)
    """Largest number of decode processes for which there are cores, beside servers and other tracks here."""


def find_bottleneck(
    load: Load, resources: Resources, *, sources_wait: bool, queued: int | None = None, is_fetching: bool = False
) -> str:
    """Return what limits the speed and what would help, in a few words.

    Args:
        load: The load of a stretch of time.
        resources: What the track has.
        sources_wait: Whether there are sources that no process has begun.
        queued: Number of requests that wait in the server's queue; None if nobody knows.
        is_fetching: Whether sources are being fetched from stores.
    """
    seconds = max(load.seconds, 1e-9)
    if load.with_file < FIRST_SECONDS:
        if is_fetching:
            return "fetching the first sources"
        return "starting" if resources.decode_workers else "waiting for texts to summarise"
    serving = load.compute / seconds / max(1, resources.server_workers)
    waiting = 1 - load.busy / load.with_file
    # A worker with small calls takes more, so what does not deliver more is the limit.
    is_full = serving >= BUSY and not _has_small_calls(load, resources)
    if resources.server_workers and (waiting >= WAITING or is_full):
        return _limit_of_serving(load, resources, serving, queued)
    if load.client_cpu / seconds >= BUSY:
        return "the client's core is the limit: run several clients"
    if load.digesting / load.with_file >= READING:
        return "reading files is the limit: use faster storage"
    if load.with_file / seconds / resources.decode_workers < 1 - WITHOUT_FILE:
        if sources_wait and is_fetching:
            return "the store is the limit: get closer to it"
        return "saving is the limit: use a faster disk" if sources_wait else "few sources are left: nothing to add"
    if resources.decode_workers >= resources.cores:
        return "decoding is the limit: use more cores"
    return f"decoding is the limit: add {UNITS[resources.counts].option}"


def _limit_of_serving(load: Load, resources: Resources, serving: float, queued: int | None) -> str:
    """Return which part of a server, or of the way to it, limits the speed; `serving` is the share of its time."""
    requests = max(load.network + load.queue + load.compute, 1e-9)
    if load.network / requests >= NETWORK_BOUND:
        return "the network is the limit: use a faster one"
    if queued:
        return f"the server is the limit, {queued:,} requests wait in its queue: add GPUs or servers"
    is_small = _has_small_calls(load, resources)
    if (serving < BUSY or is_small) and resources.requests_in_flight < resources.requests_wanted:
        if resources.most_requests < resources.requests_wanted:
            return "requests are the limit: raise --requests-in-flight"
        return "the server's queue is the limit: raise job_queue_size"
    if is_small:
        return "sending is the limit: use more cores"
    return f"the server is the limit: add GPUs{' or cores' if resources.on_cpu else ''}"


def _has_small_calls(load: Load, resources: Resources) -> bool:
    return 0 < load.call_items < SMALL * resources.full_call


class LoadWindow:
    """The loads of the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._loads = deque([Load()])

    def add(self, load: Load) -> Load:
        """Add the load since the start of the run, and return that of the window up to it."""
        self._loads.append(load)
        while len(self._loads) > 2 and self._loads[1].seconds <= load.seconds - WINDOW_SECONDS:
            self._loads.popleft()
        return load.since(self._loads[0])
