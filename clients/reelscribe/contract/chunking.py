"""Cut long audio, where it is quiet, into chunks that a speech model takes whole; tell whether a chunk is silent.

Loudness is compared by energies, sums of squared 16-bit samples. They are integers, so that every machine cuts the same
samples in the same places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import SampleArray
from reelscribe.errors import UsageError

SILENCE_DB = -60.0
"""Default level below which audio is silent, in dB of full scale: above digital silence, dither and the hum of a quiet
recording, and below any speech. scripts/bench defaults/chunking measures it."""

SHORTEST_SECONDS = 1.0
"""Shortest length, in seconds, of the last chunk of audio that is cut. Models invent words for shorter ones, so the
chunk before it ends earlier instead."""

_SILENCE_WINDOW_SECONDS = 0.03
_HOPS_PER_SECOND = 100
_FULL_SCALE = 32768
_TIE_TOLERANCE = 20
"""Windows count as equally quiet if they have at most a 20th more energy than the quietest, because noise never gives
two windows exactly the same energy."""


@dataclass(frozen=True)
class Cutting:
    """Where long audio is cut: in the middle of the quietest window near the end of each chunk.

    Raises:
        UsageError: A value is out of its range.
    """

    search_seconds: float = 5.0
    """Length of the end of a chunk that is searched for the quietest window: from `window_seconds` to 600 seconds.
    0: every chunk is as long as the model allows, and words may be cut."""
    window_seconds: float = 0.3
    """Length of the window whose energy is compared: 0.01 to 10 seconds."""

    def __post_init__(self) -> None:
        if not 0.01 <= self.window_seconds <= 10:
            raise UsageError(f"window_seconds: expected 0.01 to 10 seconds, got {self.window_seconds}")
        if self.search_seconds != 0 and not self.window_seconds <= self.search_seconds <= 600:
            raise UsageError(
                f"search_seconds: expected 0, or from window_seconds, {self.window_seconds}, to 600 seconds,"
                f" got {self.search_seconds}"
            )


class Chunker:
    """Cut a stream of samples into chunks.

    Joined together, the chunks are the stream. They depend on its samples only, not on how they are pushed. A chunker
    holds less than `limit` samples, plus one second, plus what was pushed last.

    Args:
        limit: Largest number of samples in a chunk.
        sample_rate: Samples per second, in Hz.
        cutting: Where to cut.

    Raises:
        UsageError: A chunk of `limit` samples is not longer than the search and the shortest chunk together.
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
        self._held_samples = 0

    def push(self, samples: SampleArray) -> list[SampleArray]:
        """Add the next samples of the stream.

        Args:
            samples: (N,) int16, not to be changed as long as the chunks are used, which may share its memory.

        Returns:
            The chunks that end before or within these samples, in order; often none.
        """
        self._held.append(samples)
        self._held_samples += len(samples)
        return self._cut(self._limit + self._shortest)

    def flush(self) -> list[SampleArray]:
        """End the stream; the next push begins another one.

        Returns:
            The last chunks, in order: none, one or two.
        """
        chunks = self._cut(self._limit + 1)
        if self._held_samples:
            chunks.append(np.concatenate(self._held))
        self._held, self._held_samples = [], 0
        return chunks

    def _cut(self, least: int) -> list[SampleArray]:
        """Cut chunks off as long as at least `least` samples are held."""
        if self._held_samples < least:
            return []
        rest = np.concatenate(self._held)
        chunks = []
        while len(rest) >= least:
            stop = self._end_of_chunk(rest)
            chunks.append(rest[:stop])
            rest = rest[stop:]
        self._held, self._held_samples = [rest], len(rest)
        return chunks

    def _end_of_chunk(self, samples: SampleArray) -> int:
        latest = min(self._limit, len(samples) - self._shortest)
        if not self._search:
            return latest
        first = latest - self._search
        return first + _quietest(samples[first:latest], self._window, self._hop)


def _quietest(samples: SampleArray, window: int, hop: int) -> int:
    """Return the middle of the quietest window; of several, the middle of the last uninterrupted row of them."""
    energies = _energies(samples, window, hop)
    least = int(energies.min())
    quiet = np.flatnonzero(energies <= least + least // _TIE_TOLERANCE)
    last_row = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)[-1]
    return int(last_row[0] + last_row[-1]) // 2 * hop + window // 2


def _energies(samples: SampleArray, window: int, hop: int) -> NDArray[np.int64]:
    """Return the sum of squares of each window; windows begin every `hop` samples, the first with the first sample."""
    sums = np.concatenate([[0], np.cumsum(samples.astype(np.int64) ** 2)])
    starts = np.arange(0, len(samples) - window + 1, hop)
    energies: NDArray[np.int64] = sums[starts + window] - sums[starts]
    return energies


def is_silent(samples: SampleArray, sample_rate: int, threshold_db: float = SILENCE_DB) -> bool:
    """Tell whether samples are silent everywhere.

    Args:
        samples: (N,) int16.
        sample_rate: Samples per second, in Hz.
        threshold_db: RMS level below which a window is silent, in dB of full scale (0 is full scale).

    Returns:
        Whether every window of 30 ms is below the threshold; True for no samples at all.
    """
    if not len(samples):
        return True
    window = min(len(samples), max(1, round(_SILENCE_WINDOW_SECONDS * sample_rate)))
    hop = max(1, sample_rate // _HOPS_PER_SECOND)
    threshold = (_FULL_SCALE * 10 ** (threshold_db / 20)) ** 2 * window
    return bool(_energies(samples, window, hop).max() < threshold)
