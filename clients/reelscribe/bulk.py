"""The main path: sources -> captions -> records, many at once, each record in its source's place."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reelscribe.captioning import Captioner, Stopped
from reelscribe.client import CaptionClient
from reelscribe.errors import OutputError, ReelscribeError
from reelscribe.ledger import FolderLock, Ledger
from reelscribe.meter import Meter, Snapshot
from reelscribe.options import CaptionOptions
from reelscribe.progress import Progress, Silent
from reelscribe.records import Record
from reelscribe.sources import find_sources
from reelscribe.writers import AnnotationsWriter

OPEN_SOURCES = 1024
"""Sources that are being decoded or wait, for a decoder or for an earlier one to be written; bounds memory. Many, for
one that takes hours must not hold up the others.
"""

SNAPSHOT_SECONDS = 1.0


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    snapshot: Snapshot
    interrupted: bool
    """Whether it was told to stop before all sources were done; the same command goes on from there."""
    replaced_decoders: int
    """Decode processes that died or were ended because they hung."""

    @property
    def failed(self) -> int:
        """Sources whose record has an error."""
        return self.snapshot.sources_failed

    def __str__(self) -> str:
        now = self.snapshot
        if not now.frames:
            made = "0 captions made" if self.interrupted else "0 captions made: all was there already"
            return f"{now.sources_done} of {now.sources} sources, {now.sources_failed} failed; {made}"
        decoders = f"; {self.replaced_decoders} decode processes replaced" if self.replaced_decoders else ""
        return (
            f"{now.sources_done} of {now.sources} sources, {now.sources_failed} failed; {now.frames} captions made in"
            f" {now.seconds:.1f} s ({now.frames_per_second:.0f} frames/s){decoders}; bottleneck: {now.bottleneck};"
            f" longest stall {now.stall_longest_ms} ms"
        )


class CaptionRun:
    """One run over many sources with one model, into one folder."""

    def __init__(
        self,
        client: CaptionClient,
        out: Path,
        options: CaptionOptions | None = None,
        *,
        progress: Progress | None = None,
        on_record: Callable[[Record], None] = lambda _: None,
    ) -> None:
        """`on_record` is called with each record when it has been written, in the order of the sources."""
        self._client, self._out, self._options = client, out, options or CaptionOptions()
        self._progress = progress or Silent()
        self._on_record = on_record
        self._captioner: Captioner | None = None
        self._stopped = False

    def stop(self) -> None:
        """Finish what is being captioned, save it, and end: `run` returns soon."""
        self._stopped = True
        if self._captioner:
            self._captioner.stop()

    async def run(self, names: Sequence[str]) -> Summary:
        """Caption what `names` stand for into annotations.jsonl.

        What an earlier run into this folder has done is not done again. Raises UsageError, OutputError and ServerError.
        """
        paths = await asyncio.to_thread(find_sources, names)
        description = await self._client.describe()
        options = self._options
        pool = options.pool(description, self._client.most_in_flight)
        meter = Meter(
            len(paths),
            decode_workers=options.decode_workers,
            server_workers=description.workers,
            decode_seconds=lambda: pool.busy_seconds,
            decoded_frames=lambda: pool.decoded_frames,
        )
        self._client.on_answer = lambda answer: meter.answered(
            answer.network_seconds, answer.queue_seconds, answer.compute_seconds
        )
        settings = {"model": [description.name, description.revision], **options.settings(description)}
        async with AsyncExitStack() as stack:
            stack.enter_context(FolderLock(self._out))
            ledger = await stack.enter_async_context(Ledger(self._out, settings))
            stack.enter_context(self._progress)
            await stack.enter_async_context(pool)
            self._captioner = Captioner(
                self._client, description, options, ledger=ledger, out=self._out, pool=pool, meter=meter
            )
            if self._stopped:
                self._captioner.stop()
            helpers = [asyncio.create_task(meter.stalls.watch()), asyncio.create_task(self._report(meter, ledger))]
            stack.push_async_callback(_cancel, helpers)
            state = "interrupted"
            try:
                with suppress(Stopped):
                    await self._write(paths, self._captioner)
                    state = "done"
            except (ReelscribeError, asyncio.CancelledError) as error:
                state = f"ended: {error}" if isinstance(error, ReelscribeError) else state
                with suppress(OutputError):
                    await ledger.set_run(self._state(meter, state))
                raise
            self._progress.show(meter.snapshot())
            await ledger.set_run(self._state(meter, state))
            return Summary(meter.snapshot(), state == "interrupted", pool.failures)

    async def _write(self, paths: Sequence[str], captioner: Captioner) -> None:
        with AnnotationsWriter(self._out) as writer:
            async with aclosing(_in_order(paths, captioner)) as records:
                async for record in records:
                    # In a thread, as it reads and writes as many lines as the source has captions.
                    await asyncio.to_thread(writer.write, record)
                    self._progress.finished(record)
                    self._on_record(record)

    async def _report(self, meter: Meter, ledger: Ledger) -> None:
        while True:
            self._progress.show(meter.snapshot())
            await ledger.set_run(self._state(meter, "running"))
            await asyncio.sleep(SNAPSHOT_SECONDS)

    def _state(self, meter: Meter, state: str) -> dict[str, Any]:
        return {"state": state, "pid": os.getpid(), **asdict(meter.snapshot())}


async def _in_order(paths: Sequence[str], captioner: Captioner) -> AsyncGenerator[Record, None]:
    """One record for each path, in that order."""
    waiting = iter(paths)
    open_sources: deque[asyncio.Task[Record]] = deque()
    try:
        while True:
            while len(open_sources) < OPEN_SOURCES and (path := next(waiting, None)) is not None:
                open_sources.append(asyncio.create_task(captioner.caption(path)))
            if not open_sources:
                return
            yield await open_sources.popleft()
    except Stopped:
        # The others save what has been sent.
        await asyncio.gather(*open_sources, return_exceptions=True)
        raise
    finally:
        await _cancel(open_sources)


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End all of them; what they raise on the way has been raised before, or concerns nobody any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
