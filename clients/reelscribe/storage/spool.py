"""Copies of sources that are no files of this machine, in a bounded part of a disk, for as long as they are needed.

A source is read once from its store, from its beginning to its end, and its digest is computed on the way. Decode
processes read the copy, so everything that holds for files holds for it: it can be read by several at a time, searched
and read again. The copy has no name in any folder. So it is gone with the process, however that ends.

Where little of a source is needed, the copy is a sparse file, and what decode processes read of it is fetched for them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from reelscribe._files import BLOCK_BYTES
from reelscribe.errors import MediaError, OutputError, SourceChanged, StoreUnavailable
from reelscribe.storage.objects import STALL_SECONDS, ObjectStore, StoredObject, retried
from reelscribe.storage.stores import Stores

T = TypeVar("T")

FETCHES = 8
"""Number of sources that are fetched at the same time. The connection of one is often slower than the network."""

MOST_COPIES = 256
"""Largest number of copies at the same time. Each is an open file, of which a process may have few."""

MOST_BREAKS = 100
"""Number of times that the connection may break after something has come."""

SLOW_BYTES_PER_SECOND = 1000
"""A connection that is slower for as long as one may stand still is given up."""

DISK_SHARE = 0.5
"""Part of what is free on the disk that the spool may take if no size was chosen."""


class Spooled(NamedTuple):
    """A copy of a source on this machine."""

    path: str
    """The path of the copy, for this process and others of the same user."""
    sha256: str
    """Digest of its content, in hexadecimal digits."""


class SpoolOptions(NamedTuple):
    """The room that copies may take, and how long a store may take to send them."""

    folder: Path | None = None
    """The folder on whose disk they are kept; None for the one that whoever opens the spool chooses."""
    most_bytes: int | None = None
    """Largest size of all copies together, in bytes; None for half of what is free on the disk."""
    stall_seconds: float = STALL_SECONDS
    """Seconds after which a connection is given up that brings nothing, or nearly nothing."""


class Spool:
    """Keeps copies of sources. Use it as an async context manager."""

    def __init__(self, options: SpoolOptions, folder: Path | None = None) -> None:
        """Describe the spool; nothing is written yet.

        Args:
            options: The room that copies may take.
            folder: The folder on whose disk they are kept if none was chosen; None for that of temporary files.
        """
        self._folder = options.folder or folder or Path(tempfile.gettempdir())
        self._most, self._stall_seconds = options.most_bytes, options.stall_seconds
        self._stopping = threading.Event()
        self._used = self._copies = self._working = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.stores = Stores(options.stall_seconds, attempts=1)  # it tries again by itself
        """The stores of which copies are made."""

    async def __aenter__(self) -> Spool:
        self._threads = ThreadPoolExecutor(FETCHES, "spool")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.stores.close()

    @property
    def is_fetching(self) -> bool:
        """True if a source is being copied, or asked for."""
        return self._working > 0

    def stop(self) -> None:
        """Give up all copies that are not complete; whoever waits for one gets a MediaError, now and later."""
        self._stopping.set()
        for _, room in self._waiting:
            if not room.done():
                room.set_exception(MediaError("the run was stopped"))
        self._waiting.clear()

    async def info(self, address: str) -> StoredObject:
        """Return the size and the version of a source now.

        Raises:
            UsageError: Its kind of store needs a package that is not installed.
            MediaError: It cannot be read.
        """
        return await self._in_thread(self._info, address)

    @asynccontextmanager
    async def open_ranges(self, stored: StoredObject) -> AsyncIterator[SparseCopy]:
        """Make room for a copy of a source, and keep until the block ends what is fetched of it.

        Args:
            stored: The source, with its size and version; it has a version.

        Raises:
            MediaError: It is larger than the spool.
            OutputError: The disk cannot be written to.
        """
        async with self._file(stored.size) as file:
            os.truncate(file.fileno(), stored.size)

            async def copy(start: int, stop: int) -> None:
                await self._in_thread(self._copy, stored, file, start, stop)

            yield SparseCopy(_path(file), stored.size, copy)

    @asynccontextmanager
    async def fetch(self, stored: StoredObject) -> AsyncIterator[Spooled]:
        """Copy a source as soon as there is room, and keep the copy until the block ends.

        Args:
            stored: The source, with its size and version.

        Raises:
            SourceChanged: It has another size or version now.
            MediaError: It cannot be read, or is larger than the spool.
            OutputError: The disk is full, or cannot be written to.
        """
        async with self._file(stored.size) as file:
            sha256 = await self._in_thread(self._copy, stored, file, 0, None)
            yield Spooled(_path(file), sha256)

    @asynccontextmanager
    async def _file(self, size: int) -> AsyncIterator[IO[bytes]]:
        """Wait for room, and open a file for a copy of this size."""
        await self._take(size)
        try:
            with self._create() as file:
                yield file
        finally:
            self._give_back(size)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Work in a thread, until it is done or the spool stops; if this is cancelled, the work is, too."""
        cancelled = threading.Event()
        thread = self._threads.submit(work, *arguments, cancelled)
        working = asyncio.wrap_future(thread)
        self._working += 1
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            cancelled.set()
            if not thread.cancel():
                await asyncio.wait([working])  # it writes to a file that is closed afterwards
                if not working.cancelled():
                    working.exception()
            raise
        finally:
            self._working -= 1

    async def _take(self, size: int) -> None:
        """Wait until there is room, in the order of those who wait."""
        if self._most is None:
            self._most = int(self._free() * DISK_SHARE)
        if size > self._most:
            raise MediaError(
                f"it has {size / 1e9:.1f} GB, and copies of sources may take {self._most / 1e9:.1f} GB of"
                f" {self._folder}; raise --spool-gb, or choose a larger disk by --spool"
            )
        if not self._waiting and self._has_room(size):
            self._keep(size)
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, room))
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():
                self._give_back(size)
            raise

    def _give_back(self, size: int) -> None:
        self._used -= size
        self._copies -= 1
        while self._waiting:
            wanted, room = self._waiting[0]
            if not room.cancelled():
                if not self._has_room(wanted):
                    break
                self._keep(wanted)
                room.set_result(None)
            self._waiting.popleft()

    def _has_room(self, size: int) -> bool:
        return self._used + size <= (self._most or 0) and self._copies < MOST_COPIES

    def _keep(self, size: int) -> None:
        self._used += size
        self._copies += 1

    def _free(self) -> int:
        try:
            status = os.statvfs(self._folder)
        except OSError as error:
            raise OutputError(f"{self._folder}: expected a folder for copies of sources: {error.strerror}") from None
        return status.f_bavail * status.f_frsize

    def _create(self) -> IO[bytes]:
        """Open a file without a name."""
        try:
            return tempfile.TemporaryFile(dir=self._folder, buffering=0)
        except OSError as error:
            raise OutputError(
                f"{self._folder}: copies of sources cannot be kept there: {error.strerror}; choose another folder by"
                " --spool"
            ) from None

    # What follows runs in threads.

    def _info(self, address: str, cancelled: threading.Event) -> StoredObject:
        store = self.stores.of(address)
        return self._retried(partial(store.info, address), cancelled)

    def _copy(
        self, stored: StoredObject, file: IO[bytes], start: int, stop: int | None, cancelled: threading.Event
    ) -> str:
        """Copy a source from a byte on into a file, up to another one or to its end, and return the digest of that."""

        def is_cancelled() -> bool:
            return cancelled.is_set() or self._stopping.is_set()

        copy = _Copy(self.stores.of(stored.address), stored, file, start, stop, is_cancelled, self._stall_seconds)
        for _ in range(MOST_BREAKS + 1):
            self._retried(copy.go_on, cancelled)
            if copy.is_complete:
                return copy.digest.hexdigest()
        raise MediaError(f"the connection broke {MOST_BREAKS} times; run the same command again")

    def _retried(self, work: Callable[[], T], cancelled: threading.Event) -> T:
        """Work, again and again while the store is not available and somebody waits for it."""
        return retried(work, give_up=lambda pause: self._stopping.wait(pause) or cancelled.is_set())


class SparseCopy:
    """A copy that has only those blocks of a source that were fetched; see `RangedCopy`."""

    def __init__(self, path: str, size: int, copy: Callable[[int, int], Awaitable[None]]) -> None:
        """Begin with nothing.

        Args:
            path: The path of the copy.
            size: The size of the source, in bytes.
            copy: Copies a range of the source. Raises MediaError if it cannot be read.
        """
        self.path = path
        self.failure: MediaError | None = None
        """Why the source cannot be read any further; None as long as it can."""
        self._size, self._copy = size, copy
        self._fetched: set[int] = set()
        """Numbers of the blocks that the copy has."""
        self._turn = asyncio.Lock()

    async def fetch(self, first: int, stop: int) -> None:
        """Fetch what is still missing from one block to before another.

        Raises:
            SourceChanged: The source has another size or version now.
            MediaError: It cannot be read.
            OutputError: The disk is full, or cannot be written to.
        """
        async with self._turn:
            for number in range(first, stop):
                if number not in self._fetched:
                    try:
                        await self._copy(number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self._size))
                    except MediaError as error:
                        self.failure = error
                        raise
                    self._fetched.add(number)


def _path(file: IO[bytes]) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


class _Copy:
    """A copy that is being made."""

    def __init__(
        self,
        store: ObjectStore,
        stored: StoredObject,
        file: IO[bytes],
        start: int,
        stop: int | None,
        is_cancelled: Callable[[], bool],
        stall_seconds: float,
    ) -> None:
        self._store, self._stored, self._file = store, stored, file
        self._start, self._stop, self._end = start, stop, stored.size if stop is None else stop
        self._is_cancelled, self._stall_seconds = is_cancelled, stall_seconds
        self._at = start
        self.digest = hashlib.sha256()

    @property
    def is_complete(self) -> bool:
        """True if everything is there."""
        return self._at == self._end

    def go_on(self) -> None:
        """Read on, to the end of the source or until the connection breaks after something has come."""
        if not self._stored.version and self._at > self._start:  # what comes now may be of another file
            self._at, self.digest = self._start, hashlib.sha256()
        before = self._at
        try:
            self._read()
        except StoreUnavailable:
            if self._at == before:
                raise

    def _read(self) -> None:
        began, at_begin = time.monotonic(), self._at
        for block in self._store.read(self._stored, self._at, self._stop) if self._stored.size else ():
            if self._is_cancelled():
                raise MediaError("the run was stopped")
            if self._at + len(block) > self._end:
                raise SourceChanged(f"the store sends more than the {self._stored.size:,} bytes that it has told")
            self._write(block)
            if (now := time.monotonic()) - began > self._stall_seconds:
                if self._at - at_begin < SLOW_BYTES_PER_SECOND * (now - began):
                    raise StoreUnavailable("the store sends nearly nothing")
                began, at_begin = now, self._at
        if self._at < self._end:
            raise StoreUnavailable(f"the store sends fewer than the {self._stored.size:,} bytes that it has told")

    def _write(self, block: bytes) -> None:
        try:
            os.pwrite(self._file.fileno(), block, self._at)
        except OSError as error:
            raise OutputError(
                f"a copy of a source cannot be written: {error.strerror}; free some of the disk, lower --spool-gb, or"
                " choose another disk by --spool"
            ) from None
        self.digest.update(block)
        self._at += len(block)
