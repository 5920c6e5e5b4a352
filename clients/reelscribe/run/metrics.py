"""The figures of a run for Prometheus, on this machine only, while the run lasts.

They are the client's own and stay with it: a server that took figures from its clients could be lied to.
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
    """Watches a run as the Progress does that it hands all on to, and tells Prometheus of it when it asks."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._snapshot: Snapshot | None = None
        self._errors: Counter[str] = Counter()

    def __enter__(self) -> Progress:
        self._shown.__enter__()
        return self

    def show(self, snapshot: Snapshot) -> None:
        """The run now."""
        self._snapshot = snapshot
        self._shown.show(snapshot)

    def finished(self, record: Record) -> None:
        """A source is done, for better or worse."""
        if record.error:
            kind, _ = record.error
            self._errors[kind] += 1
        self._shown.finished(record)

    def say(self, text: str) -> None:
        """Handed on."""
        self._shown.say(text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)

    def collect(self) -> Iterator[Metric]:
        """What `show` was told last; nothing before that."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield from _of_sources(snapshot, self._errors)
        yield from _of_lanes(snapshot)
        yield _gauge(
            "stall_p99_seconds", "Of 100 stalls of the event loop, 99 were not longer", snapshot.stall_p99_ms / 1e3
        )
        yield _gauge("stall_longest_seconds", "The longest stall of the event loop", snapshot.stall_longest_ms / 1e3)


def _of_sources(snapshot: Snapshot, errors: Counter[str]) -> Iterator[Metric]:
    yield _gauge("seconds", "Since the run began", snapshot.seconds)
    yield _gauge("sources", "All of the run", snapshot.sources)
    yield _counter("sources_done", "Sources that are done, failed ones included", snapshot.sources_done)
    yield _counter("sources_failed", "Sources that failed", snapshot.sources_failed)
    failures = CounterMetricFamily("reelscribe_run_errors", "Records with an error, by its type", labels=["type"])
    for kind, count in errors.copy().items():
        failures.add_metric([kind], count)
    yield failures
    yield _counter("frames", "Frames that were captioned, reused ones included", snapshot.frames)
    yield _counter("sound_seconds", "Seconds of audio that were transcribed, including silence", snapshot.audio_seconds)
    if snapshot.eta_seconds is not None:
        yield _gauge("eta_seconds", "Until the run is done, at its mean pace", snapshot.eta_seconds)


def _of_lanes(snapshot: Snapshot) -> Iterator[Metric]:
    """Label `lane`: frames or sound."""
    decoding = CounterMetricFamily(
        "reelscribe_run_decode_busy_seconds",
        "Of the mean decode process: its rate is their busy share",
        labels=["lane"],
    )
    serving = CounterMetricFamily(
        "reelscribe_run_server_busy_seconds", "Of the mean worker, with our requests: likewise", labels=["lane"]
    )
    requests = GaugeMetricFamily(
        "reelscribe_run_request_time_ratio",
        "Of the time of all requests so far: network (sending), queue (waiting), compute (being worked on)",
        labels=["lane", "part"],
    )
    for lane in snapshot.lanes:
        name = "frames" if lane.counts == "frames" else "sound"
        decoding.add_metric([name], lane.decode_share * snapshot.seconds)
        serving.add_metric([name], lane.server_share * snapshot.seconds)
        for part, share in _shares(lane):
            requests.add_metric([name, part], share)
    yield from (decoding, serving, requests)


def _shares(lane: TrackSnapshot) -> tuple[tuple[str, float], ...]:
    return ("network", lane.network_share), ("queue", lane.queue_share), ("compute", lane.compute_share)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"reelscribe_run_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"reelscribe_run_{name}", text, value=value)


@contextmanager
def metrics_served(shown: Progress, port: int) -> Iterator[RunMetrics]:
    """A progress that tells `shown` everything, and http://127.0.0.1:PORT/metrics. Raises UsageError: a taken port."""
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
