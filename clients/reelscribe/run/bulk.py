"""The main path: sources -> captions and transcripts -> records, many at once, each record in its source's place."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reelscribe._files import FolderLock
from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.decode.source_file import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.errors import OutputError, ReelscribeError
from reelscribe.results.jsonl import AnnotationsWriter
from reelscribe.results.ledger import Ledger, LedgerReader
from reelscribe.results.records import Record
from reelscribe.run.annotating import Annotator
from reelscribe.run.captioning import CaptionTrack
from reelscribe.run.meter import Meter, Snapshot, TrackSnapshot
from reelscribe.run.options import CaptionOptions, SpeechOptions
from reelscribe.run.progress import Progress, Silent
from reelscribe.run.sources import find_sources
from reelscribe.run.track import Stopped, Track
from reelscribe.run.transcribing import SpeechTrack

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
        made = " and ".join(_made(lane, now.seconds) for lane in now.lanes if lane.done)
        told = f"{now.sources_done} of {now.sources} sources, {now.sources_failed} failed; "
        if not made:
            return f"{told}nothing new"
        decoders = f"; {self.replaced_decoders} decode processes replaced" if self.replaced_decoders else ""
        return (
            f"{told}{made} in {now.seconds:.1f} s{decoders}; bottleneck: {now.bottleneck};"
            f" longest stall {now.stall_longest_ms} ms"
        )


def _made(lane: TrackSnapshot, seconds: float) -> str:
    if lane.counts == "frames":
        return f"{lane.done:.0f} captions made ({lane.done / seconds:.0f} frames/s)"
    return f"{lane.done:.0f} s of sound heard ({lane.done / seconds:.0f} times real time)"


@dataclass(frozen=True)
class Captions:
    """A captioner, and what it is to caption."""

    client: CaptionClient
    options: CaptionOptions = field(default_factory=CaptionOptions)

    async def track(self) -> CaptionTrack:
        """What the model makes of sources. Raises ServerError and UsageError."""
        return CaptionTrack(self.client, await self.client.describe(), self.options)


@dataclass(frozen=True)
class Transcripts:
    """A speech model, and what it is to transcribe."""

    client: SpeechClient
    options: SpeechOptions = field(default_factory=SpeechOptions)

    async def track(self) -> SpeechTrack:
        """What the model makes of sources. Raises ServerError and UsageError."""
        return SpeechTrack(self.client, await self.client.describe(), self.options)


class BulkRun:
    """One run over many sources, with one model or two, into one folder."""

    def __init__(
        self,
        wanted: Sequence[Captions | Transcripts],
        out: Path,
        *,
        progress: Progress | None = None,
        on_record: Callable[[Record], None] = lambda _: None,
    ) -> None:
        """`on_record` is called with each record when it has been written, in the order of the sources.

        A record reads its results from the ledger, so they can be read until the run ends.
        """
        self._wanted, self._out = wanted, out
        self._progress = progress or Silent()
        self._on_record = on_record
        self._annotator: Annotator | None = None
        self._stopped = False

    def stop(self) -> None:
        """Finish what is being worked on, save it, and end: `run` returns soon."""
        self._stopped = True
        if self._annotator:
            self._annotator.stop()

    async def run(self, names: Sequence[str]) -> Summary:
        """Annotate what `names` stand for into annotations.jsonl.

        What an earlier run into this folder has done is not done again. Raises UsageError, OutputError and ServerError.
        """
        sound = any(isinstance(wanted, Transcripts) for wanted in self._wanted)
        paths = await asyncio.to_thread(find_sources, names, MEDIA_SUFFIXES if sound else VIDEO_SUFFIXES)
        tracks: list[Track[Any, Any, Any]] = []
        meter = Meter(len(paths))
        async with AsyncExitStack() as stack:
            for wanted in self._wanted:
                tracks.append(await wanted.track())
                await stack.enter_async_context(tracks[-1].pool)
            stack.enter_context(FolderLock(self._out))
            ledger = await stack.enter_async_context(Ledger(self._out))
            reader = stack.enter_context(LedgerReader(self._out))
            stack.enter_context(self._progress)
            for track in tracks:
                await track.begin(ledger, reader, meter)
            self._annotator = Annotator(tracks, ledger=ledger, meter=meter)
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
            replaced = sum(track.pool.failures for track in tracks)
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
    """One record for each path, in that order."""
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
