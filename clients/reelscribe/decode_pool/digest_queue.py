"""Computes the digests of files in the processes of a decode pool; small files that wait are read together.

While all processes that may compute digests read large files, one more reads what is not large, so that a file of
terabytes does not hold up a library.
"""

from __future__ import annotations

import asyncio
import time
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
        self._waiting: list[_File] = []
        self._working: list[Sequence[_File]] = []
        """The files that each process reads."""
        self._tasks: set[asyncio.Task[None]] = set()

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
        self._waiting.append(_File(path, size, source))
        self._start()
        return await source

    async def close(self) -> None:
        """Give up the digests that are not done yet."""
        await cancel_all(self._tasks)
        for file in self._waiting:
            file.source.cancel()

    async def _work(self) -> None:
        while files := self._next_files():
            self._working.append(files)
            self._start()  # if these are large, others need not wait for them
            results: Sequence[Source | Exception]
            try:
                results = await self._digest_all([file.path for file in files])
            except asyncio.CancelledError:
                for file in files:
                    file.source.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - any error must reach those who wait for the digests
                results = [error] * len(files)
            finally:
                self._working.remove(files)
            for file, result in zip(files, results, strict=True):
                if file.source.cancelled():
                    continue
                if isinstance(result, Source):
                    file.source.set_result(result)
                else:
                    file.source.set_exception(result)

    def _start(self) -> None:
        """Let one more process read, if it may. It chooses files when it begins, of all that are queued by then."""
        if self._may_read(large=False):
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _may_read(self, *, large: bool) -> bool:
        """Return whether one more process may read files now, or large ones."""
        if len(self._working) < self._processes:
            return True
        only_large = all(files[0].is_large for files in self._working)
        return not large and only_large and len(self._working) == self._processes

    def _next_files(self) -> list[_File]:
        """Take the first file that may be read now, and, if it is small, other small ones; [] if none may."""
        files: list[_File] = []
        left: list[_File] = []
        for file in self._waiting:
            if file.source.cancelled():
                continue
            if files:
                is_next = files[0].is_small and file.is_small and len(files) < FILES_TOGETHER
            else:
                is_next = self._may_read(large=file.is_large)
            (files if is_next else left).append(file)
        self._waiting = left
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
