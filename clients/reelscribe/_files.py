"""Files and folders that others use at the same time.

Locks, files and folders that appear only when they are complete, and sources that may change while they are
read.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from reelscribe.errors import MediaError, OutputError, SourceChanged

SETTLED_SECONDS = 0.02
"""A file that was written to longer ago has another `file_stat` after the next write. Linux before 6.13 gives all
writes within a tick of its clock, up to 10 ms, the same time."""

BLOCK_BYTES = 2**19
"""Size of the blocks of which a source in a store is fetched one by one if little of it is read. An answer with one
takes about as long for the way as for its bytes."""

MOST_SMALL_BYTES = 2**26
"""Largest size of a file that is read into memory as a whole, such as settings, keys and names of speakers."""

_LONGEST_WRITER = 100  # letters of the name of who holds a `FolderLock`
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

_LEAST_SPARSE_BYTES, _LEAST_SHARE = 2**30, 1 / 64
"""From this size on, a source is refused of which less than this share is on its disk: 8 TB of nothing would take an
hour to digest."""


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file without waiting; the lock lasts until the file is closed.

    Args:
        file: The open file.
        shared: Whether others may hold a shared lock at the same time.

    Returns:
        Whether the file is locked now; False if another process holds a conflicting lock.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FolderLock:
    """Reserve an output folder for one writer, as a context manager that creates the folder if it is missing.

    Args:
        out: The output folder.
        writer: Who writes there, for others: "run", "export" or "forget".

    Raises:
        OutputError: On entry, if the folder cannot be written to or locked, or another run has locked it.
    """

    def __init__(self, out: Path, writer: str = "run") -> None:
        self._path, self._writer = _lock_path(out), writer

    def __enter__(self) -> Self:
        out = self._path.parent
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a+", opener=_open_no_link)
        except OSError as error:
            if self._path.is_symlink():
                raise OutputError(
                    f"{self._path}: a symbolic link; expected a file or nothing there; remove it"
                ) from None
            raise OutputError(f"{out}: not a folder that can be written to: {error}") from None
        try:
            locked = try_lock(self._file)
        except OSError as error:
            self._file.close()
            raise OutputError(
                f"{out}: files there cannot be locked ({error}); choose an --out on a local disk"
            ) from None
        if not locked:
            self._file.close()
            raise OutputError(
                f"{out}: another {writer_of(out) or 'run'} is writing there; wait for its end, or choose another --out"
            )
        self._file.truncate(0)
        self._file.write(self._writer)
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def writer_of(out: Path) -> str | None:
    """Return who holds the `FolderLock` of a folder; None if nobody does, or the lock file is missing or unreadable."""
    try:
        with open(_lock_path(out), opener=_open_no_link) as file:
            return None if try_lock(file, shared=True) else file.read(_LONGEST_WRITER) or "run"
    except OSError:
        return None


@contextmanager
def locked_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file while nobody else has it open by this function, so that it can be read, and then be replaced.

    A file that is missing is made, without any content.

    Args:
        path: Path of the file.

    Yields:
        The file, to be read from its beginning.

    Raises:
        OSError: It cannot be made, read, written to or locked, or is a symbolic link.
    """
    while True:
        with open(path, "a+b", opener=_open_no_link) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samefile(file.fileno(), path):  # or else it was replaced while this one waited
                file.seek(0)
                yield file
                return


def regular_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
    """Open a regular file, as the `opener` of `open`: nothing else that has its name keeps anybody waiting.

    Everything is opened by it that somebody else may have put there, whatever it is read for. Only a file that another
    program holds a lease on, as servers of network file systems do, is waited for until that program gives it back.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        mode: Mode of a file that is made, from which the usual mask takes bits.
        dir_fd: Descriptor of the folder in which the path begins; None for the usual one.

    Returns:
        The descriptor.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    except BlockingIOError:  # a lease
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            _check_regular(descriptor, path)
            flags &= ~(os.O_CREAT | os.O_NOFOLLOW)  # the very file is named, by a link
            return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
        finally:
            os.close(descriptor)
    try:
        _check_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(descriptor: int, path: str | os.PathLike[str]) -> None:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        code, reason = (errno.EISDIR, "Is a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "not a regular file")
        raise OSError(code, reason, os.fspath(path))


def read_small_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return the content of a regular file that is known to be small, such as settings or keys.

    Args:
        path: Path of the file.
        most: Largest size in bytes; None for `MOST_SMALL_BYTES`.

    Raises:
        OSError: It cannot be read, is no regular file, or has more bytes.
    """
    with open(path, "rb", opener=regular_file) as file:
        return read_small(file, most)


def read_small(file: IO[bytes], most: int | None = None) -> bytes:
    """Return the rest of an open file, from `regular_file` as a rule. Raises OSError as `read_small_file` does."""
    most = most or MOST_SMALL_BYTES
    content = file.read(most + 1)
    if content is None:  # a file of /proc, which says that it is a regular one
        raise BlockingIOError(errno.EAGAIN, "nothing can be read from it now")
    if len(content) > most:
        raise OSError(errno.EFBIG, f"expected at most {most} bytes, got more")
    return content


def _open_no_link(path: str, flags: int) -> int:
    """Open a regular file for `open`; never one that a symbolic link names."""
    return regular_file(path, flags | os.O_NOFOLLOW)


def _lock_path(out: Path) -> Path:
    return out / ".lock"


@contextmanager
def atomic_file(
    path: str | Path, *, durable: bool = False, partial: str | None = None, dir_fd: int | None = None
) -> Iterator[BufferedRandom]:
    """Write a file that appears under its own name only when it is complete.

    The block writes to the open file that the context manager yields, and may close it. It is called `<path>.partial`
    until the block ends without an exception; then it is renamed to `path`, where it replaces an older file. What
    others put in the place of either name, at any moment, is never written to: the file is new, it is not looked up by
    a path again, and what is renamed is what was written.

    Args:
        path: Where the complete file goes, in a folder that exists.
        durable: Whether to protect a file that is expensive to make again: it is synchronized to the disk before it is
            renamed, and the incomplete file stays if the block raises an exception. By default it is removed.
        partial: Name of the incomplete file, in the same folder, where `<path>.partial` may be a file of others.
        dir_fd: Descriptor of the folder, in which `path` is a name; None to open the folder that `path` is in.

    Raises:
        OSError: The operating system refused to write or to rename the file, or somebody else put another one in its
            place.
    """
    parent, name = os.path.split(path)
    partial = partial or f"{name}.partial"
    folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o666, dir_fd=folder)
        try:
            with open(descriptor, "w+b", closefd=False) as file:
                yield file
            if durable:
                os.fsync(descriptor)
            there = os.stat(partial, dir_fd=folder, follow_symlinks=False)
            if not os.path.samestat(there, os.fstat(descriptor)):
                raise FileExistsError(errno.EEXIST, f"somebody else has put {partial} in the place of what was written")
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            if not durable:
                with suppress(FileNotFoundError):
                    os.unlink(partial, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
    finally:
        os.close(folder)


def replace_folder(path: Path, new: Path) -> None:
    """Put a complete folder in the place of an older one, which gets the name of the new one.

    Whoever opens `path` finds one of the two at any time: they exchange their names in one step. Where the file system
    cannot do that, as NFS, the older folder is called `<path>.old` for a moment, in which there is none at `path`.

    Args:
        path: The older folder, which may be missing; then the new one is only renamed.
        new: The new folder, in the same folder as the older one.

    Raises:
        OSError: The operating system refused to rename a folder.
    """
    if not path.exists():
        new.rename(path)
        return
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # some C libraries lack it
    if rename and not rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(new), _RENAME_EXCHANGE):
        return
    old = path.rename(path.with_name(f"{path.name}.old"))
    new.rename(path)
    old.rename(new)


def file_stat(file: str | int) -> str:
    """Return a text that changes whenever a file is written to or replaced. `size_in` reads the size from it.

    All machines that see the same file by a network file system get the same text, also after they were started anew;
    so the number of the device, which is the machine's own, is not in it.

    Args:
        file: Path of the file, or the descriptor of an open one.

    Returns:
        The text; empty if there is no such file, or its disk cannot be read.
    """
    try:
        stat = os.stat(file)
    except (OSError, ValueError):  # ValueError: no file can have this name
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def size_in(stat: str) -> int:
    """Return the size of a file, in bytes, from its `file_stat`."""
    return int(stat.split()[0])


def _is_sealed(fd: int) -> bool:
    """Whether nobody can write to an open file, because it is one in memory that has been sealed."""
    with suppress(OSError):  # other files cannot be sealed
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    return False


def _check_bytes(fd: int, status: os.stat_result) -> None:
    """Raise MediaError for an open file that has not the bytes that its size says.

    Files of /proc and of the like say that they are regular and have no bytes, and may never end. A sparse file says
    that it has any number of them. Where the file system does not tell which are there, all are.
    """
    if status.st_size == 0:
        with suppress(BlockingIOError):
            if not os.read(fd, 1):
                return
        raise MediaError("its size is 0, but it has bytes; expected a file of a disk; copy it, and name the copy")
    if status.st_size < _LEAST_SPARSE_BYTES or (there := 512 * status.st_blocks) >= _LEAST_SHARE * status.st_size:
        return
    try:
        is_sparse = os.lseek(fd, 0, os.SEEK_HOLE) < status.st_size
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        return
    if is_sparse:
        raise MediaError(
            f"of its {status.st_size} bytes, {there} are on the disk; expected at least one in"
            f" {round(1 / _LEAST_SHARE)}; download or copy it to its end"
        )


class OpenSource:
    """A source that is open to be read, as a context manager that closes it.

    What a run saves of a source is saved for its digest, so it must be read from the very bytes that were digested.
    Whoever reads the source therefore calls `check` before passing on what was read.

    Args:
        path: Path of the source.
        stat: The `file_stat` that the file must have; empty for the one that it has now.

    Raises:
        OSError: It cannot be opened, or is no regular file.
        ValueError: No file can have this name.
        MediaError: It has other bytes than its size says, or nearly none of them.
        SourceChanged: It is another file, or was written to.
    """

    stat: str
    """The `file_stat` that the file has as long as `check` raises nothing."""

    def __init__(self, path: str, stat: str = "") -> None:
        self._file = open(path, "rb", buffering=0, opener=regular_file)  # noqa: SIM115 - `__exit__` closes it
        try:
            self.stat = stat or file_stat(self._file.fileno())
            status = os.fstat(self._file.fileno())
            if not _is_sealed(self._file.fileno()):
                age = time.time() - status.st_ctime
                time.sleep(min(max(0.0, SETTLED_SECONDS - age), SETTLED_SECONDS))  # other machines have other clocks
            self.check()
            _check_bytes(self._file.fileno(), status)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def name(self) -> str:
        """The name by which this process opens the same file again, whatever its path leads to by now."""
        return f"/dev/fd/{self._file.fileno()}"

    @property
    def is_changed(self) -> bool:
        """True if the file has another `file_stat` now: it was written to, renamed, replaced or deleted."""
        now = file_stat(self._file.fileno())
        return not now or now != self.stat

    def read(self, most: int) -> bytes:
        """Read on, at most so many bytes; nothing at the end of the file."""
        return self._file.read(most) or b""

    def check(self) -> None:
        """Raise SourceChanged if the file has changed, so that what was read of it may be of other bytes."""
        if self.is_changed:
            raise SourceChanged("it was changed while it was being read; run the same command again")


class SparseFile:
    """A copy of a source that has only what was fetched of it, open for FFmpeg, which calls `read`, `seek` and `tell`.

    What FFmpeg reads is fetched first. An exception are the packets of an MP4 or QuickTime file while they are only
    counted: their times, sizes and kinds are in the index of the file, so that their content may be zeros.
    """

    def __init__(self, path: str, fetch: Callable[[int, int], None]) -> None:
        """Open the copy.

        Args:
            path: Its path.
            fetch: Waits until everything from one block to before another is there.

        Raises:
            OSError: It cannot be opened.
        """
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - `__exit__` closes it
        self._size, self._fetch = os.fstat(self._file.fileno()).st_size, fetch
        self._fetched: set[int] = set()
        self._at = 0
        self.is_counting = False
        """True while what is missing is read as zeros."""

    def __enter__(self) -> SparseFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def is_changed(self) -> bool:
        """False: each range was fetched on the condition that the source has not changed."""
        return False

    def check(self) -> None:
        """Do nothing, as the source has not changed."""

    def rewind(self) -> SparseFile:
        """Go to the beginning for another reader, for whom everything is fetched."""
        self._at, self.is_counting = 0, False
        return self

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte, counted from the beginning, from here, or from the end."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; nothing at the end."""
        stop = min(self._at + size, self._size)
        if not self.is_counting:
            self._fetch_blocks(stop)
        content = os.pread(self._file.fileno(), max(0, stop - self._at), self._at)
        self._at += len(content)
        return content

    def _fetch_blocks(self, stop: int) -> None:
        """Fetch what is missing from here to a byte."""
        blocks = range(self._at // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        missing = [block for block in blocks if block not in self._fetched]
        if missing:
            self._fetch(missing[0], missing[-1] + 1)
            self._fetched.update(blocks)
