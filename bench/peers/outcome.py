"""What a client tells of its run, whatever it is: one line of JSON on its standard output.

Its clock begins when its modules are imported and its model, if it has one, is loaded, as servers are by then. It ends
with the last caption.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import psutil


class Recorder:
    """Notes what a client does."""

    def __init__(self) -> None:
        self._began, self._cpu_began = time.monotonic(), _cpu_seconds()
        self._answers: list[tuple[float, int]] = []
        self._sent = 0

    def sent(self, nbytes: int) -> None:
        """The body of a request has so many."""
        self._sent += nbytes

    def answered(self, frames: int) -> None:
        """So many more frames have captions."""
        self._answers.append((time.monotonic() - self._began, frames))

    def tell(self, captions: list[str]) -> None:
        """Print it all; `captions` are those of all sources, in order."""
        cpu_seconds = _cpu_seconds() - self._cpu_began
        told = {"answers": self._answers, "cpu_seconds": cpu_seconds, "sent_bytes": self._sent, "captions": captions}
        print(json.dumps(told))


@dataclass(frozen=True)
class Outcome:
    """What a client told."""

    answers: list[tuple[float, int]]
    """Seconds since it began, and how many frames were captioned then."""
    cpu_seconds: float
    """Its own and that of its children, all but the start of Python."""
    sent_bytes: int
    """Of the bodies of its requests, as it counted them."""
    captions: list[str]

    @classmethod
    def from_output(cls, text: str) -> Outcome:
        """Of a client's whole output, the last line."""
        told = json.loads(text.splitlines()[-1])
        return cls(**{**told, "answers": [(seconds, frames) for seconds, frames in told["answers"]]})

    @property
    def frames(self) -> int:
        """That were captioned."""
        return len(self.captions)

    @property
    def frames_per_second(self) -> float:
        """From its beginning to the last caption."""
        return self.frames / self.answers[-1][0]

    @property
    def steady_frames_per_second(self) -> float:
        """From when a quarter of the frames had captions to the last one."""
        done = 0
        for seconds, frames in self.answers:
            done += frames
            if done * 4 >= self.frames and done < self.frames:
                return (self.frames - done) / max(self.answers[-1][0] - seconds, 1e-3)
        return self.frames_per_second


def _cpu_seconds() -> float:
    """Of this process and of all children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
