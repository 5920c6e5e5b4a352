"""Finds what limits the speed of a track, and says it in a few words with what would help.

A decode process that has a file is at work, or waits because its batches may not be sent yet. By Little's law the two
tell where the queue is: while processes wait, batches arrive faster than they are answered, and the server or the way
to it is the limit; while they do not, every batch is sent at once, and decoding is. Where they have no file, the
requests that are in flight tell whether the server is behind.
"""

from __future__ import annotations

from reelscribe.reporting.counters import Counters, Resources
from reelscribe.reporting.units import UNITS

WINDOW_SECONDS = 30.0
"""The limit is that of the last seconds, as it may change during a run."""

FIRST_SECONDS = 2.0
"""Until processes have worked on files, or requests were in flight, for this long, nothing is known."""

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

FIRST_CALLS = 10
"""Until so many calls were answered, small ones tell nothing, as the first ones are."""

QUEUED = 0.5
"""If requests wait in the server's queue for at least this fraction (0 to 1) of the time that they are in flight, it
has enough of them, and what is sent is not too little."""

READING = 0.5
"""Storage is the limit if reading files for their digests takes at least this fraction (0 to 1) of the processes'
time with a file, and the disk of the results if something waits for it for this fraction of the time."""

STARTING, FOR_OTHERS = "starting", "waiting for what other models make of the sources"
FOR_TEXTS, FETCHING = "waiting for texts to summarise", "fetching the first sources"

IDLE = frozenset({STARTING, FOR_OTHERS, FOR_TEXTS, FETCHING})
"""What is said of a track that limits nothing, or of which nothing is known."""


def find_bottleneck(before: Counters, now: Counters, has: Resources, *, more_to_come: bool = False) -> str:
    """Return what limits the speed and what would help, in a few words.

    Args:
        before: The sums of the track at an earlier moment.
        now: The sums at a later one.
        has: What the track has at the later one.
        more_to_come: Whether there are sources that are not leased, or not found yet.
    """
    if has.outage:
        return f"waiting for a server: {has.outage.reason}"
    spent = now.since(before)
    has_texts = spent.in_flight >= BUSY * spent.seconds or (has.requests_now and not has.sources_depending)
    if not has.decode_workers and not has_texts:
        return FOR_TEXTS
    if now.with_file < FIRST_SECONDS and now.in_flight < FIRST_SECONDS:
        return FETCHING if has.is_fetching else STARTING
    processes = spent.seconds / has.nodes * has.decode_workers
    is_idle = spent.with_file < (1 - WITHOUT_FILE) * processes
    if has.requests_in_flight and (limit := _limit_of_serving(spent, has, is_idle=is_idle)):
        return limit
    if spent.client_cpu / max(spent.seconds, 1e-9) >= BUSY:
        return "the client's core is the limit: run several clients"
    if spent.digesting >= READING * max(spent.with_file, FIRST_SECONDS):
        return "reading files is the limit: use faster storage"
    if is_idle:
        return _why_idle(spent, has, more_to_come=more_to_come)
    if has.decode_workers >= has.cores:
        return "decoding is the limit: use more cores"
    return f"decoding is the limit: add {UNITS[has.counts].option}"


def _why_idle(spent: Counters, has: Resources, *, more_to_come: bool) -> str:
    """Return why decode processes have no files, though the server has no more to do than it can."""
    if has.is_fetching and (has.sources_waiting or more_to_come):
        return "the store is the limit: get closer to it"
    if spent.saving >= READING * spent.seconds:
        return "saving is the limit: use a faster disk"
    if spent.depending >= READING * spent.seconds:
        return FOR_OTHERS
    if has.sources_waiting:
        return "opening files is the limit: use faster storage"
    if more_to_come:
        return "waiting for more sources"
    if spent.with_file < FIRST_SECONDS and spent.in_flight:
        return "the last answers are awaited: nothing to add"
    return "few sources are left: nothing to add"


def _limit_of_serving(spent: Counters, has: Resources, *, is_idle: bool) -> str:
    """Return which part of a server, or of the way to it, limits the speed; "" if none does.

    Args:
        spent: What was added to the sums.
        has: What the track has.
        is_idle: Whether decode processes have no files.
    """
    workers = spent.seconds / has.nodes * max(1.0, has.server_workers)
    is_small = _has_small_calls(spent, has)
    is_busy = spent.compute >= BUSY * workers
    is_awaited = spent.with_file >= FIRST_SECONDS and spent.busy <= (1 - WAITING) * spent.with_file
    # A worker with small calls takes more, so what does not deliver more is the limit.
    is_behind = is_idle and spent.in_flight >= BUSY * workers
    if has.decode_workers and not (is_awaited or is_behind or (is_busy and not is_small)):
        return ""
    if not spent.requests and spent.retries:
        return "no request is answered, and some are sent again: the server's workers may be starting"
    if spent.network >= NETWORK_BOUND * max(spent.request_seconds, 1e-9):
        return "the network is the limit: use a faster one"
    if has.queued:
        return f"the server is the limit, {has.queued:,} requests wait in its queue: add GPUs or servers"
    if (not is_busy or is_small) and has.requests_in_flight < has.requests_wanted:
        if has.most_requests < has.requests_wanted:
            return "requests are the limit: raise --requests-in-flight"
        return "the server's queue is the limit: raise job_queue_size"
    if is_small and spent.queue < QUEUED * spent.in_flight:
        return "sending is the limit: use more cores"
    return f"the server is the limit: add GPUs{' or cores' if has.on_cpu else ''}"


def _has_small_calls(spent: Counters, has: Resources) -> bool:
    return spent.calls >= FIRST_CALLS and spent.call_items < SMALL * has.full_call
