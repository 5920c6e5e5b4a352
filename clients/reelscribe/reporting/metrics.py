"""Serves the figures of a run to Prometheus, on loopback, while the run lasts.

The client serves them itself. If it sent them to the server to publish, the server would have to trust its clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reelscribe.contract.outcomes import SourceError
from reelscribe.errors import UsageError
from reelscribe.reporting.meter import Snapshot, TrackSnapshot
from reelscribe.reporting.plan import Plan
from reelscribe.reporting.progress import Progress
from reelscribe.reporting.units import UNITS

ADDRESS = "127.0.0.1"
"""Address at which the metrics are served."""


class RunMetrics(Progress, Collector):
    """A Progress that passes everything on to another Progress, and the latest snapshot to Prometheus."""

    def __init__(self, progress: Progress) -> None:
        """Pass everything on to `progress`."""
        self._progress = progress
        self._snapshot: Snapshot | None = None
        self._errors: Counter[str] = Counter()

    def __enter__(self) -> Progress:
        self._progress.__enter__()
        return self

    def announce(self, plan: Plan) -> None:
        """Pass on what the run has before it."""
        self._progress.announce(plan)

    def show(self, snapshot: Snapshot) -> None:
        """Keep the snapshot for the next scrape."""
        self._snapshot = snapshot
        self._progress.show(snapshot)

    def finished(self, path: str, error: SourceError | None) -> None:
        """Count the error of a source."""
        if error:
            self._errors[error.type] += 1
        self._progress.finished(path, error)

    def message(self, text: str) -> None:
        """Pass a message on."""
        self._progress.message(text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last snapshot, or none before the first."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield from _source_metrics(snapshot, self._errors)
        yield from _track_metrics(snapshot)
        if snapshot.nodes:
            yield from _node_metrics(snapshot)


def _source_metrics(snapshot: Snapshot, errors: Counter[str]) -> Iterator[Metric]:
    yield _gauge("seconds", "Seconds since the run began", snapshot.seconds)
    yield _gauge("sources", "Sources of the run", snapshot.sources)
    yield _counter("sources_done", "Sources that are done, including failed ones", snapshot.sources_done)
    yield _counter("sources_failed", "Sources that failed", snapshot.sources_failed)
    failures = CounterMetricFamily("reelscribe_run_errors", "Records with an error, by its type", labels=["type"])
    for kind, count in errors.copy().items():
        failures.add_metric([kind], count)
    yield failures
    yield _counter("frames", "Frames that were captioned, including reused ones", snapshot.frames)
    yield _counter("clips", "Clips that were described", snapshot.clips)
    yield _counter("audio_seconds", "Seconds of audio that were transcribed, including silence", snapshot.audio_seconds)
    if snapshot.eta_seconds is not None:
        yield _gauge("eta_seconds", "Seconds until the run is done, at its speed of late", snapshot.eta_seconds)


def _track_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of each track; their label `track` is that of `units.UNITS`."""
    decoding = CounterMetricFamily(
        "reelscribe_run_decode_busy_seconds",
        "Seconds that the average decode process has worked; its rate is the busy fraction",
        labels=["track"],
    )
    serving = CounterMetricFamily(
        "reelscribe_run_server_busy_seconds",
        "Seconds that the average worker has computed for this run",
        labels=["track"],
    )
    requests = GaugeMetricFamily(
        "reelscribe_run_request_time_ratio",
        "Fraction of all request time: network (sending), queue (waiting at the server), compute (in a worker)",
        labels=["track", "part"],
    )
    in_flight = GaugeMetricFamily(
        "reelscribe_run_requests_in_flight_limit",
        "Requests that may be in flight: now, and to keep all workers busy (wanted)",
        labels=["track", "kind"],
    )
    calls = GaugeMetricFamily(
        "reelscribe_run_call_items",
        "Frames, clips, chunks or windows of a call: of late (mean), and when all its requests have come (full)",
        labels=["track", "kind"],
    )
    sent = CounterMetricFamily("reelscribe_run_requests", "Requests that were answered", labels=["track"])
    again = CounterMetricFamily("reelscribe_run_retries", "Requests that were sent again", labels=["track"])
    for track in snapshot.tracks:
        name = UNITS[track.counts].track
        in_flight.add_metric([name, "now"], track.requests_in_flight)
        in_flight.add_metric([name, "wanted"], track.requests_wanted)
        calls.add_metric([name, "mean"], track.call_items)
        calls.add_metric([name, "full"], track.full_call)
        sent.add_metric([name], track.requests)
        again.add_metric([name], track.retries)
        decoding.add_metric([name], track.decode_share * snapshot.seconds)
        serving.add_metric([name], track.server_share * snapshot.seconds)
        for part, share in _shares(track):
            requests.add_metric([name, part], share)
    yield from (decoding, serving, requests, in_flight, calls, sent, again)


def _node_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of each node, by its name; the reasons why one is not used would be labels without end."""
    up = GaugeMetricFamily("reelscribe_run_node_up", "Whether sources are leased to the node", labels=["node"])
    done = CounterMetricFamily("reelscribe_run_node_sources_done", "Sources that the node has done", labels=["node"])
    leased = GaugeMetricFamily("reelscribe_run_node_sources_open", "Sources leased to the node", labels=["node"])
    speed = GaugeMetricFamily(
        "reelscribe_run_node_speed_ratio",
        "Seconds of video or audio that the node annotates per second, since it was started last",
        labels=["node"],
    )
    for node in snapshot.nodes:
        up.add_metric([node.name], node.is_ready)
        done.add_metric([node.name], node.sources_done)
        leased.add_metric([node.name], node.sources_open)
        speed.add_metric([node.name], node.media_seconds_per_second)
    yield from (up, done, leased, speed)
    yield _counter("nodes_lost", "How often a node was lost", snapshot.nodes_lost)


def _shares(track: TrackSnapshot) -> tuple[tuple[str, float], ...]:
    return ("network", track.network_share), ("queue", track.queue_share), ("compute", track.compute_share)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"reelscribe_run_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"reelscribe_run_{name}", text, value=value)


@contextmanager
def metrics_served(progress: Progress, port: int) -> Iterator[RunMetrics]:
    """Serve the figures of a run at http://127.0.0.1:PORT/metrics while the block runs.

    Args:
        progress: Shows the run.
        port: A free TCP port.

    Yields:
        The Progress to give to the run; it passes everything on to `progress`.

    Raises:
        UsageError: The port cannot be used.
    """
    metrics = RunMetrics(progress)
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
