"""Previews of sources that browsers cannot play, made when somebody wants to see them, in a folder of bounded size."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

from reelscribe.browse.index.lines import SourceRow
from reelscribe.browse.media import MediaFiles, MediaRefused, OpenMedia
from reelscribe.errors import MediaError, OutputError
from reelscribe.thumbnails.previews import MOST_BYTES as MOST_BYTES_OF_ONE
from reelscribe.thumbnails.previews import make_preview

MOST_BYTES = 4 * 2**30
"""Largest size of all previews, in bytes; those that were not asked for the longest go first."""

NAME = "previews"


class Previews:
    """Makes previews, one at a time, and keeps them. Any thread may use it."""

    def __init__(self, cache: Path, files: MediaFiles, *, most_bytes: int = MOST_BYTES) -> None:
        """Prepare the folder.

        Args:
            cache: A folder for the previews, which nobody else uses.
            files: Opens sources.
            most_bytes: Largest size of all previews.
        """
        self._folder, self._files, self._most_bytes = cache / NAME, files, most_bytes
        self._folder.mkdir(exist_ok=True)
        for rest in self._folder.glob("*.partial"):
            rest.unlink(missing_ok=True)
        self._lock, self._ended = Lock(), Event()
        self._failed: dict[str, str] = {}
        """Why sources have no preview, by their ids."""

    def open(self, row: SourceRow) -> OpenMedia:
        """Return the preview of a source, open for reading; if there is none yet, it is made first.

        Args:
            row: The row of the source in the index.

        Raises:
            MediaRefused: The source cannot be read, or not be made into a preview.
        """
        # The name has the size besides: a source that was changed has another preview.
        path = self._folder / f"{row.id}-{row.bytes}.webm"
        source = self._files.checked_path(row)
        with self._lock:
            if not path.exists():
                self._make(row, source, path)
            os.utime(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return OpenMedia(descriptor, os.fstat(descriptor).st_size, "video/webm")

    def close(self) -> None:
        """Give up what is being made."""
        self._ended.set()

    def _make(self, row: SourceRow, source: Path, path: Path) -> None:
        if row.id in self._failed:
            raise MediaRefused(self._failed[row.id])
        self._make_room()
        try:
            make_preview(source, path, cancelled=self._ended)
        except (MediaError, OutputError) as error:
            self._failed[row.id] = f"{row.path}: there is no preview: {error}"
            raise MediaRefused(self._failed[row.id]) from None

    def _make_room(self) -> None:
        """Delete the previews that were not asked for the longest, until there is room for one more."""
        kept = sorted(self._folder.glob("*.webm"), key=lambda path: path.stat().st_mtime)
        size = sum(path.stat().st_size for path in kept)
        for path in kept:
            if size <= max(0, self._most_bytes - MOST_BYTES_OF_ONE):
                break
            size -= path.stat().st_size
            with suppress(OSError):
                path.unlink()
