"""Measures one track of a run: what it has done, where its time goes, and what its sources cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from reelscribe.client.balancer import Outage
from reelscribe.client.endpoint import Answer
from reelscribe.reporting.bottleneck import Load, LoadWindow, Resources, find_bottleneck
from reelscribe.reporting.forecast import OpenCost, SourceCost, SourceSize
from reelscribe.reporting.units import UNITS, Counts


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
    done_before: float = 0.0
    """Frames or seconds of audio of these sources with a result from earlier runs."""
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


@dataclass
class _OpenSource:
    """The progress of an open source on one track."""

    before: float
    """Fraction of it (0 to 1) that was done in earlier runs."""
    now: float = 0.0
    """Fraction of it (0 to 1) that was done in this run."""
    seconds: float = 0.0
    """Seconds of its duration that were done in this run."""


@dataclass
class _Decoding:
    """A source that occupies a decode process of a track, or did."""

    size: SourceSize
    began: float
    """Time at which a process began to read it, on the clock of the track, in seconds."""
    ended: float | None = None
    """Time at which the process was free again; None before."""
    decoded: float = 0.0
    """Fraction of the source (0 to 1) that has been decoded. Its results come later."""


@dataclass(frozen=True)
class Readings:
    """Functions that return what a track knows by itself."""

    load: Callable[[], Load] = Load
    """How long its decode processes and the client were busy since the start of the run; what requests took is counted
    by `TrackMeter.answered`."""
    decoded: Callable[[], float] = lambda: 0.0
    """Number of frames, or of seconds of audio, that its processes have decoded."""
    retries: Callable[[], int] = lambda: 0
    """Number of requests that were sent again."""
    substituted: Callable[[], int] = lambda: 0
    """Number of sources that PyAV has read in place of the decoder that was chosen."""
    outage: Callable[[], Outage | None] = lambda: None
    """Why no server can be used; None if one can."""


class TrackMeter:
    """Measures one track."""

    def __init__(
        self, resources: Callable[[], Resources], readings: Readings, is_fetching: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the clock of a track. `NodeMeter` and its `track` describe the arguments."""
        self._read_resources, self._readings, self._is_fetching = resources, readings, is_fetching
        self._counts = resources().counts
        self.outage = readings.outage
        """Returns why no server can be used; None if one can."""
        self._window = LoadWindow()
        self._waiting: dict[str, SourceSize] = {}
        """The sources that no decode process has begun to read, by their paths."""
        self._done = self._unsent = 0.0
        self._requests = self._tokens = 0
        self._queued: int | None = None
        self._network = self._queue = self._compute = self._items = self._calls = 0.0
        self._out_of_service = 0.0
        """Time that the track has waited for servers, in seconds."""
        self._last_update = time.monotonic()
        self.open: dict[str, _OpenSource] = {}
        """The sources on which the track has begun to work and that are not done, by their paths."""
        self._decoding: dict[str, _Decoding] = {}

    def expect(self, path: str, size: SourceSize) -> None:
        """Count a source as one that is to be done."""
        # Nothing is decoded of a recording that has no pictures, so it costs a captioner nothing.
        if size.kind == "video" or not UNITS[self._counts].pictures:
            self._waiting[path] = size

    def begun(self, path: str) -> None:
        """Count a source as one that occupies a decode process; a second process may follow the first."""
        if size := self._waiting.pop(path, None):
            self._decoding[path] = _Decoding(size, self._now())

    def is_begun(self, path: str) -> bool:
        """Return whether a decode process has begun to read a source that is not done."""
        return path in self._decoding

    def decoded(self, path: str, share: float) -> None:
        """Count a fraction (0 to 1) of a source that occupies a decode process as decoded."""
        if path in self._decoding:
            self._decoding[path].decoded += share

    def ended(self, path: str) -> None:
        """Count a source as one whose decode process is free again."""
        if path in self._decoding:
            self._decoding[path].ended = self._now()

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

    def saved(self, path: str, amount: float, share: float, media_seconds: float, unsent: float = 0.0) -> None:
        """Count a batch of an open source as done.

        Args:
            path: The source.
            amount: Frames or seconds of audio in the batch.
            share: Fraction of the source that the batch is (0 to 1).
            media_seconds: Seconds of the source's duration that the batch covers.
            unsent: Part of `amount` that was not sent to a server.
        """
        self.made(amount, unsent)
        self.open[path].now += share
        self.open[path].seconds += media_seconds

    def made(self, amount: float, unsent: float = 0.0) -> None:
        """Count what was made of a source and covers no seconds of it. See `saved`."""
        self._done += amount
        self._unsent += unsent

    def answered(self, answer: Answer) -> None:
        """Add what is known of a request: the time in which it was sent, waited and was computed, and its tokens."""
        self._requests += 1
        self._network += answer.network_seconds
        self._queue += answer.queue_seconds
        self._compute += answer.compute_seconds
        self._tokens += answer.tokens
        if answer.call_items:
            self._items += answer.items
            self._calls += answer.items / answer.call_items
        self._queued = answer.queued

    def close(self, path: str) -> tuple[float | None, SourceCost | None]:
        """Count a source as done, or as one that the track does not finish.

        Returns:
            The seconds of its duration that were done, None if the track has not opened it; and what it has cost, None
            if nothing of it was decoded.
        """
        self._waiting.pop(path, None)
        progress, cost = self.open.pop(path, None), None
        if decoding := self._decoding.pop(path, None):
            share = 1 - progress.before if progress else 1.0
            ended = decoding.ended if decoding.ended is not None else self._now()
            cost = SourceCost(decoding.size, share, max(0.0, ended - decoding.began))
        return progress.seconds if progress else None, cost

    def update_clock(self) -> None:
        """Stop the clock of the track for the time since the last call, if it waits for a server."""
        now = time.monotonic()
        if self.outage():
            self._out_of_service += now - self._last_update
        self._last_update = now

    def in_progress(self) -> dict[str, OpenCost]:
        """Return what the sources that are being decoded have cost so far, by their paths."""
        return {path: self._cost(path, one) for path, one in self._decoding.items()}

    def _cost(self, path: str, decoding: _Decoding) -> OpenCost:
        progress = self.open.get(path, _OpenSource(0.0))
        now = decoding.ended if decoding.ended is not None else self._now()
        left = 0.0 if decoding.ended is not None else max(0.0, 1 - progress.before - decoding.decoded)
        return OpenCost(decoding.size, left, decoding.decoded, max(0.0, now - decoding.began))

    def snapshot(self, seconds: float) -> TrackSnapshot:
        """Return the figures of the track, `seconds` after the start of the run."""
        requests = max(self._network + self._queue + self._compute, 1e-9)
        resources = self._read_resources()
        load = replace(
            self._readings.load(),
            seconds=seconds,
            network=self._network,
            queue=self._queue,
            compute=self._compute,
            items=self._items,
            calls=self._calls,
        )
        recent = self._window.add(load)
        return TrackSnapshot(
            counts=self._counts,
            done=self._done,
            unsent=self._unsent,
            decoded=self._readings.decoded(),
            requests=self._requests,
            retries=self._readings.retries(),
            substituted=self._readings.substituted(),
            tokens=self._tokens,
            decode_share=min(1.0, load.busy / seconds / max(1, resources.decode_workers)),
            network_share=self._network / requests,
            queue_share=self._queue / requests,
            compute_share=self._compute / requests,
            server_share=min(1.0, self._compute / seconds / max(1, resources.server_workers)),
            server_workers=resources.server_workers,
            requests_in_flight=resources.requests_in_flight,
            requests_wanted=resources.requests_wanted,
            call_items=recent.call_items,
            full_call=resources.full_call if self._calls else 0,
            bottleneck=self._bottleneck(recent, resources, sources_wait=bool(self._waiting)),
            run_bottleneck=self._bottleneck(load, resources, sources_wait=True),
        )

    def _bottleneck(self, load: Load, resources: Resources, *, sources_wait: bool) -> str:
        if outage := self.outage():
            return f"waiting for a server: {outage.reason}"
        fetches = self._is_fetching()
        return find_bottleneck(load, resources, sources_wait=sources_wait, queued=self._queued, is_fetching=fetches)

    def _now(self) -> float:
        return time.monotonic() - self._out_of_service
