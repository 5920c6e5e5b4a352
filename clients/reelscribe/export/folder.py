"""The folder that an export writes to, and the names of the files in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO

from reelscribe._files import atomic_file, replace_folder
from reelscribe.errors import UsageError
from reelscribe.storage.address import is_address

_MAX_PART_BYTES = 255  # limit of most file systems for a name without its folders
_MAX_NAME_BYTES = 1000  # for a name with its folders; a whole path has at most 4096, and the export folder may be deep
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # not \udc80-\udcff: os.fsdecode makes them from bytes


class ExportFolder:
    """A folder, and the files that an export has written into it."""

    def __init__(self, path: Path) -> None:
        """Export into the folder `path`, which is created with the first file."""
        self.path = path
        """The folder."""
        self.written: list[Path] = []
        """The complete files, in the order in which they were completed."""
        self.failures: list[str] = []
        """A line for each source that could not be exported to its end."""

    @contextmanager
    def file(self, name: str, *, listed: bool = True) -> Iterator[IO[bytes]]:
        """Write a file that appears under its name only when it is complete.

        Args:
            name: Name of the file below the folder; folders in it are created.
            listed: Whether `written` gets it, which would be long with millions of files.

        Yields:
            The open file to write to, `<name>.partial`, which is removed if the block fails.

        Raises:
            UsageError: The file cannot be written, or the block raised an OSError.
        """
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                yield file
        except OSError as error:
            raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None
        if listed:
            self.written.append(path)

    @contextmanager
    def folder(self, name: str, files: re.Pattern[str]) -> Iterator[Path]:
        """Write files that appear together, in a folder of their own, only when all of them are complete.

        They replace all files of an earlier export there.

        Args:
            name: Name of the folder below the folder; folders above it are created.
            files: The names that exports give to files there.

        Yields:
            The folder to write to, `<name>.partial`, which is removed if the block fails.

        Raises:
            UsageError: The folder cannot be written, the block raised an OSError, or something is in the place of the
                folder or in it that no export has put there.
        """
        path, partial, old = (self.path / f"{name}{suffix}" for suffix in ("", ".partial", ".old"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for each in (name, f"{name}.partial", f"{name}.old"):
                self._check_replaceable(each, files)
            if old.exists() and not path.exists():  # an export was killed in the middle of `replace_folder`
                old.rename(path)
            self._remove_folder(f"{name}.partial", files)
            self._remove_folder(f"{name}.old", files)
            partial.mkdir()
            try:
                yield partial
                self._check_replaceable(name, files)
                replace_folder(path, partial)
            finally:
                self._remove_folder(f"{name}.partial", files)
            self.written += sorted(path.iterdir())
        except OSError as error:
            raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None

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
            self._remove_folder(f"{name}/{each}", files)

    def _remove_folder(self, name: str, files: re.Pattern[str]) -> None:
        self.remove(name, files, ())
        with suppress(OSError):  # the user has put something there
            (self.path / name).rmdir()

    def _check_replaceable(self, name: str, files: re.Pattern[str]) -> None:
        """Check that at a name below the folder is nothing but a folder with files of exports."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            others = [each for each in path.iterdir() if not files.fullmatch(each.name)]
        else:
            others = [path] if path.is_symlink() or path.exists() else []
        if others:
            raise UsageError(
                f"export: {others[0]} was put there by no export; expected only files of exports in a folder that is"
                " replaced as a whole; move it to another place, or export to another folder"
            )


def common_folder_of(paths: Iterable[str]) -> str:
    """Return the absolute path of the deepest folder that holds all of `paths`; empty if there are none."""
    folder = ""
    for path in paths:
        parent = os.path.dirname(_absolute(path))
        folder = os.path.commonpath([folder, parent]) if folder else parent
    return folder


class FileNames:
    """Gives each source a unique name for its files, which never leads out of the folder that holds them.

    A name that another source has after `..` and `.` are resolved is followed by `~2`, `~3` and so on, in the order of
    the lines. What is too long for a file system is its beginning with digits of its SHA-256, or if the whole name is,
    the name of the file without its folders. Bytes that are not UTF-8 stay, and what no name can hold becomes `_`.
    """

    def __init__(self, common_folder: str, *suffixes: str) -> None:
        """Name files after their sources.

        Args:
            common_folder: Absolute path of a folder that holds all sources.
            *suffixes: Suffixes of the files of a source, with their dots.
        """
        self._common_folder, self._suffixes = common_folder, suffixes
        self._taken: set[str] = set()

    def name_for(self, path: str) -> str:
        """Return a new name, with folders and without a suffix, for the files of the source at `path`."""
        # An absolute path has no "..", whatever the common folder is.
        parts = [part for part in _absolute(path).removeprefix(self._common_folder).split("/") if part] or ["_"]
        folders = [_shortened(self._folder_name(part), _MAX_PART_BYTES) for part in parts[:-1]]
        # Leave room for the number below, up to 9,999,999, and for the suffix of a file that is not whole.
        longest = max(self._suffixes, key=len)
        last = _shortened(parts[-1], _MAX_PART_BYTES - len(f"~9999999{longest}.partial"))
        name = "/".join([*folders, last])
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            name = last
        candidates = chain([name], (f"{name}~{number}" for number in count(2)))
        free = next(each for each in candidates if self._taken.isdisjoint(self._files(each)))
        self._taken |= self._files(free)
        return free

    def _files(self, name: str) -> set[str]:
        return {f"{name}{suffix}" for suffix in self._suffixes}

    def _folder_name(self, part: str) -> str:
        """Return a name that no file has: beside x.mp4, with the file x.mp4.vtt, may be a folder x.mp4.vtt."""
        return f"{part}_" if part.endswith((*self._suffixes, ".partial")) else part


def _absolute(path: str) -> str:
    """Return the absolute path, spelled as the file system would return it, with invalid characters replaced.

    That of an address begins with its scheme as a folder.
    """
    path = f"/{path.replace('://', '/', 1)}" if is_address(path) else path
    return os.path.abspath(os.fsdecode(os.fsencode(_NOT_IN_A_NAME.sub("_", path))))


def _shortened(part: str, max_bytes: int) -> str:
    """Return a part of a path, or if it is longer than `max_bytes`, its beginning and a digest of all of it."""
    encoded = os.fsencode(part)
    if len(encoded) <= max_bytes:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    return f"{encoded[: max_bytes - 13].decode(errors='ignore')}-{digest}"
