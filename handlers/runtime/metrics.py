"""Counters of a worker, and their way to TorchServe, which exposes them to Prometheus.

clients/reelscribe/server/torchserve_metrics.yaml declares every metric and says what it counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, get_args

logger = logging.getLogger(__name__)

CounterName = Literal[
    "requests",
    "errors",
    "frames",
    "clips",
    "audio_seconds",
    "tokens",
    "device_batches",
    "device_items",
    "device_seconds",
    "preprocess_seconds",
    "read_wait_seconds",
]
"""Names of the counters; `metric_name` makes Prometheus names of them."""

COUNTER_NAMES: tuple[CounterName, ...] = get_args(CounterName)

Sums = dict[tuple[CounterName, str], float]
"""Values by counter name and error type. The error type is "" for every counter but `errors`."""


class Counters:
    """The counters of one worker, which add up until `take` returns and resets them. Threads may share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Sums = defaultdict(float)

    def add(self, name: CounterName, value: float = 1, *, error: str = "") -> None:
        """Increase a counter.

        Args:
            name: The counter.
            value: How much to add, at least 0.
            error: The class name of an error, for the counter `errors` only.
        """
        with self._lock:
            self._sums[name, error] += value

    @contextmanager
    def timed(self, name: CounterName) -> Iterator[None]:
        """Add the duration of a `with` block, in seconds, to a counter, even if the block raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)

    def take(self) -> Sums:
        """Return the values since the last call, and reset them to zero."""
        with self._lock:
            sums, self._sums = self._sums, defaultdict(float)
        return dict(sums)


class TorchServeMetrics(Protocol):
    """The part of TorchServe's `context.metrics` that this module uses."""

    def cache_keys(self) -> list[str]:
        """The declared metrics, such as "counter:reelscribe_frames_total"."""

    def get_metric(self, metric_name: str) -> Any:
        """A declared counter, with a method `add_or_update(value, dimension_values)`."""


def metric_name(name: CounterName) -> str:
    """The name of a counter in Prometheus."""
    return f"reelscribe_{name}_total"


class MetricsReporter:
    """Reports the counters of one worker to TorchServe, with the dimensions that torchserve_metrics.yaml declares."""

    def __init__(self, counters: Counters, metrics: TorchServeMetrics, model: str, version: str, worker: str) -> None:
        """Look up the declared metrics, and log a warning that names the missing ones.

        Args:
            counters: What to report.
            metrics: TorchServe's metrics.
            model: The model's name in TorchServe, the dimension ModelName.
            version: The model's version in TorchServe, the dimension ModelVersion.
            worker: The worker as `wire.WORKER_HEADER` names it. Its process id is the dimension Worker, and the GPUs
                on which it computes, or "cpu", are the dimension GPU.
        """
        declared = set(metrics.cache_keys())
        self._counters = counters
        self._metrics = {
            name: metrics.get_metric(metric_name(name))
            for name in COUNTER_NAMES
            if f"counter:{metric_name(name)}" in declared
        }
        process, _, device = worker.partition(" ")
        # TorchServe leaves out a dimension whose value has a colon, as that of "cuda:2".
        self._dimensions = [model, version, process, device.replace("cuda:", "")]
        if missing := [name for name in COUNTER_NAMES if name not in self._metrics]:
            logger.warning(
                "not reported to TorchServe, as its metrics_config does not declare them: %s; leave it out of"
                " config.properties",
                ", ".join(map(metric_name, missing)),
            )

    def report(self) -> None:
        """Report what the counters gained since the last report: one line of output each, which TorchServe parses."""
        for (name, error), value in self._counters.take().items():
            if metric := self._metrics.get(name):
                metric.add_or_update(value, [*self._dimensions, error] if error else self._dimensions)
