"""How much memory something takes."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROMPT_COLLECTION = (50, 1, 1)
"""Thresholds of the collector with which objects that refer to each other are freed soon after their last use."""


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that tells the largest number of bytes that were allocated at once since the start.

    What was loaded before does not count, nor does it decide when the collector runs.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.collect()  # a full collection waits until a quarter as many objects are new as the last one found
    gc.set_threshold(*PROMPT_COLLECTION)
    tracemalloc.start()
    try:
        yield lambda: peak
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
