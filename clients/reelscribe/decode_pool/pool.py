"""A pool of decode processes.

Each file is read by a process of its own, and a long video by several, while no other file waits for one: it has
portions, from one entry point to the next. So the event loop is never blocked, every core is used, and a codec that
crashes or hangs does not stop the run. Frames and samples are not copied: the process writes them to shared memory, and
the HTTP request is sent from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from reelscribe._tasks import cancel_all
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.source import Header, Source, Span, after, before_entry_point, join
from reelscribe.decode_pool.commands import BatchT, DecodedBatch, OpenedT, Portion, ReadCommand, Slots
from reelscribe.decode_pool.digest_queue import DigestQueue
from reelscribe.decode_pool.watched_process import ATTEMPTS, DecodeProcess
from reelscribe.errors import DecoderDied, DecoderStalled, StartupError

Item = TypeVar("Item")

STALL_SECONDS = 60.0
"""Default timeout of a process that makes no progress, in seconds. Network storage may take half of that to wake up."""

READY_BYTES = 128 * 2**20
"""Largest size of the memory that is allocated at the start."""

READY_BATCHES = 4
"""Number of batches for which memory is allocated at the start, because nearly every run needs it. The batches that
processes fill come on top."""


_log = logging.getLogger(__name__)


class DecodePool:
    """Decode processes, started when first needed, and replaced when they die, hang or have read many files.

    Use it as an asynchronous context manager.
    """

    def __init__(
        self,
        workers: int,
        slot_bytes: int,
        batches_held: int,
        *,
        stall_seconds: float = STALL_SECONDS,
        memory_bytes: int | None = None,
    ) -> None:
        """Reserve the shared memory.

        Args:
            workers: Largest number of processes; 0 for a pool that reads nothing.
            slot_bytes: Size of a slot, which holds the frames or samples of a batch, in bytes.
            batches_held: Number of batches that can be in use before decoding waits until one is released.
            stall_seconds: A process that makes no progress for this long is killed.
            memory_bytes: Limit for the address space of a process; None for none. What needs more cannot be read.
        """
        self.workers, self.slot_bytes = workers, slot_bytes
        self.failures = 0
        """Number of processes that died, or hung and were killed."""
        self.substituted = 0
        """Number of sources that another decoder has read than the one that was chosen."""
        # Besides the batches in use, each process needs a slot to fill, and one whose batch has not been read yet.
        self._slots = Slots(2 * workers + batches_held, slot_bytes)
        self._stall_seconds, self._memory_bytes = stall_seconds, memory_bytes
        self._permits = asyncio.Semaphore(workers)
        self._idle: list[DecodeProcess] = []
        self._all: set[DecodeProcess] = set()
        self._past_seconds = self._past_decoded = 0.0
        self._assigned_at: dict[DecodeProcess, float] = {}
        self._past_assigned = 0.0
        self._divided: dict[ReadSource[Any, Any], Merged[Any]] = {}
        """The sources that several processes can read, with what comes from them."""
        # If all processes computed digests, there would be nothing to send meanwhile.
        self._digests = DigestQueue(self._process, max(1, workers // 2))
        self._to_digest = 0
        self._starting: set[asyncio.Task[None]] = set()
        self._warnings: set[str] = set()
        self._stopped = False
        self._lacks_processes = False
        """True once a process could not be started; then none is started only to help."""

    async def __aenter__(self) -> Self:
        try:
            # Nearly every run needs a process, and its imports take longer than all else at the start.
            if self.workers:
                self._idle.append(await self._new())
            self._slots.allocate(min(2 * self.workers + READY_BATCHES, READY_BYTES // self.slot_bytes))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        """Kill all processes and wait for their exits, also if this is cancelled meanwhile."""
        closing = asyncio.ensure_future(self._close_all())
        try:
            await asyncio.shield(closing)
        finally:
            await closing

    async def _close_all(self) -> None:
        await cancel_all(self._starting)
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
    def assigned_seconds(self) -> float:
        """Time in which processes had a file, in seconds, summed over all processes."""
        now = time.monotonic()
        return self._past_assigned + sum(now - began for began in self._assigned_at.values())

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
        self._to_digest += 1
        try:
            # Each of these files is read next, so its process starts meanwhile. The digest itself needs the first one.
            if max(1, len(self._all)) + len(self._starting) < min(self.workers, self._to_digest):
                task = asyncio.create_task(self._start_one())
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
            return await self._digests.digest(path, size)
        finally:
            self._to_digest -= 1

    async def _start_one(self) -> None:
        """Have a process ready; whoever needs one that cannot be started learns it then."""
        with suppress(StartupError, DecoderDied):
            async with self._process():
                pass

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
        command: ReadCommand[OpenedT, BatchT],
        spans: Sequence[Span],
        begun: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read spans of a source. If the process dies or hangs, another one reads the rest of the spans.

        While there are processes that nobody else waits for, they read portions of the source, too, if it has several.

        Args:
            command: What to read, and how.
            spans: The spans of chosen frames or of samples, in ascending order.
            begun: Called when a process begins to read.

        Yields:
            Facts about the source, at least once, and the batches of the spans: in order, if the pool has one process
            or the source one portion, and otherwise those of each portion in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if every attempt ended like this.
        """
        source = ReadSource(command, spans, divide=self.workers > 1)
        try:
            batches = self._read_left(source, begun)
            async with aclosing(batches):
                async for item in batches:
                    yield item
                    if source.is_divided:
                        break
                else:
                    return
                merged = self._divided[source] = Merged[OpenedT | BatchT]()
                merged.add(batches)
                self._share_out()
                async with aclosing(merged.items()) as items:
                    async for item in items:
                        yield item
        finally:
            self._divided.pop(source, None)
            self.substituted += source.by_substitute
            for process in self._idle:
                if process.keeps is source:
                    process.close_file()

    async def _read_left(
        self, source: ReadSource[OpenedT, BatchT], begun: Callable[[], None]
    ) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read the portions of a source that are left, one after the other."""
        while source.is_left:
            try:
                async with self._process(source) as process:
                    begun()
                    while source.is_left:
                        async with aclosing(source.read_portion(process)) as items:
                            async for item in items:
                                yield item
            except (DecoderDied, DecoderStalled):
                if self._stopped:
                    raise
                if source.failure:
                    raise source.failure from None

    async def _read_portion(self, source: ReadSource[OpenedT, BatchT]) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read one portion of a source with a process that nobody waits for, if there still are both."""
        if self._permits.locked() or not source.is_left:
            return
        try:
            async with self._process(source) as process:
                if source.is_left:
                    async with aclosing(source.read_portion(process)) as items:
                        async for item in items:
                            yield item
            if source.is_divided:
                return
        except StartupError as error:  # the first process of the source goes on
            _log.warning("%s; fewer processes read what is left", error)
            return
        except (DecoderDied, DecoderStalled):
            if self._stopped:
                raise
            if source.failure:
                raise source.failure from None
        rest = self._read_left(source, lambda: None)  # the process left something, and perhaps nobody else is there
        async with aclosing(rest):
            async for item in rest:
                yield item

    def _share_out(self) -> None:
        """Give a process that nobody waits for to a source of which portions are left, the one with the fewest."""
        sources = [source for source in self._divided if source.is_divided and source.is_left]
        if sources and not (self._stopped or self._lacks_processes or self._permits.locked()):
            source = min(sources, key=lambda source: len(self._divided[source]))
            self._divided[source].add(self._read_portion(source))

    @asynccontextmanager
    async def _process(self, source: object = None) -> AsyncGenerator[DecodeProcess, None]:
        """Lend a process for one file, rather one that has kept the file of this source open."""
        try:
            async with self._permits:
                self._share_out()
                process = await self._idle_or_new(source)
                self._assigned_at[process] = time.monotonic()
                try:
                    yield process
                except (DecoderDied, DecoderStalled):
                    self.failures += not self._stopped
                    raise
                finally:
                    self._past_assigned += time.monotonic() - self._assigned_at.pop(process)
                    if process.ready:
                        process.keeps = source if source in self._divided else None
                        self._idle.append(process)
                    else:  # it is dead, has read enough files, or is in the middle of a file that was given up
                        await self._discard(process)
        finally:
            self._share_out()

    async def _idle_or_new(self, source: object) -> DecodeProcess:
        # Stable, so that among equals the one that was used last is the last one.
        self._idle.sort(key=lambda process: (process.keeps is source, process.keeps is None))
        while self._idle:
            process = self._idle.pop()
            if process.ready:
                return process
            await self._discard(process)  # it died while it was idle
        if self._stopped:
            raise DecoderDied("decoding was stopped")
        return await self._new()

    async def _new(self) -> DecodeProcess:
        try:
            process = await DecodeProcess.start(self._slots, self._stall_seconds, self._warn_once, self._memory_bytes)
        except StartupError:
            self._lacks_processes = True
            raise
        self._all.add(process)
        if self._stopped:  # while it was starting
            process.kill()
        return process

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            _log.warning("%s", text)

    async def _discard(self, process: DecodeProcess) -> None:
        await process.close()  # if this is cancelled, the pool closes it when it ends
        self._all.discard(process)
        self._past_seconds += process.busy_seconds
        self._past_decoded += process.decoded


class ReadSource(Generic[OpenedT, BatchT]):
    """A source that is being read."""

    def __init__(self, command: ReadCommand[OpenedT, BatchT], spans: Sequence[Span], *, divide: bool) -> None:
        """Begin before the source is opened.

        Args:
            command: What to read, and how.
            spans: The spans to read, in ascending order.
            divide: Whether to divide the source into portions, if it has entry points.
        """
        self._command = command
        self._failures = 0
        self._left, self._divide = list(spans), divide
        self._opened: OpenedT | None = None
        self._entry_points: Sequence[int] = ()
        self.failure: DecoderDied | DecoderStalled | None = None
        """Why the source is given up: every attempt ended with the death of its process, or with one that hung."""
        self.by_substitute = False
        """True if another decoder reads it, or a part of it, than the one that was chosen."""

    @property
    def is_divided(self) -> bool:
        """True if what is left of it has portions, so that several processes can read it."""
        return bool(self._entry_points)

    @property
    def is_left(self) -> bool:
        """True if there is a portion that nobody reads, and that may still be tried."""
        return not self.failure and (self._opened is None or bool(self._left))

    async def read_portion(self, process: DecodeProcess) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read the next portion. What a process leaves of it when it dies or hangs is read by another one.

        Yields:
            Facts about the source, unless an earlier process has reported them and read another portion, and the
            batches of the portion in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if the process died or hung. Then
                `failure` says whether there is another attempt.
        """
        wanted, self._left = before_entry_point(self._left, self._entry_points if self.is_divided else ())
        attempt = self._failures
        try:
            items = process.read(self._portion(), wanted)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, DecodedBatch):
                        wanted = after(wanted, item.stop, item.anchor)
                    elif self._opened is None:
                        wanted = self._open(item, wanted)
                    elif self._entry_points:
                        continue
                    yield item
        except (DecoderDied, DecoderStalled) as error:
            self._left = join(self._left, wanted)
            if attempt == self._failures:  # of processes that end together, as when a disk does not answer, one counts
                self._failures += 1
            if self._failures == ATTEMPTS and not self.failure:
                self.failure = type(error)(f"{error}; like {self._failures - 1} before it")
            raise

    def _portion(self) -> ReadCommand[OpenedT, BatchT]:
        if self._failures and (other := self._command.after_failure()) != self._command:
            self._command, self.by_substitute = other, True
        portion: Portion = "later" if self.is_divided else "all" if self._opened or not self._divide else "first"
        return self._command.for_portion(portion, self._opened)

    def _open(self, opened: OpenedT, wanted: Sequence[Span]) -> list[Span]:
        """Take note of the entry points, and return what the process that has found them reads."""
        self._opened, self.by_substitute = opened, self.by_substitute or opened.by_substitute
        wanted, rest = before_entry_point(wanted, opened.entry_points)
        if rest:
            self._left, self._entry_points = join(self._left, rest), opened.entry_points
        return wanted


class Merged(Generic[Item]):
    """The items of several generators, as they come. None runs ahead: it goes on when its last item has been used."""

    def __init__(self) -> None:
        """Begin without generators."""
        self._coming: dict[asyncio.Future[Item], AsyncGenerator[Item, None]] = {}
        """The next item of each generator from which one is awaited."""
        self._closing = False
        self._arrived = asyncio.Queue[asyncio.Future[Item]]()

    def __len__(self) -> int:
        """Return how many generators have not ended."""
        return len(self._coming)

    def add(self, generator: AsyncGenerator[Item, None]) -> None:
        """Add a generator, which begins at once and is closed with the others. Once they are, it does not begin."""
        if self._closing:
            return
        coming = asyncio.ensure_future(anext(generator))
        self._coming[coming] = generator
        coming.add_done_callback(self._arrived.put_nowait)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield the items until all generators have ended. The error of one ends all."""
        try:
            while self._coming:
                arrived = await self._arrived.get()
                generator = self._coming.pop(arrived)
                try:
                    yield arrived.result()
                except StopAsyncIteration:
                    continue
                except BaseException:  # the item was not wanted any more
                    self._closing = True
                    await generator.aclose()
                    raise
                self.add(generator)
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close all generators, and release the batches that have come from them."""
        self._closing = True
        for coming in self._coming:
            coming.cancel()
        ended: list[Any] = await asyncio.gather(*self._coming, return_exceptions=True)
        for item in ended:
            if isinstance(item, DecodedBatch):
                item.release()
        for generator in self._coming.values():
            await generator.aclose()
        self._coming.clear()
