"""The figures of a run for Prometheus, on loopback, as long as the run lasts.

They are the client's own: a server that accepted figures from its clients would let them make figures up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reelscribe.errors import UsageError
from reelscribe.results.records import Record
from reelscribe.run.meter import Snapshot, TrackSnapshot
from reelscribe.run.progress import Progress

ADDRESS = "127.0.0.1"


class RunMetrics(Progress, Collector):
    """Passes everything on to another Progress, and gives Prometheus the last snapshot when it scrapes."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._snapshot: Snapshot | None = None
        self._errors: Counter[str] = Counter()

    def __enter__(self) -> Progress:
        self._shown.__enter__()
        return self

    def show(self, snapshot: Snapshot) -> None:
        """Keep the snapshot for the next scrape."""
        self._snapshot = snapshot
        self._shown.show(snapshot)

    def finished(self, record: Record) -> None:
        """Count the error of a source."""
        if record.error:
            kind, _ = record.error
            self._errors[kind] += 1
        self._shown.finished(record)

    def say(self, text: str) -> None:
        """Pass a message on."""
        self._shown.say(text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last snapshot, or none before the first."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield from _of_sources(snapshot, self._errors)
        yield from _of_tracks(snapshot)
        yield _gauge(
            "stall_p99_seconds", "99th percentile of the stalls of the event loop", snapshot.stall_p99_ms / 1e3
        )
        yield _gauge("stall_longest_seconds", "The longest stall of the event loop", snapshot.stall_longest_ms / 1e3)


def _of_sources(snapshot: Snapshot, errors: Counter[str]) -> Iterator[Metric]:
    yield _gauge("seconds", "Seconds since the run began", snapshot.seconds)
    yield _gauge("sources", "Sources of the run", snapshot.sources)
    yield _counter("sources_done", "Sources that are done, including failed ones", snapshot.sources_done)
    yield _counter("sources_failed", "Sources that failed", snapshot.sources_failed)
    failures = CounterMetricFamily("reelscribe_run_errors", "Records with an error, by its type", labels=["type"])
    for kind, count in errors.copy().items():
        failures.add_metric([kind], count)
    yield failures
    yield _counter("frames", "Frames that were captioned, including reused ones", snapshot.frames)
    yield _counter("sound_seconds", "Seconds of audio that were transcribed, including silence", snapshot.audio_seconds)
    if snapshot.eta_seconds is not None:
        yield _gauge("eta_seconds", "Seconds until the run is done, at its mean speed", snapshot.eta_seconds)


def _of_tracks(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of each track; their label `lane` is "frames" or "sound"."""
    decoding = CounterMetricFamily(
        "reelscribe_run_decode_busy_seconds",
        "Seconds that the average decode process has worked; its rate is the busy fraction",
        labels=["lane"],
    )
    serving = CounterMetricFamily(
        "reelscribe_run_server_busy_seconds",
        "Seconds that the average worker has computed for this run",
        labels=["lane"],
    )
    requests = GaugeMetricFamily(
        "reelscribe_run_request_time_ratio",
        "Fraction of all request time: network (sending), queue (waiting at the server), compute (in a worker)",
        labels=["lane", "part"],
    )
    for track in snapshot.lanes:
        name = "frames" if track.counts == "frames" else "sound"
        decoding.add_metric([name], track.decode_share * snapshot.seconds)
        serving.add_metric([name], track.server_share * snapshot.seconds)
        for part, share in _shares(track):
            requests.add_metric([name, part], share)
    yield from (decoding, serving, requests)


def _shares(track: TrackSnapshot) -> tuple[tuple[str, float], ...]:
    return ("network", track.network_share), ("queue", track.queue_share), ("compute", track.compute_share)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"reelscribe_run_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"reelscribe_run_{name}", text, value=value)


@contextmanager
def metrics_served(shown: Progress, port: int) -> Iterator[RunMetrics]:
    """Serve the figures of a run at http://127.0.0.1:PORT/metrics.

    Args:
        shown: Receives everything that the result receives.
        port: A free port.

    Yields:
        A Progress for the run.

    Raises:
        UsageError: The port is taken.
    """
    metrics = RunMetrics(shown)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, ADDRESS, registry)
    except OSError as error:
        raise UsageError(
            f"--metrics-port: port {port} of {ADDRESS} cannot be used ({error.strerror}); choose one that is free"
        ) from None
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
