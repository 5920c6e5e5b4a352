"""Computes the digests of files in the processes of a decode pool; small files that wait are read together.

While all processes that may compute digests read large files, one more reads what is not large, so that a file of
terabytes does not hold up a library.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from reelscribe._tasks import cancel_all
from reelscribe.contract.source import Source
from reelscribe.decode_pool.watched_process import ATTEMPTS, DecodeProcess
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError

SMALL_BYTES = 2**20
"""Size of a file up to which it is read together with others, in bytes. Sending a command to a process takes longer
than computing the digest of a small file."""

LARGE_BYTES = 2**30
"""Size of a file from which on others need not wait for it, in bytes. Reading it takes a second at least."""

FILES_TOGETHER = 32
"""Largest number of files that are read together."""


@dataclass(frozen=True)
class _File:
    number: int
    path: str
    size: int
    source: asyncio.Future[Source]

    @property
    def is_small(self) -> bool:
        return self.size <= SMALL_BYTES

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE_BYTES


class DigestQueue:
    """The files whose digests are to be computed, in the order in which they came."""

    def __init__(self, process: Callable[[], AbstractAsyncContextManager[DecodeProcess]], processes: int) -> None:
        """Begin with no files.

        Args:
            process: Lends a process of the pool.
            processes: Largest number of processes that compute digests at the same time, and that may read large files.
        """
        self.seconds = 0.0
        """Time in which processes read files for their digests, in seconds, summed over all processes."""
        self._process, self._processes = process, processes
        self._came = 0
        self._large: deque[_File] = deque()
        self._others: deque[_File] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = self._reading_large = 0  # tasks, from when they are created, and those that read a large file

    async def digest(self, path: str, size: int) -> Source:
        """Compute the size and SHA-256 of a file.

        Args:
            path: Path of the file.
            size: Its likely size in bytes.

        Returns:
            The path, the size and the digest.

        Raises:
            MediaError: The file cannot be read; DecoderDied or DecoderStalled if every attempt ended like this.
        """
        source: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        self._came += 1
        file = _File(self._came, path, size, source)
        (self._large if file.is_large else self._others).append(file)
        self._start()
        return await source

    async def close(self) -> None:
        """Give up the digests that are not done yet."""
        await cancel_all(self._tasks)
        for file in (*self._large, *self._others):
            file.source.cancel()

    def _start(self) -> None:
        """Let one more process read, if it may. It chooses files when it begins, of all that are queued by then."""
        if self._working < self._processes + self._is_one_more_allowed:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _is_one_more_allowed(self) -> bool:
        return self._reading_large == self._processes

    async def _work(self) -> None:
        try:
            while files := self._next_files():
                await self._read(files)
        finally:
            self._working -= 1

    async def _read(self, files: Sequence[_File]) -> None:
        results: Sequence[Source | Exception]
        self._reading_large += files[0].is_large
        self._start()  # if these are large, others need not wait for them
        try:
            results = await self._digest_all([file.path for file in files])
        except asyncio.CancelledError:
            for file in files:
                file.source.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - any error must reach those who wait for the digests
            results = [error] * len(files)
        finally:
            self._reading_large -= files[0].is_large
        for file, result in zip(files, results, strict=True):
            if file.source.cancelled():
                continue
            if isinstance(result, Source):
                file.source.set_result(result)
            else:
                file.source.set_exception(result)

    def _next_files(self) -> list[_File]:
        """Take the first file that may be read now, and, if it is small, the small ones after it; [] if none may."""
        queues = [self._others, self._large]
        if self._working > self._processes:
            queues = [self._others] if self._is_one_more_allowed else []
        for queue in queues:
            while queue and queue[0].source.cancelled():
                queue.popleft()
        first = min((queue for queue in queues if queue), key=lambda queue: queue[0].number, default=None)
        files = [first.popleft()] if first else []
        while files and len(files) < FILES_TOGETHER and files[0].is_small and self._others and self._others[0].is_small:
            file = self._others.popleft()
            if not file.source.cancelled():
                files.append(file)
        return files

    async def _digest_all(self, paths: Sequence[str]) -> Sequence[Source | MediaError]:
        """Compute digests. If the process dies or hangs, each file is tried again by itself."""
        try:
            return await self._digest_once(paths)
        except (DecoderDied, DecoderStalled) as error:
            attempts = ATTEMPTS - 1 if len(paths) == 1 else ATTEMPTS
            return [await self._digest_alone(path, attempts, error) for path in paths]

    async def _digest_alone(self, path: str, attempts: int, error: MediaError) -> Source | MediaError:
        for _ in range(attempts):
            try:
                return (await self._digest_once([path]))[0]
            except (DecoderDied, DecoderStalled) as again:
                error = again
        return error

    async def _digest_once(self, paths: Sequence[str]) -> Sequence[Source | MediaError]:
        async with self._process() as process:
            began = time.monotonic()
            try:
                return await process.digest_files(paths)
            finally:
                self.seconds += time.monotonic() - began
