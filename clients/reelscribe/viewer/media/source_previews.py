"""Previews of sources that browsers cannot play, made when somebody wants to see them, in a folder of bounded size."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

from reelscribe._files import regular_file
from reelscribe.errors import MediaError, OutputError
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused, OpenMedia
from reelscribe.viewer.media.preview_maker import MOST_BYTES as MOST_BYTES_OF_ONE
from reelscribe.viewer.media.preview_maker import make_preview

MOST_BYTES = 4 * 2**30
"""Largest size of all previews, in bytes; those that were not asked for the longest go first."""

NAME = "previews"

_NAME = re.compile(r"[0-9a-f]{64}\.webm")
_PARTIAL_NAME = re.compile(r"[0-9a-f]{64}\.webm\.partial")


class SourcePreviews:
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
        for rest in self._kept(_PARTIAL_NAME):
            rest.unlink(missing_ok=True)
        self._lock, self._ended = Lock(), Event()
        self._waiting: set[Event] = set()
        """Events that end the making of previews, one for each request that waits."""
        self._failed: dict[str, str] = {}
        """The reasons why sources have no preview, by the names of their files."""

    def find(self, row: SourceRow) -> OpenMedia | None:
        """Return the preview of a source, open for reading; None if it has not been made. This waits for nobody.

        Args:
            row: The row of the source in the index.
        """
        try:
            descriptor = regular_file(self._path(row), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MediaRefused(f"{row.path}: its preview cannot be read: {error.strerror}") from None
        os.utime(descriptor)
        return OpenMedia(descriptor, "video/webm")

    def make(self, row: SourceRow, cancelled: Event) -> OpenMedia:
        """Make the preview of a source, unless it is there by now, and return it, open for reading.

        Args:
            row: The row of the source in the index.
            cancelled: Set by another thread when nobody waits for it any more.

        Raises:
            MediaRefused: The source cannot be read, or not be made into a preview, or this was cancelled.
        """
        with self._lock:
            self._waiting.add(cancelled)
            try:
                if self._ended.is_set():
                    cancelled.set()
                if (found := self.find(row)) is None:
                    self._make(row, cancelled)
            finally:
                self._waiting.discard(cancelled)
        if (media := found or self.find(row)) is None:
            raise MediaRefused(f"{row.path}: its preview was deleted")
        return media

    def close(self) -> None:
        """Give up what is being made."""
        self._ended.set()
        for cancelled in tuple(self._waiting):
            cancelled.set()

    def _make(self, row: SourceRow, cancelled: Event) -> None:
        path = self._path(row)
        if path.name in self._failed:
            raise MediaRefused(self._failed[path.name])
        if cancelled.is_set():
            raise MediaRefused(f"{row.path}: nobody waits for its preview")
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have deleted the cache
        self._make_room()
        try:
            with self._files.checked_path(row) as source:
                make_preview(source, path, cancelled=cancelled)
        except (MediaError, OutputError) as error:
            reason = f"{row.path}: there is no preview: {error}"
            if not cancelled.is_set():
                self._failed[path.name] = reason
            raise MediaRefused(reason) from None

    def _path(self, row: SourceRow) -> Path:
        """Return where the preview of a source is. One that was changed has another digest, and another preview."""
        name = f"{row.content}.webm"
        if not _NAME.fullmatch(name):
            raise MediaRefused(f"{row.path}: its record has no SHA-256, without which there is no preview")
        return self._folder / name

    def _kept(self, name: re.Pattern[str]) -> list[Path]:
        """Return the files of the folder that have such a name. Others are not ours."""
        return [path for path in self._folder.iterdir() if name.fullmatch(path.name)]

    def _make_room(self) -> None:
        """Delete the previews that were not asked for the longest, until there is room for one more."""
        kept = sorted(self._kept(_NAME), key=lambda path: path.stat().st_mtime)
        size = sum(path.stat().st_size for path in kept)
        for path in kept:
            if size <= max(0, self._most_bytes - MOST_BYTES_OF_ONE):
                break
            size -= path.stat().st_size
            with suppress(OSError):
                path.unlink()
