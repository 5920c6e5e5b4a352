"""The thumbnails of exported pages: those in the folder of the run, and those that are made where there are none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from reelscribe.errors import MediaError, OutputError, UsageError
from reelscribe.export.folder import ExportFolder
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from reelscribe.viewer.site.file_links import THUMBNAILS, thumbnail_name

THUMBNAIL_NAME = re.compile(r"[0-9]{1,9}\.webp")
"""The names of thumbnails."""


class SiteThumbnails:
    """Puts the thumbnails of sources beside their pages."""

    def __init__(self, folder: ExportFolder, root: str, run: Path, files: MediaFiles) -> None:
        """Prepare to export thumbnails.

        Args:
            folder: The folder of the export.
            root: Name of the folder of the site in it.
            run: Folder of the run, which has thumbnails and gets those that are made.
            files: The sources.
        """
        self._folder, self._root, self._files = folder, root, files
        self._store = ThumbnailStore(run)
        self.written = self.sources_without = self.sources_made = 0
        """Numbers of thumbnails, of sources with video that have none, and of those for which they were made."""

    def write(self, row: SourceRow, *, video: bool) -> list[float]:
        """Write the thumbnails of a source, and return their times, ascending.

        Args:
            row: What the index has of the source.
            video: Whether it has pictures.

        Raises:
            UsageError: A thumbnail cannot be written.
        """
        times = []
        for seconds, webp in self._thumbnails(row, video=video):
            name = f"{self._root}/{THUMBNAILS}/{row.id}/{thumbnail_name(seconds)}"
            with self._folder.file(name, listed=False) as file:
                file.write(webp)
            times.append(seconds)
        self._remove_others(row.id, times)
        self.written += len(times)
        self.sources_without += video and not times
        return times

    def _thumbnails(self, row: SourceRow, *, video: bool) -> Iterator[tuple[float, bytes]]:
        content = row.content or ""
        try:
            times = self._store.times(content)
        except UsageError:  # a record may have no digest
            return
        for seconds in times:
            if webp := self._store.read(content, seconds):
                yield seconds, webp
        if video and not times:
            yield from self._made(row, content)

    def _made(self, row: SourceRow, content: str) -> list[tuple[float, bytes]]:
        """Make thumbnails of a source, and keep them in the folder of the run for the next time."""
        made = []
        with suppress(MediaError, MediaRefused), self._files.checked_path(row) as path:
            for seconds, webp in make_thumbnails(path):
                made.append((seconds, webp))
                with suppress(OutputError, UsageError):
                    self._store.write(content, seconds, webp)
        self.sources_made += bool(made)
        return made

    def _remove_others(self, source: str, times: Iterable[float]) -> None:
        """Remove thumbnails of an earlier export."""
        current = {thumbnail_name(seconds) for seconds in times}
        self._folder.remove(f"{self._root}/{THUMBNAILS}/{source}", THUMBNAIL_NAME, current)
