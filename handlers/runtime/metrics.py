"""What workers count, told to TorchServe, which serves it to Prometheus; metrics.yaml declares the names."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from runtime.metrics import COUNTS, Count, Tally

logger = logging.getLogger(__name__)


class TorchServeMetrics(Protocol):
    """What is used of `context.metrics`."""

    def cache_keys(self) -> list[str]:
        """The metrics that are declared, like counter:reelscribe_frames_total."""

    def get_metric(self, metric_name: str) -> Any:
        """A counter that is declared, with a method `add_or_update(value, dimension values)`."""


def metric_name(count: Count) -> str:
    """As Prometheus has it."""
    return f"reelscribe_{count}_total"


class HandlerMetrics:
    """Tells TorchServe what one worker has counted."""

    def __init__(self, tally: Tally, metrics: TorchServeMetrics, model: str, version: str) -> None:
        declared = set(metrics.cache_keys())
        self._tally = tally
        self._metrics = {
            count: metrics.get_metric(metric_name(count))
            for count in COUNTS
            if f"counter:{metric_name(count)}" in declared
        }
        self._labels = [model, version]
        if missing := [count for count in COUNTS if count not in self._metrics]:
            logger.warning(
                "not told to TorchServe, as its metrics_config does not declare them: %s; set it to metrics.yaml",
                ", ".join(map(metric_name, missing)),
            )

    def report(self) -> None:
        """Tell what was counted since the last time: a line of output for each count, which TorchServe reads."""
        for (count, error), value in self._tally.take().items():
            if metric := self._metrics.get(count):
                metric.add_or_update(value, [*self._labels, error] if error else self._labels)
