"""What a worker has done since it was last asked: sums."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Count = Literal[
    "requests",
    "errors",
    "frames",
    "audio_seconds",
    "tokens",
    "device_batches",
    "device_items",
    "device_seconds",
    "preprocess_seconds",
]
"""What is counted; metrics.yaml says what each means."""

COUNTS: tuple[Count, ...] = get_args(Count)

Sums = dict[tuple[Count, str], float]
"""By what was counted and, for errors, which; for all else that is ""."""


class Tally:
    """Adds up."""

    def __init__(self) -> None:
        self._sums: Sums = defaultdict(float)

    def add(self, count: Count, value: float = 1, *, error: str = "") -> None:
        """So much more of it; `error` is the type of an error."""
        self._sums[count, error] += value

    @contextmanager
    def timed(self, count: Count) -> Iterator[None]:
        """Add the seconds that a block takes, also one that fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(count, time.monotonic() - began)

    def take(self) -> Sums:
        """All that was added since it was last taken."""
        sums, self._sums = self._sums, defaultdict(float)
        return dict(sums)
