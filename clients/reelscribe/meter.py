"""What a run has done, and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from reelscribe.stalls import Stalls

BUSY = 0.85
"""From this share of the time on, something is called the bottleneck."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    sources: int
    sources_done: int
    sources_failed: int
    frames: int
    """That were captioned in this run, the reused ones included."""
    decoded_frames: int
    """Of sources that were read to their ends in this run, also those on the way to the chosen ones."""
    seconds: float
    """Since its start."""
    frames_per_second: float
    media_hours_per_hour: float
    eta_seconds: float | None
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
    stall_p99_ms: int
    stall_longest_ms: int


class Meter:
    """Counts while a run goes on."""

    def __init__(
        self,
        sources: int,
        *,
        decode_workers: int,
        server_workers: int,
        decode_seconds: Callable[[], float] = lambda: 0.0,
        decoded_frames: Callable[[], int] = lambda: 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stalls = Stalls()
        self._sources, self._decode_workers, self._server_workers = sources, decode_workers, server_workers
        self._decode_seconds, self._decoded_frames, self._now = decode_seconds, decoded_frames, now
        self._began = now()
        self._done = self._failed = self._frames = 0
        self._media_seconds = 0.0
        self._network = self._queue = self._compute = 0.0
        self._open: dict[str, float] = {}
        """How much of them is done."""
        self._done_now = 0.0
        """Sources, and shares of them, that were done in this run."""

    def opened(self, path: str, share_done: float) -> None:
        """A source is worked on, of which a share was done in an earlier run."""
        self._open[path] = share_done

    def saved(self, path: str, frames: int, share: float, media_seconds: float) -> None:
        """Frames of an open source are done: that share of it, and so much of its duration."""
        self._frames += frames
        self._open[path] += share
        self._done_now += share
        self._media_seconds += media_seconds

    def finished(self, path: str, *, failed: bool) -> None:
        """A source is done, for better or worse."""
        self._done += 1
        self._failed += failed
        self._done_now += 1 - self._open.pop(path, 1.0)  # one that was never opened was done before

    def answered(self, network_seconds: float, queue_seconds: float, compute_seconds: float) -> None:
        """A request was answered."""
        self._network += network_seconds
        self._queue += queue_seconds
        self._compute += compute_seconds

    def snapshot(self) -> Snapshot:
        """The run now."""
        seconds = max(self._now() - self._began, 1e-9)
        left = max(0.0, self._sources - self._done - sum(self._open.values()))
        requests = max(self._network + self._queue + self._compute, 1e-9)
        decode = min(1.0, self._decode_seconds() / seconds / self._decode_workers)
        server = min(1.0, self._compute / seconds / self._server_workers)
        return Snapshot(
            sources=self._sources,
            sources_done=self._done,
            sources_failed=self._failed,
            frames=self._frames,
            decoded_frames=self._decoded_frames(),
            seconds=seconds,
            frames_per_second=self._frames / seconds,
            media_hours_per_hour=self._media_seconds / seconds,
            eta_seconds=seconds * left / self._done_now if self._done_now > 0 else None,
            decode_share=decode,
            network_share=self._network / requests,
            queue_share=self._queue / requests,
            compute_share=self._compute / requests,
            server_share=server,
            bottleneck=self._bottleneck(decode, server, self._network / requests),
            stall_p99_ms=self.stalls.p99_ms,
            stall_longest_ms=self.stalls.longest_ms,
        )

    def _bottleneck(self, decode: float, server: float, network: float) -> str:
        idle = f"server idle {1 - server:.0%}"
        if not self._frames:
            return "nothing captioned in this run"
        if server >= BUSY:
            return f"server: {_busy(server, self._server_workers)} workers busy: add GPUs or servers"
        if decode >= BUSY:
            return (
                f"decoding: {_busy(decode, self._decode_workers)} processes busy, {idle}: add decode workers, or try"
                " --resize fast"
            )
        if network >= 0.5:
            return f"network: {network:.0%} of the time of requests is sending them, {idle}: use a faster one"
        return (
            f"neither decoding ({_busy(decode, self._decode_workers)} processes busy) nor the server (idle"
            f" {1 - server:.0%}): short runs and busy machines look so"
        )


def _busy(share: float, of: int) -> str:
    return f"{share * of:.1f} of {of}"
