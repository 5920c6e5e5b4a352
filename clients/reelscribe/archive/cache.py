"""Model archives that came from another machine, each kept once on this one, for all processes of its user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reelscribe._files import try_lock
from reelscribe.errors import StartupError, UsageError

LIMIT_BYTES = 50 * 10**9
"""Default limit of the archives of a cache together."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w-][\w.-]*\.mar", re.ASCII)
_PARTIAL = "partial-"
"""Beginning of the names of archives that are being received."""


def default_folder() -> Path:
    """Return the folder of received archives of this user, in the folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"reelscribe-{os.getuid()}" / "archives"


class ArchiveCache:
    """A folder with the archive of each digest as `<sha256>/<name>`, which any number of processes use at once.

    An archive that a process uses has a shared lock, and one that is being received an exclusive one; locks end with
    their process. Whoever opens, adds or removes files locks the folder for that moment. So what has no lock under that
    lock is used by nobody, and can be removed.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT_BYTES) -> None:
        """Create the folder if it is missing.

        Args:
            folder: The folder; by default `default_folder()`.
            limit: Limit of all archives together, in bytes. An archive that is in use is kept beyond that.

        Raises:
            StartupError: Other users have access to the folder or its parent, or one of them is not a folder.
            OSError: The folder cannot be created.
        """
        self._folder, self._limit = folder or default_folder(), limit
        for each in (self._folder.parent, self._folder) if folder is None else (self._folder,):
            _make_private(each)

    def has(self, sha256: str) -> bool:
        """Return whether the archive with a digest is there; if it is not in use, it may be removed at any time.

        Raises:
            UsageError: `sha256` is not 64 hexadecimal digits.
        """
        return self._find(sha256) is not None

    @contextmanager
    def receive(self, sha256: str, name: str) -> Iterator[Callable[[bytes], object]]:
        """Receive an archive; others see it when it is complete.

        The block passes the content, in chunks of any size, to the function that the context manager yields. At the
        end, the archives that were not in use for the longest time are removed if there are too many bytes.

        Args:
            sha256: The archive's digest, in hexadecimal digits.
            name: Its file name, as the model store of the sender has it.

        Raises:
            UsageError: The digest or the name is not of that form.
            StartupError: On exit, if what came has another digest.
            OSError: It cannot be written.
        """
        folder = self._folder_of(sha256)
        if not _NAME.fullmatch(name):
            raise UsageError(f"expected the file name of an archive, such as blip2.mar, got {name!r}")
        digest = hashlib.sha256()
        with self._locked():
            file = tempfile.NamedTemporaryFile(prefix=_PARTIAL, dir=self._folder)  # noqa: SIM115 - closed by the next with
            try_lock(file)
        with file:

            def write(chunk: bytes) -> None:
                digest.update(chunk)
                file.write(chunk)

            yield write
            if digest.hexdigest() != sha256:
                raise StartupError(f"{name}: expected the digest {sha256}, got {digest.hexdigest()}; send it again")
            file.flush()
            os.fsync(file.fileno())
            with self._locked():
                if not self._find(sha256):  # that of another process may be in use already
                    folder.mkdir(exist_ok=True)
                    os.link(file.name, folder / name)
                    try_lock(file, shared=True)  # from now on, others may use it
                self._remove_unused(keep=folder)

    @contextmanager
    def use(self, sha256: str) -> Iterator[Path]:
        """Keep an archive from being removed until the block ends.

        Yields:
            The path of the archive.

        Raises:
            UsageError: `sha256` is not 64 hexadecimal digits.
            StartupError: The archive is not there: it was not received, or has been removed since.
        """
        with self._locked():
            path = self._find(sha256)
            if path is None:
                raise StartupError(f"{self._folder}: no archive with the digest {sha256} is there; send it again")
            file = path.open("rb")
            try_lock(file, shared=True)
        with file:
            os.utime(path)
            yield path

    def _folder_of(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise UsageError(f"expected a SHA-256 of 64 hexadecimal digits, got {sha256!r}")
        return self._folder / sha256

    def _find(self, sha256: str) -> Path | None:
        return next(self._folder_of(sha256).glob("*.mar"), None)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder, which nobody does for long."""
        with (self._folder / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remove_unused(self, keep: Path) -> None:
        """Remove what dead processes have left, and archives beyond the limit except that in `keep`."""
        for partial in self._folder.glob(f"{_PARTIAL}*"):
            _remove_if_unused(partial)
        archives = [(path, path.stat()) for path in self._folder.glob("*/*.mar")]
        excess = sum(status.st_size for _, status in archives) - self._limit
        for path, status in sorted(archives, key=lambda archive: archive[1].st_mtime_ns):
            if excess > 0 and path.parent != keep and _remove_if_unused(path):
                path.parent.rmdir()
                excess -= status.st_size


def _remove_if_unused(path: Path) -> bool:
    with path.open("rb") as file:
        if not try_lock(file):
            return False
        path.unlink()
        return True


def _make_private(folder: Path) -> None:
    """Create a folder that nobody else has access to, or check that an existing one is of that kind."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StartupError(f"{folder}: expected a folder, got a link or something else; remove it")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StartupError(
            f"{folder}: expected a folder of this user alone, got one of user {status.st_uid} with mode {mode:03o};"
            " remove it, or set TMPDIR to another folder"
        )
