"""The folder that an export writes to, the names of the files in it, and the memory of what exports have written.

What a user has made or changed is never replaced, and a name that a source has got never moves.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Self

from reelscribe._files import atomic_file, regular_file, replace_folder
from reelscribe.errors import UsageError
from reelscribe.results.schema import open_memory, output_errors, row_errors
from reelscribe.storage.address import is_address

NAME = "exports.sqlite"
"""Name of the file in a folder of exports that says what has been written there."""

_MAX_PART_BYTES = 255  # limit of most file systems for a name without its folders
_MAX_NAME_BYTES = 1000  # for a name with its folders; a whole path has at most 4096, and the export folder may be deep
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # not \udc80-\udcff: os.fsdecode makes them from bytes


class Memory:
    """What was ever written, and under which names, as a context manager.

    One process at a time has it open, and any of its threads may use it.
    """

    def __init__(self, path: Path) -> None:
        """Describe the memory in the file at `path`, which is created if it is missing."""
        self._path, self._lock = path, Lock()

    def __enter__(self) -> Self:
        with output_errors(self._path, "written"):
            self._database = open_memory(
                self._path,
                "written (name BLOB, sha256 TEXT, PRIMARY KEY (name, sha256)) WITHOUT ROWID",
                "names (kind TEXT, source BLOB, name BLOB, PRIMARY KEY (kind, source)) WITHOUT ROWID",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def has_written(self, name: str, sha256: str) -> bool:
        """Return whether a file with this content was written."""
        with output_errors(self._path, "read"), self._lock:
            rows = self._database.execute(
                "SELECT 1 FROM written WHERE name = ? AND sha256 = ?", (os.fsencode(name), sha256)
            )
            return rows.fetchone() is not None

    def knows(self, name: str) -> bool:
        """Return whether a file of this name was ever written."""
        with output_errors(self._path, "read"), self._lock:
            rows = self._database.execute("SELECT 1 FROM written WHERE name = ? LIMIT 1", (os.fsencode(name),))
            return rows.fetchone() is not None

    def remember(self, name: str, sha256: str) -> None:
        """Remember, whatever happens to this process, that a file with this content is written."""
        with output_errors(self._path, "written"), self._lock:
            self._database.execute("INSERT OR IGNORE INTO written VALUES (?, ?)", (os.fsencode(name), sha256))

    def names(self) -> Iterator[tuple[str, str, str]]:
        """Yield a kind of files, the path of a source, and the name that files of that kind have for it."""
        with output_errors(self._path, "read"), row_errors(self._path), self._lock:
            for kind, source, name in self._database.execute("SELECT kind, source, name FROM names"):
                yield kind, source.decode(errors="surrogatepass"), name.decode(errors="surrogatepass")

    def remember_name(self, kind: str, source: str, name: str) -> None:
        """Remember which name the files of a kind have for a source, unless it has got one before."""
        values = (kind, *(each.encode(errors="surrogatepass") for each in (source, name)))
        with output_errors(self._path, "written"), self._lock:
            self._database.execute("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", values)


class _Kept(Exception):
    """A file is not replaced."""


class ExportFolder:
    """A folder, and the files that an export has written into it, as a context manager."""

    def __init__(self, path: Path, *, overwrite: bool = False, is_of_run: bool = False) -> None:
        """Export into the folder `path`, which is created with the first file.

        Args:
            path: The folder.
            overwrite: Whether `result` replaces files that somebody else has made or changed.
            is_of_run: Whether it is that of the run, where a file of whose name the memory knows nothing was exported
                by a version that had no memory.
        """
        self.path = path
        """The folder."""
        self.written: list[Path] = []
        """The complete files, in the order in which they were completed."""
        self.unchanged: set[Path] = set()
        """Those of them that an earlier export has written with the same content."""
        self.kept: list[Path] = []
        """Those that somebody else has made or changed, and that stay."""
        self.failures: list[str] = []
        """A line for each source that could not be exported to its end."""
        self._overwrite, self._is_of_run = overwrite, is_of_run
        self._memory: Memory | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory:
            self._memory.__exit__(kind, error, trace)

    @property
    def memory(self) -> Memory:
        """What exports have written into the folder, which exists."""
        if self._memory is None:
            self._memory = Memory(self.path / NAME).__enter__()
        return self._memory

    def names(self) -> list[tuple[str, str, str]]:
        """Return the names that exports have given, as `Memory.names` does, but for those that no export gives."""
        names = self.memory.names() if (self.path / NAME).exists() else ()
        return [each for each in names if _is_inside(each[2])]

    @contextmanager
    def result(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file as `file` does, but replace nothing that somebody else has made or changed.

        Args:
            name: Name of the file below the folder; folders in it are created.

        Yields:
            The open file to write to.

        Raises:
            UsageError: The file cannot be written, or the block raised an OSError.
        """
        path = self.path / name
        with suppress(_Kept), self.file(name) as file:
            yield file
            file.close()
            new = _sha256(path.with_name(f"{path.name}.partial"))
            old = _sha256(path) if path.is_file() and not path.is_symlink() else ""  # a link is replaced
            if old and old != new and not (self._overwrite or self._is_ours(name, old)):
                self.kept.append(path)
                raise _Kept
            self.memory.remember(name, new)
            if old == new:
                self.unchanged.add(path)

    def _is_ours(self, name: str, sha256: str) -> bool:
        return self.memory.has_written(name, sha256) or (self._is_of_run and not self.memory.knows(name))

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

    A source keeps the name that it has got. A new one is named from the folder from which those beside it are, or else
    from the one that holds all sources. A name that another source has after `..` and `.` are resolved, or that differs
    from it in case alone, is followed by `~2`, `~3` and so on, in the order of the lines. What is too long for a file
    system is its beginning with digits of its SHA-256, or if the whole name is, the name of the file without its
    folders. Bytes that are not UTF-8 stay, and what no name can hold becomes `_`.
    """

    def __init__(self, common_folder: str, *suffixes: str, known: Mapping[str, str], folders: Container[str]) -> None:
        """Name files after their sources.

        Args:
            common_folder: Absolute path of a folder that holds all sources.
            *suffixes: Suffixes of the files of a source, with their dots.
            known: The names that sources have got, by their paths.
            folders: Absolute paths of the folders from which sources were named, from `folders_of`.
        """
        self._common_folder, self._suffixes, self._folders = common_folder, suffixes, folders
        self._known = dict(known)
        self._taken = {file for name in self._known.values() for file in self._files(name)}

    def name_for(self, path: str) -> str:
        """Return the name, with folders and without a suffix, for the files of the source at `path`."""
        if name := self._known.pop(path, ""):
            return name
        absolute = _absolute(path)
        above = (absolute[:at] for at in range(len(absolute) - 1, -1, -1) if absolute[at] == "/")
        folder = next((each for each in above if each in self._folders), self._common_folder)
        # An absolute path has no "..", whatever the common folder is.
        parts = [part for part in absolute.removeprefix(folder).split("/") if part] or ["_"]
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
        return {unicodedata.normalize("NFC", f"{name}{suffix}").casefold() for suffix in self._suffixes}

    def _folder_name(self, part: str) -> str:
        """Return a name that no file has: beside x.mp4, with the file x.mp4.vtt, may be a folder x.mp4.vtt."""
        return f"{part}_" if part.casefold().endswith((*self._suffixes, ".partial")) else part


def folders_of(names: Iterable[tuple[str, str, str]]) -> set[str]:
    """Return the absolute paths of the folders from which sources were named, from `ExportFolder.names`."""
    return {
        absolute.removesuffix(f"/{name}")
        for absolute, name in ((_absolute(source), name) for _, source, name in names)
        if absolute.endswith(f"/{name}")
    }


def _is_inside(name: str) -> bool:
    """Return whether a name leads to a file below the folder; who has made the memory may want another one."""
    is_whole = name == os.path.normpath(name) and not _NOT_IN_A_NAME.search(name)
    return is_whole and not name.startswith("/") and name.split("/")[0] != ".."


def _sha256(path: Path) -> str:
    with open(path, "rb", opener=regular_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
