"""The outcome of a client's run, which each client prints as one line of JSON.

The clock starts when the client's modules are imported and its model, if it has one, is loaded, as servers have loaded
theirs by then. It stops at the last caption.
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

    def answered(self, frames: int) -> None:
        """Record that so many more frames have captions."""
        self._answers.append((time.monotonic() - self._began, frames))

    def print_outcome(self, captions: list[str]) -> None:
        """Print the outcome; `captions` are those of all sources, in order."""
        print(json.dumps(asdict(Outcome(self._answers, _cpu_seconds() - self._cpu_began, self._sent, captions))))


@dataclass(frozen=True)
class Outcome:
    """The figures and captions of a client's run.

    >>> outcome = Outcome([(2.0, 10), (3.0, 10), (4.0, 20)], 1.0, 0, [""] * 40)
    >>> outcome.frames_per_second, outcome.steady_frames_per_second
    (10.0, 15.0)
    """

    answers: list[tuple[float, int]]
    """Seconds since the start, and how many frames were captioned then."""
    cpu_seconds: float
    """CPU seconds of the client and its children since the start."""
    sent_bytes: int
    """Bytes of the bodies of all requests."""
    captions: list[str]
    """Captions of all sources, in order."""

    @classmethod
    def from_output(cls, text: str) -> Outcome:
        """Read a client's output, whose last line is the outcome."""
        values = json.loads(text.splitlines()[-1])
        return cls(**{**values, "answers": [(seconds, frames) for seconds, frames in values["answers"]]})

    @property
    def frames(self) -> int:
        """Number of captioned frames."""
        return len(self.captions)

    @property
    def frames_per_second(self) -> float:
        """Frames per second from the start to the last caption."""
        return self.frames / self.answers[-1][0]

    @property
    def steady_frames_per_second(self) -> float:
        """Frames per second from when a quarter of the frames had captions to the last caption."""
        done = 0
        for seconds, frames in self.answers:
            done += frames
            if done * 4 >= self.frames and done < self.frames:
                return (self.frames - done) / max(self.answers[-1][0] - seconds, 1e-3)
        return self.frames_per_second


def _cpu_seconds() -> float:
    """CPU seconds of this process and of all children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
