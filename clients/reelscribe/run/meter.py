"""What a run has done, and where its time goes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

BUSY = 0.85
"""From this share of the time on, something is called the bottleneck."""

Counts = Literal["frames", "seconds of sound"]


@dataclass(frozen=True)
class TrackSnapshot:
    """The way of all sources through one model, at one moment."""

    counts: Counts
    done: float
    """Frames, or seconds of sound, that were answered in this run, reused or silent ones included."""
    decoded: float
    """Of sources that were read to their ends in this run, also on the way to what was wanted."""
    decode_share: float
    """Of the time of all decode processes, how much they were waited for."""
    network_share: float
    """Of the time of all requests, how much they took to be sent."""
    queue_share: float
    """... and waited at the server."""
    compute_share: float
    """... and were being worked on there."""
    server_share: float
    """Of the time of all workers of the servers, how much they worked on our requests."""
    bottleneck: str


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    sources: int
    sources_done: int
    sources_failed: int
    seconds: float
    """Since its start."""
    media_hours_per_hour: float
    eta_seconds: float | None
    lanes: tuple[TrackSnapshot, ...]
    """One for each model."""
    stall_p99_ms: int
    stall_longest_ms: int

    @property
    def frames(self) -> int:
        """That were captioned in this run, the reused ones included."""
        return int(self._done("frames"))

    @property
    def sound_seconds(self) -> float:
        """That were heard in this run, the silent ones included."""
        return self._done("seconds of sound")

    @property
    def bottleneck(self) -> str:
        """Of each model."""
        if len(self.lanes) == 1:
            return self.lanes[0].bottleneck
        return "; ".join(f"{lane.counts}: {lane.bottleneck}" for lane in self.lanes)

    def _done(self, counts: Counts) -> float:
        return sum(lane.done for lane in self.lanes if lane.counts == counts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Snapshot:
        """What `asdict` made."""
        return cls(**{**value, "lanes": tuple(TrackSnapshot(**lane) for lane in value["lanes"])})


class Meter:
    """Counts while a run goes on."""

    def __init__(self, sources: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self.stalls = Stalls()
        self._sources, self._now = sources, now
        self._began = now()
        self._done = self._failed = 0
        self._done_now = self._media_seconds = 0.0  # of finished sources, in this run
        self._lanes: list[Lane] = []

    def lane(
        self,
        counts: Counts,
        *,
        decode_workers: int,
        server_workers: int,
        decode_seconds: Callable[[], float] = lambda: 0.0,
        decoded: Callable[[], float] = lambda: 0.0,
        waiting_for: Callable[[], str | None] = lambda: None,
    ) -> Lane:
        """The way through one more model; all of them are there before anything is done."""
        self._lanes.append(Lane(counts, decode_workers, server_workers, decode_seconds, decoded, waiting_for))
        return self._lanes[-1]

    def finished(self, path: str, *, failed: bool) -> None:
        """A source is done, for better or worse."""
        self._done += 1
        self._failed += failed
        # Not through lanes in which it was never open: that was done before, or there is no sound in it, or no picture.
        if ways := [lane.open.pop(path) for lane in self._lanes if path in lane.open]:
            self._done_now += fmean(1 - way.before for way in ways)
            self._media_seconds += fmean(way.seconds for way in ways)

    def snapshot(self) -> Snapshot:
        """The run now."""
        seconds = max(self._now() - self._began, 1e-9)
        paths = {path for lane in self._lanes for path in lane.open}
        ways = [[lane.open[path] for lane in self._lanes if path in lane.open] for path in paths]
        left = max(0.0, self._sources - self._done - sum(fmean(way.before + way.now for way in each) for each in ways))
        done_now = self._done_now + sum(fmean(way.now for way in each) for each in ways)
        media_seconds = self._media_seconds + sum(fmean(way.seconds for way in each) for each in ways)
        return Snapshot(
            sources=self._sources,
            sources_done=self._done,
            sources_failed=self._failed,
            seconds=seconds,
            media_hours_per_hour=media_seconds / seconds,
            eta_seconds=seconds * left / done_now if done_now > 0 else None,
            lanes=tuple(lane.snapshot(seconds) for lane in self._lanes),
            stall_p99_ms=self.stalls.p99_ms,
            stall_longest_ms=self.stalls.longest_ms,
        )


@dataclass
class _Way:
    """How far a source has come on its way through a model."""

    before: float
    """The share of it that was done in an earlier run."""
    now: float = 0.0
    """... and in this one."""
    seconds: float = 0.0
    """Of its duration, in this one."""


class Lane:
    """Counts what goes through one model."""

    def __init__(
        self,
        counts: Counts,
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
        self.open: dict[str, _Way] = {}
        """The sources that are being worked on, by their paths."""

    def is_open(self, path: str) -> bool:
        """Whether a source is being worked on."""
        return path in self.open

    def opened(self, path: str, share_done: float) -> None:
        """A source is worked on, of which a share was done in an earlier run."""
        self.open[path] = _Way(share_done)

    def saved(self, path: str, count: float, share: float, media_seconds: float) -> None:
        """Some of an open source is done: that share of it, and so much of its duration."""
        self._done += count
        self.open[path].now += share
        self.open[path].seconds += media_seconds

    def answered(self, network_seconds: float, queue_seconds: float, compute_seconds: float) -> None:
        """A request was answered."""
        self._network += network_seconds
        self._queue += queue_seconds
        self._compute += compute_seconds

    def snapshot(self, seconds: float) -> TrackSnapshot:
        """The lane after so many seconds."""
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
        if network >= 0.5:
            return f"network: {network:.0%} of the time of requests is sending them, {idle}: use a faster one"
        return (
            f"neither decoding ({_busy(decode, self._decode_workers)} processes busy) nor the server (idle"
            f" {1 - server:.0%}): short runs and busy machines look so"
        )


def _busy(share: float, of: int) -> str:
    return f"{share * of:.1f} of {of}"


TICK_SECONDS = 0.01


class Stalls:
    """Wakes up a hundred times a second and notes by how many milliseconds it comes late."""

    def __init__(self) -> None:
        self._late: Counter[int] = Counter()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._late[int((time.monotonic() - due) * 1000)] += 1

    @property
    def longest_ms(self) -> int:
        """The longest, in whole milliseconds."""
        return max(self._late, default=0)

    @property
    def p99_ms(self) -> int:
        """99 of 100 were not longer."""
        left = 0.01 * self._late.total()
        for milliseconds in sorted(self._late, reverse=True):
            left -= self._late[milliseconds]
            if left < 0:
                return milliseconds
        return 0
