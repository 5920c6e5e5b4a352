"""Measures how much a run has done and where its time goes; a snapshot holds the figures of one moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, Self

BUSY = 0.85
"""A part of the system that is busy for at least this fraction of the time (0 to 1) counts as the bottleneck."""

NETWORK_BOUND = 0.5
"""The network counts as the bottleneck if sending takes at least this fraction (0 to 1) of request time."""

TICK_SECONDS = 0.01
"""Seconds between two measurements of the delay of the event loop."""

Counts = Literal["frames", "seconds of sound"]
"""Units in which tracks count their progress. They appear in ledgers, in --json-log and in the progress line."""


@dataclass(frozen=True)
class TrackSnapshot:
    """The figures of one track at one moment. All shares are fractions from 0 to 1."""

    counts: Counts
    """Unit of `done` and `decoded`."""
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
    """The part of the system that limits the speed, and what would help, as a text for people."""


@dataclass(frozen=True)
class Snapshot:
    """The figures of a run at one moment."""

    sources: int
    """Number of sources of the run."""
    sources_done: int
    """Number of sources that are done, including failed ones."""
    sources_failed: int
    """Number of sources whose record has an error."""
    seconds: float
    """Seconds since the start of the run."""
    media_hours_per_hour: float
    """Hours of video or audio that the run has annotated per hour."""
    eta_seconds: float | None
    """Seconds until the run is done, at its mean speed; None until something is done."""
    lanes: tuple[TrackSnapshot, ...]
    """One for each track. The name `lanes` is a key in ledgers and in --json-log, so it stays."""
    stall_p99_ms: int
    """99th percentile of the delays of the event loop, in milliseconds."""
    stall_longest_ms: int
    """Longest delay of the event loop, in milliseconds."""

    @property
    def frames(self) -> int:
        """Number of frames that were captioned in this run, including reused ones."""
        return int(self._done("frames"))

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio that were transcribed in this run, including silence."""
        return self._done("seconds of sound")

    @property
    def bottleneck(self) -> str:
        """The bottleneck; that of each track if there are several."""
        if len(self.lanes) == 1:
            return self.lanes[0].bottleneck
        return "; ".join(f"{track.counts}: {track.bottleneck}" for track in self.lanes)

    def _done(self, counts: Counts) -> float:
        return sum(track.done for track in self.lanes if track.counts == counts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Restore a snapshot from the JSON that `asdict` made of it."""
        return cls(**{**value, "lanes": tuple(TrackSnapshot(**track) for track in value["lanes"])})


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


@dataclass
class _OpenSource:
    """The progress of an open source on one track."""

    before: float
    """Fraction of it (0 to 1) that was done in earlier runs."""
    now: float = 0.0
    """Fraction of it (0 to 1) that was done in this run."""
    seconds: float = 0.0
    """Seconds of its duration that were done in this run."""


class TrackMeter:
    """Measures one track. `Meter.track` creates it and describes the arguments."""

    def __init__(
        self,
        counts: Counts,
        *,
        decode_workers: int,
        server_workers: int,
        decode_seconds: Callable[[], float],
        decoded: Callable[[], float],
        waiting_for: Callable[[], str | None],
    ) -> None:
        self._counts: Counts = counts
        self._decode_workers, self._server_workers = decode_workers, server_workers
        self._decode_seconds, self._decoded, self._waiting_for = decode_seconds, decoded, waiting_for
        self._done = 0.0
        self._network = self._queue = self._compute = 0.0
        self.open: dict[str, _OpenSource] = {}
        """The sources on which the track has begun to work and that are not done, by their paths."""

    def is_open(self, path: str) -> bool:
        """Return whether a source is open."""
        return path in self.open

    def opened(self, path: str, share_done: float) -> None:
        """Count a source as open.

        Args:
            path: The source.
            share_done: Fraction of it that was done in an earlier run (0 to 1).
        """
        self.open[path] = _OpenSource(share_done)

    def saved(self, path: str, amount: float, share: float, media_seconds: float) -> None:
        """Count a batch of an open source as done.

        Args:
            path: The source.
            amount: Frames or seconds of audio in the batch.
            share: Fraction of the source that the batch is (0 to 1).
            media_seconds: Seconds of the source's duration that the batch covers.
        """
        self._done += amount
        self.open[path].now += share
        self.open[path].seconds += media_seconds

    def answered(self, network_seconds: float, queue_seconds: float, compute_seconds: float) -> None:
        """Add the time that a request has spent on the network, in the server's queue and in a worker."""
        self._network += network_seconds
        self._queue += queue_seconds
        self._compute += compute_seconds

    def snapshot(self, seconds: float) -> TrackSnapshot:
        """Return the figures of the track, `seconds` after the start of the run."""
        requests = max(self._network + self._queue + self._compute, 1e-9)
        decode = min(1.0, self._decode_seconds() / seconds / self._decode_workers)
        server = min(1.0, self._compute / seconds / self._server_workers)
        return TrackSnapshot(
            counts=self._counts,
            done=self._done,
            decoded=self._decoded(),
            decode_share=decode,
            network_share=self._network / requests,
            queue_share=self._queue / requests,
            compute_share=self._compute / requests,
            server_share=server,
            bottleneck=self._bottleneck(decode, server, self._network / requests),
        )

    def _bottleneck(self, decode: float, server: float, network: float) -> str:
        if trouble := self._waiting_for():
            return f"waiting for a server: {trouble}"
        idle = f"server idle {1 - server:.0%}"
        if not self._done:
            return "nothing yet"
        if server >= BUSY:
            return f"server: {_busy(server, self._server_workers)} workers busy: add GPUs or servers"
        if decode >= BUSY:
            advice = "add decode workers, or try --resize fast" if self._counts == "frames" else "add --audio-workers"
            return f"decoding: {_busy(decode, self._decode_workers)} processes busy, {idle}: {advice}"
        if network >= NETWORK_BOUND:
            return f"network: {network:.0%} of request time is sending, {idle}: use a faster network"
        return (
            f"neither decoding ({_busy(decode, self._decode_workers)} processes busy) nor the server (idle"
            f" {1 - server:.0%}): short runs and busy machines look like this"
        )


def _busy(share: float, of: int) -> str:
    return f"{share * of:.1f} of {of}"


class Meter:
    """Measures a run and its tracks."""

    def __init__(self, sources: int) -> None:
        """Start the clock of a run over `sources` sources."""
        self.stalls = Stalls()
        self._sources = sources
        self._began = time.monotonic()
        self._done = self._failed = 0
        self._done_now = 0.0
        """Sources that are done, each as the fraction of it that this run has done."""
        self._media_seconds = 0.0
        """Seconds of these sources that this run has done."""
        self._tracks: list[TrackMeter] = []

    def track(
        self,
        counts: Counts,
        *,
        decode_workers: int,
        server_workers: int,
        decode_seconds: Callable[[], float] = lambda: 0.0,
        decoded: Callable[[], float] = lambda: 0.0,
        waiting_for: Callable[[], str | None] = lambda: None,
    ) -> TrackMeter:
        """Add a track, before the first source is opened.

        Args:
            counts: Unit in which the track counts its progress.
            decode_workers: Number of its decode processes.
            server_workers: Number of workers that serve its model.
            decode_seconds: Returns the seconds of work of its decode processes, summed over all of them.
            decoded: Returns the number of frames, or of seconds of audio, that they have decoded.
            waiting_for: Returns why no server can be used; None if one can.
        """
        track = TrackMeter(
            counts,
            decode_workers=decode_workers,
            server_workers=server_workers,
            decode_seconds=decode_seconds,
            decoded=decoded,
            waiting_for=waiting_for,
        )
        self._tracks.append(track)
        return track

    def finished(self, path: str, *, failed: bool) -> None:
        """Count a source as done."""
        self._done += 1
        self._failed += failed
        # A track that never opened the source does not count: it was done in an earlier run, or lacks the stream.
        if progress := [track.open.pop(path) for track in self._tracks if path in track.open]:
            self._done_now += fmean(1 - each.before for each in progress)
            self._media_seconds += fmean(each.seconds for each in progress)

    def snapshot(self) -> Snapshot:
        """Return the figures of the run now."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        paths = {path for track in self._tracks for path in track.open}
        progress = [[track.open[path] for track in self._tracks if path in track.open] for path in paths]
        left = self._sources - self._done - sum(fmean(one.before + one.now for one in source) for source in progress)
        done_now = self._done_now + sum(fmean(one.now for one in source) for source in progress)
        media_seconds = self._media_seconds + sum(fmean(one.seconds for one in source) for source in progress)
        return Snapshot(
            sources=self._sources,
            sources_done=self._done,
            sources_failed=self._failed,
            seconds=seconds,
            media_hours_per_hour=media_seconds / seconds,
            eta_seconds=seconds * max(0.0, left) / done_now if done_now > 0 else None,
            lanes=tuple(track.snapshot(seconds) for track in self._tracks),
            stall_p99_ms=self.stalls.p99_ms,
            stall_longest_ms=self.stalls.longest_ms,
        )
