"""How much memory something takes."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that tells the largest number of bytes that were allocated at once since the start."""
    tracemalloc.start()
    try:
        yield lambda: peak
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
