"""What TorchServe says of a registered model: one of its versions, and the workers of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOAD_SECONDS = 900.0
"""That models may take to be ready."""

_GPU = re.compile(r"gpuId::(\d+)")


def natural(version: str) -> list[tuple[int, str]]:
    """What to sort versions by: 10.0 comes after 9.0."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.-]", version)]


@dataclass(frozen=True)
class Worker:
    """One worker process of a version of a model."""

    id: str
    status: str
    """READY, or UNLOADING while it starts or restarts."""
    pid: int
    gpu: int | None
    """Number of its GPU; None where it has none, or the server cannot say."""
    memory: int
    """Bytes; 0 where the server does not measure it."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.status == "READY"

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Worker:
        """Raises KeyError, TypeError or ValueError for anything else than TorchServe's description."""
        gpu = _GPU.search(str(answer.get("gpuUsage")))
        return cls(
            id=str(answer["id"]),
            status=str(answer["status"]),
            pid=int(answer["pid"]),
            gpu=int(gpu[1]) if gpu else None,
            memory=int(answer.get("memoryUsage", 0)),
        )


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model, and how it gets on."""

    name: str
    version: str
    archive: str
    """What it was registered from: a file of the model store, or an address."""
    is_default: bool
    """Whether it answers requests that name no version."""
    min_workers: int
    max_workers: int
    workers: tuple[Worker, ...]
    queue_pending: int
    """Requests that wait."""
    queue_capacity: int
    """Requests that may wait."""
    response_seconds: int
    """That a worker may compute before it is replaced."""
    startup_seconds: int
    """That a worker may take to load the model."""
    device_ids: tuple[int, ...]
    """GPUs that the archive names; empty: the server shares out those that there are."""
    stages: int
    """Processes of a worker, with a GPU each where there are any; 1, or 2 for a model that is split."""
    batch_size: int
    """Requests that are joined at most."""
    batch_delay_ms: int
    """Milliseconds that a request may wait for others."""

    @property
    def ready(self) -> bool:
        """Whether as many workers as it wants are there, one at least, and all of them take requests."""
        return len(self.workers) >= max(1, self.min_workers) and all(worker.ready for worker in self.workers)

    def gpus_of(self, worker: Worker) -> tuple[int, ...]:
        """Numbers of the GPUs that a worker has."""
        if worker.gpu is None:
            return ()
        if self.stages == 1:
            return (worker.gpu,)
        # Of a worker with several, TorchServe says where in the list of its archive the first one stands.
        numbers = self.device_ids or range(worker.gpu + self.stages)
        return tuple(numbers[worker.gpu : worker.gpu + self.stages])

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], default: str) -> ModelVersion:
        """Of TorchServe's description and the default version.

        Raises KeyError, TypeError or ValueError for anything else than such a description.
        """
        queue = answer["jobQueueStatus"]
        pending = int(queue["pendingRequests"])
        return cls(
            name=str(answer["modelName"]),
            version=str(answer["modelVersion"]),
            archive=str(answer["modelUrl"]),
            is_default=answer["modelVersion"] == default,
            min_workers=int(answer["minWorkers"]),
            max_workers=int(answer["maxWorkers"]),
            workers=tuple(map(Worker.from_json, answer["workers"])),
            queue_pending=pending,
            queue_capacity=pending + int(queue["remainingCapacity"]),
            response_seconds=int(answer["responseTimeout"]),
            startup_seconds=int(answer["startupTimeout"]),
            device_ids=tuple(map(int, answer.get("deviceIds") or ())),
            stages=max(1, int(answer.get("parallelLevel", 1))),
            batch_size=int(answer["batchSize"]),
            batch_delay_ms=int(answer["maxBatchDelay"]),
        )
