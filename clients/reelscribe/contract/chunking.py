"""Cut long audio where it is quiet, into chunks that a speech model takes whole, and detect silent chunks.

Loudness is measured as energy, the sum of squared 16-bit samples. Energies are integers, so that every machine cuts the
same samples in the same places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import check_options
from reelscribe.contract.speech import SampleArray
from reelscribe.errors import UsageError

SHORTEST_SECONDS = 1.0
"""Shortest last chunk of audio that is cut into several chunks, in seconds. Models invent words for shorter chunks, so
the chunk before the last one ends earlier instead."""

HOPS_PER_SECOND = 100
"""Windows whose energy is computed for each second of audio."""

_TIE_DIVISOR = 20
"""Windows count as equally quiet if their energy exceeds the lowest energy by at most 1 / _TIE_DIVISOR of it, because
noise never gives two windows exactly the same energy."""


@dataclass(frozen=True)
class Cutting:
    """Where long audio is cut: in the middle of the quietest window near the end of each chunk.

    Raises:
        UsageError: A value is out of its range.
    """

    search_seconds: float | None = None
    """Seconds at the end of a chunk in which the quietest window is searched: from `window_seconds` to 600; None for
    half of the longest chunk. With 0, every chunk is as long as the model allows, and words may be cut in two."""
    window_seconds: float = 0.3
    """Length of the windows whose energies are compared, in seconds: 0.01 to 10."""

    def __post_init__(self) -> None:
        check_options(self)
        if not 0.01 <= self.window_seconds <= 10:
            raise UsageError(f"window_seconds: expected 0.01 to 10 seconds, got {self.window_seconds}")
        search = self.search_seconds
        if search is not None and search != 0 and not self.window_seconds <= search <= 600:
            raise UsageError(
                f"search_seconds: expected 0, or from window_seconds, {self.window_seconds}, to 600 seconds,"
                f" got {search}"
            )


class Chunker:
    """Cut a stream of samples into chunks.

    Joined together, the chunks are the stream. They depend on its samples only, not on the lengths of the arrays that
    are pushed. A chunker holds less than `limit` samples, plus SHORTEST_SECONDS of samples, plus the last array.

    Args:
        limit: Largest number of samples in a chunk.
        sample_rate: Sample rate in Hz.
        cutting: Where to cut.

    Raises:
        UsageError: A chunk of `limit` samples is not longer than the search and the shortest chunk together.
    """

    def __init__(self, limit: int, sample_rate: int, cutting: Cutting = Cutting()) -> None:
        self._limit = limit
        self._window = max(1, round(cutting.window_seconds * sample_rate))
        self._shortest = round(SHORTEST_SECONDS * sample_rate)
        self._hop = max(1, sample_rate // HOPS_PER_SECOND)
        if cutting.search_seconds is None:
            self._search = max(self._window, min(limit // 2, limit - self._shortest - 1))
        else:
            self._search = round(cutting.search_seconds * sample_rate)
        if limit <= self._search + self._shortest:
            raise UsageError(
                f"chunks: expected more than {self._search / sample_rate + SHORTEST_SECONDS} seconds (search_seconds"
                f" and the shortest chunk), got {limit / sample_rate}; search less"
            )
        self._held: list[SampleArray] = []
        self._held_samples = 0

    def push(self, samples: SampleArray) -> list[SampleArray]:
        """Add the next samples of the stream.

        Args:
            samples: (N,) int16. The chunks may be views of it, so it must not change while they are in use.

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

    def _cut(self, needed: int) -> list[SampleArray]:
        """Cut off chunks as long as at least `needed` samples are held."""
        if self._held_samples < needed:
            return []
        rest = np.concatenate(self._held)
        chunks = []
        while len(rest) >= needed:
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
    """Return the middle of the quietest window. If there are several, take the last run of adjacent ones."""
    energies = window_energies(samples, window, hop)
    lowest = int(energies.min())
    quiet = np.flatnonzero(energies <= lowest + lowest // _TIE_DIVISOR)
    last_run = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)[-1]
    return int(last_run[0] + last_run[-1]) // 2 * hop + window // 2


def window_energies(samples: NDArray[np.integer[Any]], window: int, hop: int) -> NDArray[np.int64]:
    """Return the energy of each window of `window` samples; a window begins every `hop` samples, the first at 0."""
    block = math.gcd(window, hop)  # every window is a number of whole blocks
    values = samples[: len(samples) // block * block].reshape(-1, block).astype(np.float64)
    # Far below 2**53, so these sums of integers are exact, in whichever order they are added up.
    energies_of_blocks = np.einsum("ij,ij->i", values, values).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(energies_of_blocks)])
    starts = np.arange(0, len(samples) - window + 1, hop) // block
    energies: NDArray[np.int64] = sums[starts + window // block] - sums[starts]
    return energies
