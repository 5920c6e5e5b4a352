"""The main path of a run: sources -> captions and transcripts -> records, many at once, written in order.

Read it from `BulkRun.run` downwards. A source is a task of the event loop: it is digested, decoded by each track, sent
batch by batch, and saved in the ledger (`annotating`, `track`). Its record is written when it is its turn.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reelscribe._files import FolderLock
from reelscribe.decode.source_file import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.errors import OutputError, ReelscribeError
from reelscribe.results.jsonl import AnnotationsWriter
from reelscribe.results.ledger import Ledger, LedgerReader
from reelscribe.results.records import Record
from reelscribe.run.annotating import Annotator
from reelscribe.run.captioning import CaptionTrack
from reelscribe.run.meter import Meter, Snapshot, TrackSnapshot
from reelscribe.run.progress import Progress, Silent
from reelscribe.run.sources import find_sources
from reelscribe.run.track import Stopped
from reelscribe.run.transcribing import TranscriptTrack

OPEN_SOURCES = 1024
"""Sources that are worked on or wait for a decode process, or for the record of an earlier source to be written. The
number bounds memory. It is large, so that one source of hours does not hold up the others."""

SNAPSHOT_SECONDS = 1.0
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    snapshot: Snapshot
    """The figures of the run at its end."""
    interrupted: bool
    """Whether it was stopped before all sources were done; the same command goes on from there."""
    replaced_processes: int
    """Decode processes that died, or were killed because they hung."""

    @property
    def failed(self) -> int:
        """Number of sources whose record has an error."""
        return self.snapshot.sources_failed

    def __str__(self) -> str:
        now = self.snapshot
        done = " and ".join(_done(track, now.seconds) for track in now.lanes if track.done)
        sources = f"{now.sources_done} of {now.sources} sources, {now.sources_failed} failed; "
        if not done:
            return f"{sources}nothing new"
        replaced = f"; {self.replaced_processes} decode processes replaced" if self.replaced_processes else ""
        return (
            f"{sources}{done} in {now.seconds:.1f} s{replaced}; bottleneck: {now.bottleneck};"
            f" longest stall {now.stall_longest_ms} ms"
        )


def _done(track: TrackSnapshot, seconds: float) -> str:
    if track.counts == "frames":
        return f"{track.done:.0f} captions made ({track.done / seconds:.0f} frames/s)"
    return f"{track.done:.0f} s of audio transcribed ({track.done / seconds:.0f} times real time)"


class BulkRun:
    """One run over many sources, with a captioner, a speech model or both, into one folder."""

    def __init__(
        self,
        tracks: Sequence[CaptionTrack | TranscriptTrack],
        out: Path,
        *,
        progress: Progress | None = None,
        on_record: Callable[[Record], None] = lambda _: None,
    ) -> None:
        """Describe a run.

        Args:
            tracks: One for each model, at least one. Their clients are entered.
            out: Folder for annotations.jsonl and the ledger; it is created.
            progress: Shows how the run is going; by default nothing does.
            on_record: Called with each record once it is written, in the order of the sources. What a record reads
                from the ledger can be read until the run ends.
        """
        self._tracks, self._out = tracks, out
        self._progress = progress or Silent()
        self._on_record = on_record
        self._annotator: Annotator | None = None
        self._stopped = False

    def stop(self) -> None:
        """Finish and save the requests that are in flight, and end: `run` returns soon."""
        self._stopped = True
        if self._annotator:
            self._annotator.stop()

    async def run(self, names: Sequence[str]) -> Summary:
        """Annotate sources into OUT/annotations.jsonl. What an earlier run into OUT has done is not done again.

        Args:
            names: Files, folders and globs.

        Raises:
            UsageError: A model cannot do what the options ask for.
            OutputError: The folder is in use by another run, or cannot be written.
            ServerError: No server can be used.
        """
        audio = any(isinstance(track, TranscriptTrack) for track in self._tracks)
        paths = await asyncio.to_thread(find_sources, names, MEDIA_SUFFIXES if audio else VIDEO_SUFFIXES)
        meter = Meter(len(paths))
        async with AsyncExitStack() as stack:
            for track in self._tracks:
                await stack.enter_async_context(track)
            stack.enter_context(FolderLock(self._out))
            ledger = await stack.enter_async_context(Ledger(self._out))
            reader = stack.enter_context(LedgerReader(self._out))
            stack.enter_context(self._progress)
            for track in self._tracks:
                await track.begin(ledger, reader, meter)
            self._annotator = Annotator(self._tracks, ledger=ledger, meter=meter)
            if self._stopped:
                self._annotator.stop()
            helpers = [asyncio.create_task(meter.stalls.watch()), asyncio.create_task(self._report(meter, ledger))]
            stack.push_async_callback(_cancel, helpers)
            state = "interrupted"
            try:
                with suppress(Stopped):
                    await self._write(paths, self._annotator)
                    state = "done"
            except (ReelscribeError, asyncio.CancelledError) as error:
                state = f"ended: {error}" if isinstance(error, ReelscribeError) else state
                with suppress(OutputError):
                    await ledger.save_run_state(self._state(meter, state))
                raise
            self._progress.show(meter.snapshot())
            await ledger.save_run_state(self._state(meter, state))
            replaced = sum(track.pool.failures for track in self._tracks)
            return Summary(meter.snapshot(), state == "interrupted", replaced)

    async def _write(self, paths: Sequence[str], annotator: Annotator) -> None:
        with AnnotationsWriter(self._out) as writer:
            async with aclosing(_in_order(paths, annotator)) as records:
                async for record in records:
                    # In a thread, as it reads and writes as much as the source has captions.
                    await asyncio.to_thread(writer.write, record)
                    self._progress.finished(record)
                    self._on_record(record)

    async def _report(self, meter: Meter, ledger: Ledger) -> None:
        while True:
            self._progress.show(meter.snapshot())
            await ledger.save_run_state(self._state(meter, "running"))
            await asyncio.sleep(SNAPSHOT_SECONDS)

    def _state(self, meter: Meter, state: str) -> dict[str, Any]:
        return {"state": state, "pid": os.getpid(), **asdict(meter.snapshot())}


async def _in_order(paths: Sequence[str], annotator: Annotator) -> AsyncGenerator[Record, None]:
    """Yield one record for each path, in the order of the paths."""
    waiting = iter(paths)
    open_sources: deque[asyncio.Task[Record]] = deque()
    try:
        while True:
            while len(open_sources) < OPEN_SOURCES and (path := next(waiting, None)) is not None:
                open_sources.append(asyncio.create_task(annotator.annotate(path)))
            if not open_sources:
                return
            yield await open_sources.popleft()
    except Stopped:
        # The other sources save what is in flight.
        await asyncio.gather(*open_sources, return_exceptions=True)
        raise
    finally:
        await _cancel(open_sources)


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel all tasks and wait for them; what they raise has been raised before, or concerns nobody any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
