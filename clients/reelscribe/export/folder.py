"""The folder that an export writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reelscribe._files import atomic_file
from reelscribe.errors import UsageError


class ExportFolder:
    """A folder, and the files that an export has written into it."""

    def __init__(self, path: Path) -> None:
        """Export into the folder `path`, which is created with the first file."""
        self._path = path
        self.written: list[Path] = []
        """The complete files, in the order in which they were completed."""

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Write a file that appears under its name only when it is complete.

        Args:
            name: Name of the file below the folder; folders in it are created.

        Yields:
            The path to write to, `<name>.partial`, which is removed if the block fails.

        Raises:
            UsageError: The file cannot be written, or the block raised an OSError.
        """
        path = self._path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as partial:
                yield partial
        except OSError as error:
            raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None
        self.written.append(path)
