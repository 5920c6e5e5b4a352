"""The thumbnails of sources as pages need them: those of the run, or else ones that are made when somebody looks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock

from reelscribe.errors import DecoderDied, MediaError, OutputError, UsageError
from reelscribe.storage.address import is_stored
from reelscribe.thumbnails.pictures import USUAL_COUNT, even_times
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails

MOST_MADE_BYTES = 2**30
"""Largest size of all thumbnails that are made for pages, in bytes, about."""

_AT_ONCE = 2


class SourceThumbnails:
    """Finds and makes thumbnails of sources. Any thread may use it."""

    def __init__(self, out: Path, cache: Path, files: MediaFiles) -> None:
        """Prepare to find thumbnails.

        Args:
            out: The folder of results, whose thumbnails come first.
            cache: A folder for those that are made here.
            files: Opens sources.
        """
        self._of_run, self._made = ThumbnailStore(out), ThumbnailStore(cache, most_bytes=MOST_MADE_BYTES)
        self._files = files
        self._ended = Event()
        self._decoding = BoundedSemaphore(_AT_ONCE)
        self._lock = Lock()
        self._busy: dict[str, Lock] = {}
        """A lock for each source of which thumbnails are being made, by its digest."""
        self._without: set[str] = set()
        """The ids of sources of which none can be made; a copy of one, with the same digest, may still be readable."""

    def times(self, row: SourceRow) -> list[float]:
        """Return the times of the thumbnails of a source, ascending, in seconds.

        If it has none yet, these are the times of those that `webp` will make.

        Args:
            row: Its row in the index.
        """
        try:
            content = row.content or ""
            known = content and (self._of_run.times(content) or self._made.times(content))
        except UsageError:  # a record may say anything
            return []
        is_there = not row.missing and not is_stored(row.path)  # of a source in a store, none are made here
        can_be_made = row.video and row.seconds and content and row.id not in self._without and is_there
        return known or (even_times(row.seconds or 0.0, USUAL_COUNT) if can_be_made else [])

    def card_time(self, row: SourceRow) -> float | None:
        """Return the time of the thumbnail that stands for a source: one a third into it, after titles.

        Args:
            row: Its row in the index.
        """
        return card_thumbnail_time(self.times(row))

    def webp(self, row: SourceRow, seconds: float) -> bytes | None:
        """Return the thumbnail nearest to a time, which may have to be made first; None if there is none.

        Args:
            row: Its row in the index.
            seconds: Presentation time, in seconds.
        """
        if row.content and self.times(row) and not self._made.times(row.content):
            self._make(row)
        return self.existing_webp(row, seconds)

    def existing_webp(self, row: SourceRow, seconds: float) -> bytes | None:
        """Return the thumbnail nearest to a time; None if none has been made yet.

        Args:
            row: Its row in the index.
            seconds: Presentation time, in seconds.
        """
        time = nearest(self.times(row), seconds)
        return None if time is None else self._read(row.content or "", time)

    def close(self) -> None:
        """Give up what is being made."""
        self._ended.set()

    def _read(self, content: str, seconds: float) -> bytes | None:
        try:
            return self._of_run.read(content, seconds) or self._made.read(content, seconds)
        except UsageError:
            return None

    def _make(self, row: SourceRow) -> None:
        """Make all thumbnails of a source, unless another thread has just done so."""
        assert row.content
        try:
            with self._lock:
                busy = self._busy.setdefault(row.content, Lock())
            with busy, self._decoding:
                if not self._made.times(row.content) and row.id not in self._without:
                    self._decode(row)
        finally:
            with self._lock:
                self._busy.pop(row.content, None)

    def _decode(self, row: SourceRow) -> None:
        assert row.content
        try:
            with self._files.checked_path(row) as path:
                for seconds, webp in make_thumbnails(path, cancelled=self._ended):
                    self._keep(row.content, seconds, webp)
        except (MediaRefused, OutputError, DecoderDied):
            return  # the file or room for thumbnails may be there again when somebody looks the next time
        except (MediaError, UsageError):
            pass
        if not self._made.times(row.content):
            self._without.add(row.id)

    def _keep(self, content: str, seconds: float, webp: bytes) -> None:
        try:
            self._made.write(content, seconds, webp)
        except OutputError:
            self._made.forget_oldest(content)
            self._made.write(content, seconds, webp)


def card_thumbnail_time(times: Sequence[float]) -> float | None:
    """Return which of the thumbnails of a source stands for it: one a third into it, after titles; None for none.

    Args:
        times: The times of its thumbnails, ascending, in seconds.
    """
    return times[len(times) // 3] if times else None


def nearest(times: list[float], seconds: float) -> float | None:
    """Return which of some ascending times is the nearest one; None if there are none.

    Args:
        times: The times, in seconds.
        seconds: The time to which one is near, in seconds.
    """
    at = bisect_left(times, seconds)
    return min(times[max(0, at - 1) : at + 1], key=lambda time: abs(time - seconds), default=None)


def line_thumbnail_time(times: list[float], start: float, end: float) -> float | None:
    """Return which of some ascending times stands for a line: the first one in it, or else the nearest to its start.

    A line often begins with a shot, and the thumbnail before it then shows the shot before.

    Args:
        times: Times of thumbnails.
        start: Time at which the line begins.
        end: Time at which it ends.
    """
    at = bisect_left(times, start)
    return times[at] if at < len(times) and times[at] < end else nearest(times, start)
