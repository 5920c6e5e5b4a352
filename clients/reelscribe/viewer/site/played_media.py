"""The files that players of exported pages open: the sources where they are, copies of them, or none."""

from __future__ import annotations

import hashlib
import os
import re
from io import RawIOBase
from pathlib import Path
from urllib.parse import quote

from reelscribe._files import regular_file
from reelscribe.export.folder import ExportFolder
from reelscribe.viewer.index.source_row import SourceRow, path_bytes
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused
from reelscribe.viewer.site import MediaChoice
from reelscribe.viewer.site.file_links import MEDIA

_BLOCK = 2**20
_COPY = re.compile(r"[0-9a-f]{16}(\.[^.]+)?")


class PlayedMedia:
    """Finds or makes the file that the page of a source plays."""

    def __init__(self, folder: ExportFolder, root: str, files: MediaFiles, choice: MediaChoice) -> None:
        """Prepare to export media.

        Args:
            folder: The folder of the export.
            root: Name of the folder of the site in it.
            files: The sources.
            choice: What players open.
        """
        self._folder, self._root, self._files, self._choice = folder, root, files, choice
        self._site = os.path.abspath(folder.path / root)
        self.copied = self.copied_bytes = 0
        """Number of files that were copied, and their bytes."""
        self.kept = 0
        """Number of copies that were there already."""
        self._played: set[str] = set()
        """The names of the copies that pages play."""

    def address(self, row: SourceRow) -> str:
        """Return the address of the file to play, as seen from the root of the site. Copies it if that was chosen.

        Args:
            row: What the index has of a source that browsers can play.

        Raises:
            MediaRefused: There is no such file; the message is a sentence for the user.
            UsageError: A copy cannot be written.
        """
        if self._choice == "none":
            raise MediaRefused("The pages were exported without videos and sounds")
        if self._choice == "link":
            with self._files.checked_path(row):
                return quote(os.path.relpath(path_bytes(row.path), os.fsencode(self._site)))
        name = f"{MEDIA}/{row.id}{Path(row.path).suffix.lower()}"
        if not self._is_copied(name, row):
            self._copy(name, row)
        self._played.add(os.path.basename(name))
        return name

    def unused(self) -> int:
        """Return how many copies of earlier exports there are that no page plays. They may be the last ones."""
        return len(self._folder.others(f"{self._root}/{MEDIA}", _COPY, self._played))

    def _is_copied(self, name: str, row: SourceRow) -> bool:
        """Return whether an earlier export has copied the very bytes that the record is about."""
        path = self._folder.path / self._root / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != row.bytes or not row.content:
            return False
        with open(path, "rb", opener=regular_file) as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == row.content
        self.kept += same
        return same

    def _copy(self, name: str, row: SourceRow) -> None:
        media = self._files.open(row)
        with open(media.descriptor, "rb", buffering=0) as source:
            digest, size = hashlib.sha256(), 0
            with self._folder.file(f"{self._root}/{name}", listed=False) as copy:
                while block := _read(source, row):
                    digest.update(block)
                    size += copy.write(block)
                if digest.hexdigest() != row.content:
                    raise MediaRefused("The file was changed after the run, so it was not copied")
        self.copied += 1
        self.copied_bytes += size


def _read(source: RawIOBase, row: SourceRow) -> bytes:
    try:
        return source.read(_BLOCK) or b""
    except OSError as error:  # not one of the copy, which the folder of the export reports
        raise MediaRefused(f"{row.path} cannot be read: {error.strerror}") from None
