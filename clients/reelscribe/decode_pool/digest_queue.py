"""Computes the digests of files in the processes of a decode pool; small files that wait are read together."""

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

FILES_TOGETHER = 32
"""Largest number of files that are read together."""


@dataclass(frozen=True)
class _File:
    path: str
    is_small: bool
    source: asyncio.Future[Source]


class DigestQueue:
    """The files whose digests are to be computed, in the order in which they came."""

    def __init__(self, process: Callable[[], AbstractAsyncContextManager[DecodeProcess]], processes: int) -> None:
        """Begin with no files.

        Args:
            process: Lends a process of the pool.
            processes: Largest number of processes that compute digests at the same time.
        """
        self.seconds = 0.0
        """Time in which processes read files for their digests, in seconds, summed over all processes."""
        self._process, self._processes = process, processes
        self._waiting: deque[_File] = deque()
        self._working = 0
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
        self._waiting.append(_File(path, size <= SMALL_BYTES, source))
        if self._working < self._processes:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await source

    async def close(self) -> None:
        """Give up the digests that are not done yet."""
        await cancel_all(self._tasks)
        for file in self._waiting:
            file.source.cancel()

    async def _work(self) -> None:
        try:
            while files := self._next_files():
                results: Sequence[Source | Exception]
                try:
                    results = await self._digest_all([file.path for file in files])
                except asyncio.CancelledError:
                    for file in files:
                        file.source.cancel()
                    raise
                except Exception as error:  # noqa: BLE001 - any error must reach those who wait for the digests
                    results = [error] * len(files)
                for file, result in zip(files, results, strict=True):
                    if file.source.cancelled():
                        continue
                    if isinstance(result, Source):
                        file.source.set_result(result)
                    else:
                        file.source.set_exception(result)
        finally:
            self._working -= 1

    def _next_files(self) -> list[_File]:
        """Take the first file that somebody still waits for, and, if it is small, the small ones after it."""
        files: list[_File] = []
        while self._waiting and len(files) < FILES_TOGETHER:
            if self._waiting[0].source.cancelled():
                self._waiting.popleft()
            elif not files or (files[0].is_small and self._waiting[0].is_small):
                files.append(self._waiting.popleft())
            else:
                break
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
