"""The outcome of a client's run, which each client prints as one line of JSON.

The clock starts when the client's modules are imported and its model, if it has one, is loaded, as servers have loaded
theirs by then. It stops at the last answer. The items are frames with captions, or clips with descriptions.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

import psutil


class Recorder:
    """Records what a client sends and when it is answered."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.monotonic(), _cpu_seconds()
        self._answers: list[tuple[float, int]] = []
        self._sent = 0

    def sent(self, nbytes: int) -> None:
        """Record a request with a body of so many bytes."""
        self._sent += nbytes

    def answered(self, items: int) -> None:
        """Record that so many more items have texts."""
        self._answers.append((time.monotonic() - self._began, items))

    def print_outcome(self, texts: list[str], longest_stall_ms: int | None = None) -> None:
        """Print the outcome.

        Args:
            texts: The texts of all sources, in order.
            longest_stall_ms: The longest stall of the client's event loop, if it was measured.
        """
        outcome = Outcome(self._answers, _cpu_seconds() - self._cpu_began, self._sent, texts, longest_stall_ms)
        print(json.dumps(asdict(outcome)))


@dataclass(frozen=True)
class Outcome:
    """The figures and texts of a client's run.

    >>> outcome = Outcome([(2.0, 10), (3.0, 10), (4.0, 20)], 1.0, 0, [""] * 40)
    >>> outcome.per_second, outcome.steady_per_second
    (10.0, 15.0)
    """

    answers: list[tuple[float, int]]
    """Seconds since the start, and how many items were answered then."""
    cpu_seconds: float
    """CPU seconds of the client and its children since the start."""
    sent_bytes: int
    """Bytes of the bodies of all requests."""
    texts: list[str]
    """Captions or descriptions of all sources, in order."""
    longest_stall_ms: int | None = None
    """The longest stall of the client's event loop in milliseconds, if it was measured."""

    @classmethod
    def from_output(cls, text: str) -> Outcome:
        """Read a client's output, whose last line is the outcome."""
        values = json.loads(text.splitlines()[-1])
        return cls(**{**values, "answers": [(seconds, items) for seconds, items in values["answers"]]})

    @property
    def items(self) -> int:
        """Number of items that have texts."""
        return len(self.texts)

    @property
    def per_second(self) -> float:
        """Items per second from the start to the last answer."""
        return self.items / self.answers[-1][0]

    @property
    def steady_per_second(self) -> float:
        """Items per second from when a quarter of them had texts to the last answer."""
        done = 0
        for seconds, items in self.answers:
            done += items
            if done * 4 >= self.items and done < self.items:
                return (self.items - done) / max(self.answers[-1][0] - seconds, 1e-3)
        return self.per_second


def _cpu_seconds() -> float:
    """CPU seconds of this process and of all children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
