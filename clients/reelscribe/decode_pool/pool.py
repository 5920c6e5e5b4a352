"""A pool of decode processes.

Each file is read by a process of its own. So the event loop is never blocked, every core is used, and a codec that
crashes or hangs does not stop the run. Frames and samples are not copied: the process writes them to shared memory, and
the HTTP request is sent from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self

from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.source import Header, Source, Span
from reelscribe.decode_pool.digests import DigestQueue
from reelscribe.decode_pool.process import Batch, DecodeProcess, Opened, ReadCommand
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import DecoderDied, DecoderStalled

STALL_SECONDS = 60.0
"""Default timeout of a process that makes no progress, in seconds. Network storage may take half of that to wake up."""

READY_BYTES = 128 * 2**20
"""Largest size of the memory that is allocated at the start."""

READY_BATCHES = 4
"""Number of batches for which memory is allocated at the start, because nearly every run needs it. The batches that
processes fill come on top."""


class DecodePool:
    """Decode processes, started when first needed, and replaced when they die, hang or have read many files.

    Use it as an asynchronous context manager.
    """

    def __init__(
        self, workers: int, slot_bytes: int, batches_held: int, *, stall_seconds: float = STALL_SECONDS
    ) -> None:
        """Reserve the shared memory.

        Args:
            workers: Largest number of processes.
            slot_bytes: Size of a slot, which holds the frames or samples of a batch, in bytes.
            batches_held: Number of batches that can be in use before decoding waits until one is released.
            stall_seconds: A process that makes no progress for this long is killed.
        """
        self.workers, self.slot_bytes = workers, slot_bytes
        self.failures = 0
        """Number of processes that died, or hung and were killed."""
        # Besides the batches in use, each process needs a slot to fill, and one whose batch has not been read yet.
        self._slots = Slots(2 * workers + batches_held, slot_bytes)
        self._stall_seconds = stall_seconds
        self._permits = asyncio.Semaphore(workers)
        self._idle: list[DecodeProcess] = []
        self._all: set[DecodeProcess] = set()
        self._past_seconds = self._past_decoded = 0.0
        self._lent_at: dict[DecodeProcess, float] = {}
        self._past_lent = 0.0
        # If all processes computed digests, there would be nothing to send meanwhile.
        self._digests = DigestQueue(self._process, max(1, workers // 2))
        self._stopped = False

    async def __aenter__(self) -> Self:
        # Nearly every run needs a process, and its imports take longer than all else at the start.
        self._idle.append(await self._new())
        self._slots.allocate(min(2 * self.workers + READY_BATCHES, READY_BYTES // self.slot_bytes))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._digests.close()
        await asyncio.gather(*(process.close() for process in self._all))
        self._slots.close()

    @property
    def memory(self) -> SharedMemory:
        """The shared memory in which frames and samples of batches lie."""
        return self._slots.memory

    @property
    def busy_seconds(self) -> float:
        """Time spent waiting for replies, in seconds, summed over all processes."""
        return self._past_seconds + sum(process.busy_seconds for process in self._all)

    @property
    def decoded(self) -> float:
        """Number of frames, or seconds of audio, decoded from files that were read to their ends."""
        return self._past_decoded + sum(process.decoded for process in self._all)

    @property
    def digesting_seconds(self) -> float:
        """Time in which processes read files for their digests, in seconds, summed over all processes."""
        return self._digests.seconds

    @property
    def lent_seconds(self) -> float:
        """Time in which processes had a file, in seconds, summed over all processes."""
        now = time.monotonic()
        return self._past_lent + sum(now - began for began in self._lent_at.values())

    def stop(self) -> None:
        """Kill all processes. Reads that are under way, or begin later, raise DecoderDied."""
        self._stopped = True
        for process in self._all:
            process.kill()

    async def digest_file(self, path: str, size: int) -> Source:
        """Compute the size and SHA-256 of a file.

        Args:
            path: Path of the file.
            size: Its likely size in bytes. Small files that wait at the same time are read one after the other.

        Returns:
            The path, the size and the digest.

        Raises:
            MediaError: The file cannot be read; DecoderDied or DecoderStalled if every attempt ended like this.
        """
        return await self._digests.digest(path, size)

    async def read_header(self, path: str) -> Header:
        """Read the header of a media file. It is tried once, as the answer is only needed for forecasts.

        Args:
            path: Path of the file.

        Returns:
            What it says.

        Raises:
            MediaError: The file cannot be read; DecoderDied or DecoderStalled if the process ended like this.
        """
        async with self._process() as process:
            return await process.read_header(path)

    async def read(
        self,
        command: ReadCommand[Opened, Batch],
        spans: Sequence[Span],
        begun: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Opened | Batch, None]:
        """Read spans of a source. If the process dies or hangs, another one reads the rest of the spans.

        Args:
            command: What to read, and how.
            spans: The spans of chosen frames or of samples, in ascending order.
            begun: Called when a process begins to read.

        Yields:
            Facts about the source, at least once, and the batches of the spans in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if every attempt ended like this.
        """
        attempts = command.attempts()
        for count, attempt in enumerate(attempts, 1):
            try:
                async with self._process() as process:
                    begun()
                    items = process.read(attempt, spans)
                    async with aclosing(items):
                        async for item in items:
                            if isinstance(item, DecodedBatch):
                                spans = _after(spans, item)
                            yield item
            except (DecoderDied, DecoderStalled) as error:
                if self._stopped:
                    raise
                if count == len(attempts):
                    raise type(error)(f"{error}; like {count - 1} before it") from None
            else:
                return

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[DecodeProcess, None]:
        """Lend a process for one file."""
        async with self._permits:
            process = await self._idle_or_new()
            self._lent_at[process] = time.monotonic()
            try:
                yield process
            except (DecoderDied, DecoderStalled):
                self.failures += not self._stopped
                raise
            finally:
                self._past_lent += time.monotonic() - self._lent_at.pop(process)
                if process.ready:
                    self._idle.append(process)
                else:  # it is dead, has read enough files, or is in the middle of a file whose reading was given up
                    await self._discard(process)

    async def _idle_or_new(self) -> DecodeProcess:
        while self._idle:
            process = self._idle.pop()
            if process.ready:
                return process
            await self._discard(process)  # it died while it was idle
        if self._stopped:
            raise DecoderDied("decoding was stopped")
        return await self._new()

    async def _new(self) -> DecodeProcess:
        process = await DecodeProcess.start(self._slots, self._stall_seconds)
        self._all.add(process)
        if self._stopped:  # while it was starting
            process.kill()
        return process

    async def _discard(self, process: DecodeProcess) -> None:
        self._all.discard(process)
        self._past_seconds += process.busy_seconds
        self._past_decoded += process.decoded
        await process.close()


def _after(spans: Sequence[Span], batch: DecodedBatch) -> list[Span]:
    """Return the rest of `spans` after `batch`; batches come in the order of the spans."""
    rest = [span for span in spans if span.stop is None or span.stop > batch.stop]
    if rest and rest[0].first < batch.stop:
        rest[0] = Span(batch.stop, rest[0].stop, batch.anchor)
    return rest
