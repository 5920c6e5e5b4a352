"""The main path of a run: many sources are annotated at once, and then all records are written.

Read it from `BulkRun.run` downwards. Each source has an asyncio task (annotating.py), in which each track decodes it,
sends it to a model batch by batch, and saves the answers in the ledger (tracks/). At the end of the run, the records
of all sources that the ledger has are written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reelscribe._tasks import cancel_all
from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.errors import ReelscribeError
from reelscribe.reporting.forecast import Costs
from reelscribe.reporting.meter import Meter, Snapshot
from reelscribe.reporting.outlook import Outlook, other_results
from reelscribe.reporting.progress import Progress, usual_progress
from reelscribe.reporting.summary import summary_lines
from reelscribe.results.known_files import earlier_run_state
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import Kind, Record
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.results.schema import row_errors
from reelscribe.run.annotating import Annotated, Annotator
from reelscribe.run.folder import RunFolder
from reelscribe.run.plan import Outlooks, Plan, make_plan
from reelscribe.run.sources import find_sources, leave_out
from reelscribe.run.tracks.track import Stopped, Track

_log = logging.getLogger(__name__)

OPEN_SOURCES = 1024
"""Largest number of sources that have a task and have not been passed on yet. It bounds memory. It is large
because a video of many hours holds back the records of all sources after it, and their tasks should go on meanwhile.
"""

HEAD_START_SECONDS = 0.5
"""Seconds for which the reading of headers waits for the first source."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a run."""

    snapshot: Snapshot
    """The measurements of the run at its end."""
    interrupted: bool
    """Whether it was stopped before all sources were done; to continue, run it again with the same folder."""
    replaced_processes: int
    """Number of decode processes that died, or were killed because they hung."""

    @property
    def failed(self) -> int:
        """Number of sources whose record has an error."""
        return self.snapshot.sources_failed

    def __str__(self) -> str:
        """Return the figures as one line."""
        lines = summary_lines(self.snapshot, replaced_processes=self.replaced_processes)
        return "; ".join(f"{number} {text}" for number, text in lines)


class BulkRun:
    """One run over many sources, with one or several tracks, into one folder."""

    def __init__(
        self,
        tracks: Sequence[Track],
        out: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        on_record: Callable[[Record], None] | None = None,
        exclude: Sequence[str] = (),
        limit: int | None = None,
        thumbnails: int | None = None,
    ) -> None:
        """Describe a run.

        Args:
            tracks: What the run makes of each source, at least one track. The clients of their models must stay open
                until the run has ended.
            out: Folder for annotations.jsonl and the ledger; it is created if it is missing.
            progress: Shows the progress of the run; by default, a notebook shows it, and other programs show nothing.
            on_record: Called with the record of each source that is done, in the order of the sources; None to call
                nothing. It has the results of this run's models, which are read from the ledger; this is possible until
                the run ends.
            exclude: Globs; sources whose path or file name fits one of them are left out.
            limit: Largest number of sources, of those that are not done yet; None for all sources.
            thumbnails: Number of thumbnails that are kept of each video whose frames are captioned, or whose clips are
                described; None for one of each shot or, if shots are not known, one in 5 seconds, at most 12; 0 for
                none.
        """
        self._tracks, self._out = tracks, Path(out)
        self._progress = progress or usual_progress()
        self._on_record = on_record
        self._exclude, self._limit = exclude, limit
        self._thumbnails = thumbnails
        self._folder = RunFolder(self._out)
        self._costs: dict[str, Any] = {}
        """What runs into the folder have learned about the cost of sources, as JSON."""
        self._annotator: Annotator | None = None
        self._stopped = False

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of annotations that the run makes."""
        return [track.kind for track in self._tracks]

    def stop(self) -> None:
        """End the run early: `run` waits for the requests in flight, saves their answers, and returns."""
        self._stopped = True
        self._folder.stopping()
        if self._annotator:
            self._annotator.stop()

    async def outlook(self, names: Sequence[str]) -> Outlook:
        """Find out what `run` would do, without writing anything.

        Args:
            names: Files, folders and globs.

        Returns:
            The number and length of the sources, what would be taken from them, and how long that would take.

        Raises:
            UsageError: A model does not support the options, or no source is left.
            OutputError: The ledger cannot be read.
            ServerError: No server can be used.
        """
        paths, excluded = await self._find(names)
        async with AsyncExitStack() as stack:
            await self._enter_tracks(stack)
            plan = await self._plan(paths, excluded)
            outlooks = Outlooks(plan, self._tracks, self._new_meter(plan))
            await outlooks.read_headers(processes=len(os.sched_getaffinity(0)))
            return outlooks.outlook()

    async def run(self, names: Sequence[str]) -> Summary:
        """Annotate sources, and write the files of results in the output folder.

        Results that an earlier run has saved in the same folder are used again, and records of its other sources stay.

        Args:
            names: Files, folders and globs.

        Returns:
            The outcome, also if `stop` has ended the run early.

        Raises:
            UsageError: A name matches no source, or a model does not support the options.
            OutputError: The folder is in use by another run, or cannot be written to.
            ServerError: No server can be used.
        """
        paths, excluded = await self._find(names)
        async with AsyncExitStack() as stack:
            await self._enter_tracks(stack)
            folder = await stack.enter_async_context(self._folder)
            self._keep_thumbnails()
            plan = await self._plan(paths, excluded)
            meter = self._new_meter(plan)
            folder.begin(meter, self._progress, partial(self._learned, meter))
            if plan.replaced:
                _log.warning("%s", other_results(plan.replaced, plan.changed_settings))
            outlooks = Outlooks(plan, self._tracks, meter)
            stack.enter_context(self._progress)
            for track in self._tracks:
                await track.begin(folder.ledger)
            annotator = self._annotator = Annotator(self._tracks, folder.ledger, meter)
            if self._stopped:
                annotator.stop()
            tasks = meter.stalls.watch(), folder.report(), self._announce(outlooks, folder.ledger, meter)
            background = [asyncio.create_task(task) for task in tasks]
            stack.push_async_callback(cancel_all, background)
            interrupted = await folder.complete(self._annotate(plan.paths, annotator, folder.reader))
            replaced = sum(track.pool.failures for track in self._tracks)
            return Summary(meter.snapshot(), interrupted=interrupted, replaced_processes=replaced)

    async def _enter_tracks(self, stack: AsyncExitStack) -> None:
        for track in self._tracks:
            await stack.enter_async_context(track)
        for track in self._tracks:
            track.resolve_dependencies(self._tracks)

    def _keep_thumbnails(self) -> None:
        """Let one track keep thumbnails: that of clips, which knows the shots more often, or else that of captions."""
        by_kind = {track.kind: track for track in self._tracks if track.can_keep_thumbnails}
        track = by_kind.get("clips") or by_kind.get("captions")
        if track and self._thumbnails != 0:
            track.keep_thumbnails(self._out, self._thumbnails)

    async def _find(self, names: Sequence[str]) -> tuple[list[str], int]:
        """Return the paths of the sources, and how many were left out of them."""
        audio = any(track.needs_audio for track in self._tracks)
        suffixes = MEDIA_SUFFIXES if audio else VIDEO_SUFFIXES
        found = await asyncio.to_thread(find_sources, names, suffixes)
        kept = leave_out(found, self._exclude)
        return kept, len(found) - len(kept)

    async def _plan(self, paths: Sequence[str], excluded: int) -> Plan:
        make = partial(make_plan, paths, self._out, self._tracks, excluded=excluded, limit=self._limit)
        return await asyncio.to_thread(make)

    def _new_meter(self, plan: Plan) -> Meter:
        """Return a meter in which all tracks count, with what earlier runs have learned about the cost of sources."""
        meter = Meter(len(plan.sources), plan.before)
        meter.others, meter.others_failed = plan.others, plan.others_failed
        with row_errors(self._out / LEDGER):
            self._costs = dict((earlier_run_state(self._out) or {}).get("costs", {}))
            known = [Costs.from_json(self._costs.get(track.costs_key, {})) for track in self._tracks]
        for track, costs in zip(self._tracks, known, strict=True):
            track.count_in(meter, costs)
        return meter

    async def _announce(self, outlooks: Outlooks, ledger: Ledger, meter: Meter) -> None:
        """Show what the run has before it, as soon as that is known, while the run goes on.

        Headers are read when the first source has been opened, so that its decode process starts undisturbed. Then the
        headers of few sources are known without that.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(meter.begun.wait(), HEAD_START_SECONDS)
        try:
            await outlooks.read_headers(ledger)
        except ReelscribeError as error:
            _log.warning("how long the sources are could not be found out: %s", error)
        self._progress.announce(outlooks.outlook())

    async def _annotate(self, paths: Sequence[str], annotator: Annotator, reader: LedgerReader) -> None:
        async with aclosing(_in_order(paths, annotator)) as sources:
            async for annotated in sources:
                self._progress.finished(annotated.source.path, annotated.error)
                if self._on_record:
                    self._on_record(await self._record(annotated, reader))

    async def _record(self, annotated: Annotated, reader: LedgerReader) -> Record:
        """Return the record of a source with the results of this run's models alone."""
        record = await asyncio.to_thread(reader.record, annotated.source.path)
        return record.only(*self.kinds)

    def _learned(self, meter: Meter) -> dict[str, Any]:
        """Return what the next run wants to know, as JSON."""
        for track, count in zip(self._tracks, meter.tracks, strict=True):
            self._costs[track.costs_key] = count.costs().to_json()
        return {"costs": self._costs}


async def _in_order(paths: Sequence[str], annotator: Annotator) -> AsyncGenerator[Annotated, None]:
    """Annotate up to OPEN_SOURCES sources at once, and yield them in the order of the paths."""
    remaining = iter(paths)
    open_sources: deque[asyncio.Task[Annotated]] = deque()
    try:
        while True:
            while len(open_sources) < OPEN_SOURCES and (path := next(remaining, None)) is not None:
                open_sources.append(asyncio.create_task(annotator.annotate(path)))
            if not open_sources:
                return
            yield await open_sources.popleft()
    except Stopped:
        # All other tasks also end with Stopped, once they have saved the answers of their requests in flight.
        await asyncio.gather(*open_sources, return_exceptions=True)
        raise
    finally:
        await cancel_all(open_sources)  # their errors do not matter: the run is ending anyway
