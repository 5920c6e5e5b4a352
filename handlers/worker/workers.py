"""A worker among the other workers of its model: its name in answers, and their number.

TorchServe tells a worker nothing of the others, and changes their number when models are scaled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil

_PROGRAM = "model_service_worker.py"
"""TorchServe's program that runs a handler."""


def worker_name(devices: Iterable[object]) -> str:
    """Name this worker, as the header `reelscribe.wire.WORKER_HEADER` does.

    Args:
        devices: Where each stage computes.
    """
    return f"{os.getpid()} {'+'.join(dict.fromkeys(map(str, devices)))}"


def count_workers(stages: int = 1) -> int:
    """Count the workers that TorchServe runs for this model and version now, this one included.

    They are children of the Java process in the folder of the unpacked archive, as this one is. A worker of two stages
    is a child of torchrun, which is that child.

    Args:
        stages: Number of processes that each worker is split over.
    """
    here, parent = os.getcwd(), psutil.Process().parent()
    java = parent.parent() if parent and stages > 1 else parent
    count = 0
    for child in java.children() if java else ():
        with suppress(psutil.Error):  # it has just ended
            count += child.cwd() == here and any(word.endswith(_PROGRAM) for word in child.cmdline())
    return max(1, count)
