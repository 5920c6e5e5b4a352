"""A version of a model and its workers, as TorchServe's management API describes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

LOAD_SECONDS = 900.0
"""Default timeout, in seconds, for models to become ready."""

_GPU = re.compile(r"gpuId::(\d+)")


def version_sort_key(version: str) -> list[tuple[int, str]]:
    """Return a key that sorts versions by their numbers: 10.0 comes after 9.0."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.-]", version)]


@dataclass(frozen=True)
class Worker:
    """One worker process of a version of a model."""

    id: str
    """TorchServe's number of the worker, such as "9000"."""
    status: str
    """READY, or UNLOADING while it starts or restarts."""
    pid: int
    """Process id."""
    gpu: int | None
    """Number of its GPU; None if it has none or the server does not know it."""
    memory: int
    """Memory of the process, in bytes; 0 if the server does not measure it."""

    @property
    def ready(self) -> bool:
        """Return `True` if it takes requests."""
        return self.status == "READY"

    @property
    def running(self) -> bool:
        """Return `True` if its process has begun, which the server tells by its id."""
        return self.pid > 0

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Self:
        """Read TorchServe's description of a worker.

        Raises:
            KeyError, TypeError, ValueError: It is not such a description.
        """
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
    """A registered version of a model."""

    name: str
    """Name of the model."""
    version: str
    """The version, such as "1.0"."""
    archive: str
    """The file name in the model store, or the address, that it was registered from."""
    is_default: bool
    """True if this version answers requests that name no version."""
    min_workers: int
    """Number of workers that TorchServe keeps running."""
    max_workers: int
    """Largest number of workers."""
    workers: tuple[Worker, ...]
    """The workers that exist now, ready or not."""
    queue_pending: int
    """Number of requests that wait in its queue."""
    queue_capacity: int
    """Number of requests that its queue can hold."""
    response_seconds: int
    """Seconds that a worker may compute before it is replaced."""
    startup_seconds: int
    """Seconds that a worker may take to load the model."""
    device_ids: tuple[int, ...]
    """GPUs that the archive names; empty if the server assigns them."""
    stages: int
    """Number of processes that each worker is split over, 1 or 2; each has a GPU of its own if there are any."""
    batch_size: int
    """Largest number of requests that are joined into one batch."""
    batch_delay_ms: int
    """Milliseconds that a request may wait for others to join it."""

    @property
    def ready(self) -> bool:
        """Return `True` if it has at least one worker and at least `min_workers`, and all of them take requests."""
        return len(self.workers) >= max(1, self.min_workers) and all(worker.ready for worker in self.workers)

    def gpus_of(self, worker: Worker) -> tuple[int, ...]:
        """Return the numbers of the GPUs that a worker uses, one for each stage; empty if it uses none."""
        if worker.gpu is None:
            return ()
        if self.stages == 1:
            return (worker.gpu,)
        # For a worker with several GPUs, TorchServe reports the first one's position in the archive's list.
        numbers = self.device_ids or range(worker.gpu + self.stages)
        return tuple(numbers[worker.gpu : worker.gpu + self.stages])

    def places(self, gpus: int = 0) -> int:
        """Return the number of GPUs, or of pairs of them for two stages, that workers are spread over.

        Args:
            gpus: Number of GPUs of the server, for an archive that names none; 0 takes those with workers for all.
        """
        known = len(set(self.device_ids)) or max([gpus, *(worker.gpu + 1 for worker in self.workers if worker.gpu)])
        return max(1, known // self.stages)

    def evenly_spread(self, gpus: int = 0) -> int:
        """Return how many workers, from the oldest one on, are spread evenly: no GPU has two more than another one.

        The argument is that of `places`.
        """
        for count in range(len(self.workers), 0, -1):
            each = Counter(worker.gpu for worker in self.workers[:count])
            fewest = min(each.values()) if None in each or len(each) >= self.places(gpus) else 0
            if max(each.values()) <= fewest + 1:
                return count
        return 0

    def advice(self, gpus: int = 0) -> str | None:
        """Say how to spread the workers evenly; None if they are. The argument is that of `places`."""
        if self.evenly_spread(gpus) == len(self.workers):
            return None
        places = ", ".join(str(number) for worker in self.workers for number in self.gpus_of(worker))
        return (
            f"its workers are on GPUs {places}; `reelscribe models scale {self.name} {self.min_workers}"
            f"{'' if self.is_default else f' --version {self.version}'}` spreads them evenly"
        )

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], default: str) -> Self:
        """Read TorchServe's description of a version.

        Args:
            answer: The description.
            default: The default version of the model.

        Raises:
            KeyError, TypeError, ValueError: It is not such a description.
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
