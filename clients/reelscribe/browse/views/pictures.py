"""The thumbnails of sources as pages need them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from reelscribe.browse.index.lines import SourceRow
from reelscribe.errors import UsageError
from reelscribe.thumbnails.store import ThumbnailStore


class Pictures:
    """Finds thumbnails of sources. Any thread may use it."""

    def __init__(self, out: Path) -> None:
        """Use the thumbnails in a folder of results."""
        self._store = ThumbnailStore(out)

    def times(self, row: SourceRow) -> list[float]:
        """Return the times of the thumbnails of a source, ascending, in seconds."""
        try:
            return self._store.times(row.sha256) if row.sha256 else []
        except UsageError:  # a record may say anything
            return []

    def of_card(self, row: SourceRow) -> float | None:
        """Return the time of the thumbnail that stands for a source: one a third into it, after titles."""
        return time_of_card(self.times(row))

    def webp(self, row: SourceRow, seconds: float) -> bytes | None:
        """Return a thumbnail of exactly this time; None if there is none."""
        try:
            return self._store.read(row.sha256, seconds) if row.sha256 else None
        except UsageError:
            return None


def time_of_card(times: Sequence[float]) -> float | None:
    """Return which of the thumbnails of a source stands for it: one a third into it, after titles; None for none."""
    return times[len(times) // 3] if times else None


def nearest(times: list[float], seconds: float) -> float | None:
    """Return which of some ascending times is the nearest one; None if there are none."""
    at = bisect_left(times, seconds)
    return min(times[max(0, at - 1) : at + 1], key=lambda time: abs(time - seconds), default=None)
