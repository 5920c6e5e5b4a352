"""Long sound -> chunks that a speech model hears as a whole, cut where it is quiet.

Energies are sums of squared 16-bit samples, in integers: equal samples are cut alike on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import UsageError
from reelscribe.speech import SampleArray

SILENCE_DB = -60.0
"""Above digital silence, dither and the hum of a quiet recording, below any speech: scripts/bench defaults/chunking."""

SHORTEST_SECONDS = 1.0
"""The last chunk of longer sound is never shorter, as models make up words for scraps; the one before it is cut earlier
instead."""

_SILENCE_WINDOW_SECONDS = 0.03
_HOPS_PER_SECOND = 100
_FULL_SCALE = 32768
_AS_QUIET = 20
"""Windows with a 20th more energy than the quietest count as equally quiet: noise makes no two alike."""


@dataclass(frozen=True)
class Cutting:
    """A chunk ends in the middle of the quietest window, `window_seconds` long, of its last `search_seconds`.

    With `search_seconds` 0 it ends where it must, whatever is being said. Raises UsageError for values that mean
    nothing.
    """

    search_seconds: float = 5.0
    window_seconds: float = 0.3

    def __post_init__(self) -> None:
        if not 0.01 <= self.window_seconds <= 10:
            raise UsageError(f"window_seconds: expected 0.01 to 10 seconds, got {self.window_seconds}")
        if self.search_seconds != 0 and not self.window_seconds <= self.search_seconds <= 600:
            raise UsageError(
                f"search_seconds: expected 0, or from window_seconds, {self.window_seconds}, to 600 seconds,"
                f" got {self.search_seconds}"
            )


class Chunker:
    """Cuts a stream of samples into chunks of at most `limit` samples: nothing is lost, and nothing comes twice.

    It keeps less than `limit` samples, one second, and what was pushed last. How the stream is pushed makes no
    difference to the chunks. They may share memory with what was pushed.

    Raises UsageError if the limit leaves no room for the search.
    """

    def __init__(self, limit: int, sample_rate: int, cutting: Cutting = Cutting()) -> None:
        self._limit = limit
        self._search = round(cutting.search_seconds * sample_rate)
        self._window = max(1, round(cutting.window_seconds * sample_rate))
        self._shortest = round(SHORTEST_SECONDS * sample_rate)
        self._hop = max(1, sample_rate // _HOPS_PER_SECOND)
        if limit <= self._search + self._shortest:
            raise UsageError(
                f"chunks: expected more than {cutting.search_seconds + SHORTEST_SECONDS} seconds (search_seconds and"
                f" the shortest chunk), got {limit / sample_rate}; search less"
            )
        self._held: list[SampleArray] = []
        self._samples = 0

    def push(self, samples: SampleArray) -> list[SampleArray]:
        """The chunks that are known to be whole, now that `samples` follow."""
        self._held.append(samples)
        self._samples += len(samples)
        return self._cut(self._limit + self._shortest)

    def flush(self) -> list[SampleArray]:
        """The rest, when nothing follows: no chunk, one, or two. Another stream may be pushed then."""
        chunks = self._cut(self._limit + 1)
        if self._samples:
            chunks.append(np.concatenate(self._held))
        self._held, self._samples = [], 0
        return chunks

    def _cut(self, least: int) -> list[SampleArray]:
        """Chunks, as long as at least so many samples are there."""
        if self._samples < least:
            return []
        rest = np.concatenate(self._held)
        chunks = []
        while len(rest) >= least:
            stop = self._end_of_chunk(rest)
            chunks.append(rest[:stop])
            rest = rest[stop:]
        self._held, self._samples = [rest], len(rest)
        return chunks

    def _end_of_chunk(self, samples: SampleArray) -> int:
        latest = min(self._limit, len(samples) - self._shortest)
        if not self._search:
            return latest
        first = latest - self._search
        return first + _quietest(samples[first:latest], self._window, self._hop)


def _quietest(samples: SampleArray, window: int, hop: int) -> int:
    """The middle of the quietest window; of equally quiet ones, the middle of those that come last in a row."""
    energies = _energies(samples, window, hop)
    least = int(energies.min())
    quiet = np.flatnonzero(energies <= least + least // _AS_QUIET)
    last_run = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)[-1]
    return int(last_run[0] + last_run[-1]) // 2 * hop + window // 2


def _energies(samples: SampleArray, window: int, hop: int) -> NDArray[np.int64]:
    """The sum of squares of every window, from the first sample on, one every `hop` samples."""
    sums = np.concatenate([[0], np.cumsum(samples.astype(np.int64) ** 2)])
    starts = np.arange(0, len(samples) - window + 1, hop)
    energies: NDArray[np.int64] = sums[starts + window] - sums[starts]
    return energies


def is_silent(samples: SampleArray, sample_rate: int, threshold_db: float = SILENCE_DB) -> bool:
    """Whether no 30 ms of the samples are as loud as `threshold_db`: their RMS in decibels, 0 for full scale."""
    if not len(samples):
        return True
    window = min(len(samples), max(1, round(_SILENCE_WINDOW_SECONDS * sample_rate)))
    hop = max(1, sample_rate // _HOPS_PER_SECOND)
    threshold = (_FULL_SCALE * 10 ** (threshold_db / 20)) ** 2 * window
    return bool(_energies(samples, window, hop).max() < threshold)
