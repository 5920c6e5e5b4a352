"""The folder that an export writes to."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reelscribe._files import atomic_file
from reelscribe.errors import UsageError


class ExportFolder:
    """A folder, and the files that an export has written into it."""

    def __init__(self, path: Path) -> None:
        """Export into the folder `path`, which is created with the first file."""
        self.path = path
        """The folder."""
        self.written: list[Path] = []
        """The complete files, in the order in which they were completed."""

    @contextmanager
    def file(self, name: str, *, listed: bool = True) -> Iterator[Path]:
        """Write a file that appears under its name only when it is complete.

        Args:
            name: Name of the file below the folder; folders in it are created.
            listed: Whether `written` gets it, which would be long with millions of files.

        Yields:
            The path to write to, `<name>.partial`, which is removed if the block fails.

        Raises:
            UsageError: The file cannot be written, or the block raised an OSError.
        """
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as partial:
                yield partial
        except OSError as error:
            raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None
        if listed:
            self.written.append(path)

    def others(self, name: str, pattern: re.Pattern[str], current: Container[str]) -> list[str]:
        """Return the names of what earlier exports have put into a folder and this one has not.

        Args:
            name: Name of a folder below the folder, which may be missing; one that is a symbolic link has nothing.
            pattern: The names that exports give to files and folders there.
            current: The names of those of this export.

        Raises:
            UsageError: The folder cannot be read.
        """
        path = self.path / name
        if path.is_symlink() or not path.is_dir():
            return []
        try:
            with os.scandir(path) as entries:
                return [each.name for each in entries if pattern.fullmatch(each.name) and each.name not in current]
        except OSError as error:
            raise UsageError(f"export: {path} cannot be read: {error.strerror or error}") from None

    def remove(self, name: str, pattern: re.Pattern[str], current: Container[str]) -> int:
        """Remove files of earlier exports that no page refers to any more.

        Args:
            name: Name of a folder below the folder, which may be missing.
            pattern: The names that exports give to files there; others are not touched.
            current: The names of files that stay.

        Returns:
            The number of files that were removed.

        Raises:
            UsageError: A file cannot be removed.
        """
        path, old = self.path / name, self.others(name, pattern, current)
        try:
            for each in old:
                (path / each).unlink()
        except OSError as error:
            raise UsageError(f"export: a file cannot be removed from {path}: {error.strerror or error}") from None
        return len(old)

    def remove_folders(
        self, name: str, pattern: re.Pattern[str], current: Container[str], files: re.Pattern[str]
    ) -> None:
        """Remove folders of earlier exports with their files. A folder with anything else stays.

        Args:
            name: Name of a folder below the folder, which may be missing.
            pattern: The names that exports give to folders there; others are not touched.
            current: The names of folders that stay.
            files: The names that exports give to files in these folders.

        Raises:
            UsageError: A file cannot be removed.
        """
        for each in self.others(name, pattern, current):
            self.remove(f"{name}/{each}", files, ())
            with suppress(OSError):  # the user has put something there
                (self.path / name / each).rmdir()
