"""The driver of a run: it lists the sources, leases them to nodes, counts, and alone writes ledger and results.

Read it from `Run.run` downwards. On one machine there is one node, in this process (node.py); with `--ray` there are
many on other machines. The messages of nodes come to `_on_message`. Sources are leased in `_lease`; those that earlier
runs have done are settled in `_settle` without a node. At the end, the records of all sources that the ledger has are
written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reelscribe._cores import usable_cores
from reelscribe._tasks import cancel_all
from reelscribe.contract.fields import read_number
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES, Source
from reelscribe.errors import NodeRefused, ReelscribeError, UsageError
from reelscribe.reporting.meter import Meter, NodeFigures
from reelscribe.reporting.plan import Plan, other_results
from reelscribe.reporting.progress import Progress, usual_progress
from reelscribe.reporting.summary import Summary
from reelscribe.reporting.time_left import TimeLeft
from reelscribe.results.known_files import look_up_in
from reelscribe.results.ledger_reader import LedgerReader, earlier_run_state
from reelscribe.results.records import Kind, Record, error_of
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.results.schema import row_errors
from reelscribe.run import messages
from reelscribe.run.file_search import Names, Selection, check_names
from reelscribe.run.folder import RunFolder
from reelscribe.run.leases import LeaseBook, OutcomesInOrder, Pace
from reelscribe.run.listing import ListedSource, Listing
from reelscribe.run.lost_nodes import LOSSES_IN_A_ROW, NodeLost, PendingNodes
from reelscribe.run.messages import FromNode
from reelscribe.run.node import Destination, LocalNodes, NodeConnection, Nodes, why_unseen
from reelscribe.run.store import MemoryStore
from reelscribe.run.tracks.planned import PlannedTrack
from reelscribe.run.tracks.track import Stopped, Track
from reelscribe.storage.spool import SpoolOptions
from reelscribe.storage.stores import Stores

TICK_SECONDS = 1.0
"""Seconds between two updates of how fast nodes are, and of what could be moved from one to another."""

OPEN_SOURCES = 1024
"""Largest number of sources that are leased to the only node, or wait for a source before them to be shown. It bounds
memory. It is large because a video of many hours holds back the records of all sources after it, and others should go
on meanwhile."""

HEAD_START_SECONDS = 5.0
"""Seconds for which the reading of headers waits until each decode process has opened a source."""

LIST_ATTEMPTS = 3
"""Number of times that a store is asked for a page of its list, for which nothing else can be done meanwhile."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Session:
    """The time that the run works with a node, from its start to its end."""

    node: NodeConnection
    figures: NodeFigures
    is_ready: bool = False
    """True if sources can be leased to it."""
    decode_processes: int = 0

    @property
    def name(self) -> str:
        return self.node.name


class Run:
    """One run over many sources, with one or several tracks, into one folder."""

    def __init__(
        self,
        tracks: Sequence[Track] | Nodes,
        out: str | os.PathLike[str],
        *,
        work_dir: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        on_record: Callable[[Record], None] | None = None,
        selection: Selection | None = None,
        limit: int | None = None,
        thumbnails: int | None = None,
        spool: SpoolOptions | None = None,
    ) -> None:
        """Describe a run.

        Args:
            tracks: The tracks of a run on this machine, at least one; the clients of their models must stay open until
                the run has ended. Or the nodes of a run over many machines, which have tracks of their own.
            out: Folder for annotations.jsonl and the ledger, on a disk of this machine; it is created if it is missing.
                Or an address, such as s3://bucket/results/, to which such a folder is copied.
            work_dir: That folder, if `out` is an address.
            progress: Shows the progress of the run; by default, a notebook shows it, and other programs show nothing.
            on_record: Called with the record of each source that is done, in the order of the sources; None to call
                nothing. It has the results of this run's models, which are read from the ledger; this is possible until
                the run ends. Over many machines, a source that holds back more than 1024 others is passed over.
            selection: Which of the sources that the names stand for belong to the run; None for all.
            limit: Largest number of sources, of those that are not done yet; None for all sources.
            thumbnails: Number of thumbnails of each video whose frames are captioned or clips described; 0 for none;
                None for one of each shot or, if shots are not known, one in 5 seconds, at most 12.
            spool: The room on each machine for copies of sources in stores or on web servers; by default half of what
                is free on the disk of the folder, and on other machines on that of temporary files.
        """
        self._nodes: Nodes = LocalNodes(tracks) if isinstance(tracks, Sequence) else tracks
        self._folder = RunFolder(out, work_dir)
        self._out = self._folder.path
        self._progress = progress or usual_progress()
        self._on_record = on_record
        self._selection, self._limit = selection or Selection(), limit
        self._thumbnails, self._spool = thumbnails, spool or SpoolOptions()
        self._meter = Meter()
        self._speeds: dict[str, float] = {}
        """The speeds of tracks in runs into the folder."""
        self._sessions: dict[str, _Session] = {}
        self._book = LeaseBook(self._next_sources)
        self._pace = Pace()
        self._pending = PendingNodes()
        self._leased: dict[str, ListedSource] = {}
        """The sources that were taken from the list and are not done, by their paths."""
        self._to_settle: list[ListedSource] = []
        """Sources that were taken from the list, and that earlier runs have done or that cannot be sources."""
        self._in_order = OutcomesInOrder(OPEN_SOURCES)
        self._blind: set[str] = set()
        """Names of nodes that do not see some source."""
        self._refusal: ReelscribeError | None = None
        """The error because of which the last node was abandoned."""
        self._first: messages.Ready | None = None
        """The message in which the first node tells about its tracks."""
        self._has_first = asyncio.Event()
        self._opened, self._has_opened = set[str](), asyncio.Event()
        """Sources that were opened or are done, until each decode process has opened one, or none is left."""
        self._is_announced = False
        """True if the headers of sources have been read."""
        self._wake = asyncio.Event()
        """Set when sources may be leased, or the run may be done."""
        self._broken: asyncio.Future[None] | None = None
        """Has the error because of which the run cannot go on."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of annotations that the run makes; empty before the first node is ready."""
        return [track.kind for track in self._tracks]

    def stop(self) -> None:
        """End the run early: nodes save the answers to their requests in flight, and `run` returns."""
        self._stopped = True
        self._folder.stopping()
        for session in self._ready():
            session.node.send(messages.Stop())
        self._wake.set()

    async def plan(self, names: Names) -> Plan:
        """Find out what `run` would do, without writing anything.

        Args:
            names: Files, folders, globs, addresses and lists.

        Returns:
            The number and length of the sources, what would be taken from them, and how long that would take.

        Raises:
            UsageError: A name matches no source, a model does not support the options, or no node can be used.
            OutputError: The ledger cannot be read.
            ServerError: No server can be used.
        """
        async with AsyncExitStack() as stack:
            listing = self._listing = await self._open(names, stack)
            self._read_speeds()
            self._begin_nodes(Destination(MemoryStore(), self._out, 0), stack)
            await self._unless_broken(self._has_first.wait())
            reader = stack.enter_context(LedgerReader(self._out)) if (self._out / LEDGER).exists() else None
            look_up = partial(look_up_in, self._out, reader)
            await self._unless_broken(listing.find(self._tracks, look_up, self._limit, self._expect))
            self._meter.all_listed = True
            await listing.read_headers(self._learn_duration, processes=usable_cores())
            return listing.plan(self._meter.time_left())

    async def run(self, names: Names) -> Summary:
        """Annotate sources, and write the files of results in the output folder.

        Results that an earlier run has saved in the same folder are used again, and records of its other sources stay.

        Args:
            names: Files, folders, globs, addresses and lists.

        Returns:
            The outcome, also if `stop` has ended the run early.

        Raises:
            UsageError: A name matches no source, a model does not support the options, or no node can be used.
            OutputError: The folder is in use by another run, or cannot be written to.
            ServerError: No server can be used.
        """
        async with AsyncExitStack() as stack:
            self._listing = await self._open(names, stack)
            folder = await stack.enter_async_context(self._folder)
            self._read_speeds()
            folder.begin(self._meter, self._progress, self._learned)
            stack.enter_context(self._progress)
            self._begin_nodes(Destination(folder.ledger, self._out, self._thumbnails, self._spool), stack)
            for task in (folder.report(self._has_first), folder.keep_sending(), self._tick()):
                self._start(task)
            interrupted = await folder.complete(self._work())
            return Summary(self._meter.snapshot(), interrupted, self._meter.replaced_processes)

    async def _open(self, names: Names, stack: AsyncExitStack) -> Listing:
        """Check the names, and connect to the nodes, before anything is written."""
        suffixes = MEDIA_SUFFIXES if self._nodes.takes_audio else VIDEO_SUFFIXES
        stores = Stores(self._spool.stall_seconds, attempts=LIST_ATTEMPTS)
        stack.callback(stores.close)
        if not self._selection.rest_seconds:  # where sources are waited for, some names have none yet
            await asyncio.to_thread(check_names, names, suffixes, self._selection, stores)
        listing = stack.enter_context(Listing(names, suffixes, self._selection, stores))
        await stack.enter_async_context(self._nodes)
        return listing

    def _read_speeds(self) -> None:
        with row_errors(self._out / LEDGER):
            saved = dict((earlier_run_state(self._out) or {}).get("speeds", {}))
            self._speeds = {key: read_number("speed", speed) for key, speed in saved.items()}

    def _learned(self) -> dict[str, Any]:
        """Return what the next run wants to know, as JSON."""
        speeds = zip(self._tracks, self._meter.speeds(), strict=True)
        return {"speeds": self._speeds | {track.speed_key: speed for track, speed in speeds if speed}}

    async def _work(self) -> None:
        """Annotate all sources. Raises Stopped if the run was stopped before all of them were done."""
        try:
            await self._unless_broken(self._lease_all())
        finally:
            self._update_figures()

    async def _unless_broken(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
        """Wait for work, or raise the error because of which the run cannot go on."""
        assert self._broken
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, self._broken), return_when=asyncio.FIRST_COMPLETED)
            (self._broken if self._broken.done() else working).result()
        finally:
            await cancel_all([working])

    # The list of sources.

    async def _find(self) -> None:
        """Put all sources on the list, and show what the run has before it."""
        ledger, listing = self._folder.ledger, self._listing
        await listing.find(self._tracks, ledger.look_up, self._limit, self._expect, ledger.save_extras)
        self._meter.all_listed = True
        self._wake.set()
        replaced, changed_settings = listing.replaced
        if replaced:
            _log.warning("%s", other_results(replaced, changed_settings))
        await asyncio.to_thread(self._count_others)
        # Decode processes start undisturbed. Then the headers of few sources are known, and no process has to start.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_opened.wait(), HEAD_START_SECONDS)
        try:
            await listing.read_headers(self._learn_duration, ledger)
        except ReelscribeError as error:
            _log.warning("how long the sources are could not be found out: %s", error)
        await self._announce(self._meter.time_left())

    def _learn_duration(self, source: ListedSource, seconds: float) -> None:
        """Count a source that is not done by its duration, which was taken from its bytes or was another before."""
        leased = self._leased.get(source.path)
        if leased or not self._listing.has_taken(source):  # else it is done
            size = (leased or source).size
            self._meter.learn(size, longer := replace(size, seconds=seconds), source.done_shares)
            if leased:
                self._leased[source.path] = leased._replace(size=longer)

    def _note_opened(self, path: str) -> None:
        if not self._has_opened.is_set():
            self._opened.add(path)
            self._wake.set()

    def _check_opened(self) -> None:
        processes = sum(session.decode_processes for session in self._ready())
        if self._meter.all_listed and (len(self._opened) >= processes or self._leased.keys() <= self._opened):
            self._has_opened.set()

    async def _announce(self, left: TimeLeft | None) -> None:
        """Show what the run has before it, or had if it is so short that it is done."""
        if not self._is_announced:
            self._is_announced = True
            self._progress.announce(await asyncio.to_thread(self._listing.plan, left))

    def _expect(self, sources: list[ListedSource]) -> None:
        """Count sources that are on the list."""
        for source in sources:
            self._meter.expect(source.size, source.done_shares, source.done_amounts)
            if source.is_done:
                self._meter.done_before()
        self._wake.set()

    def _count_others(self) -> None:
        """Count the records of sources in the folder that the run does not name."""
        self._meter.others = self._folder.reader.count() - self._listing.count_records()
        if self._meter.others:
            failed = (each.path for each in self._folder.reader.finished() if each.error is not None)
            self._meter.others_failed = self._listing.count_others(failed)

    def _next_sources(self, most: int) -> list[str]:
        """Take sources from the list that are to be leased; those that are done are settled without a node.

        On one machine, so few are open at once that none is passed over in the order of the list.
        """
        to_lease: list[str] = []
        while len(self._to_settle) < OPEN_SOURCES:
            room = most - len(to_lease)
            if isinstance(self._nodes, LocalNodes):
                room = min(room, OPEN_SOURCES - self._in_order.open)
            sources = self._listing.take(room) if room > 0 else ()
            if not sources:
                break
            for source in sources:
                self._in_order.taken(source.number)
                if source.is_done or source.problem:
                    self._to_settle.append(source)
                else:
                    self._leased[source.path] = source
                    to_lease.append(source.path)
        return to_lease

    async def _settle(self) -> None:
        """Save that the record of each source shows what earlier runs have made of it with the same settings."""
        while self._to_settle:
            settling, self._to_settle = self._to_settle, []
            settled = await asyncio.gather(*map(self._settle_source, settling))
            for listed, (source, error) in zip(settling, settled, strict=True):
                self._count(listed, source, error)

    async def _settle_source(self, listed: ListedSource) -> tuple[Source, SourceError | None]:
        source = Source(listed.path, listed.size.bytes, listed.sha256 or "", listed.stat)
        if listed.problem:
            error = SourceError("MediaError", listed.problem)
            await self._folder.ledger.save_unreadable(listed.path, error)
            return source, error
        await self._folder.ledger.save_source(source, listed.jobs)
        return source, error_of({kind: job.error for kind, job in listed.jobs.items()})

    # Leases.

    async def _lease_all(self) -> None:
        while not self._first:  # there is no node yet
            if self._stopped:
                raise Stopped
            self._wake.clear()
            await self._wake.wait()
        finding = self._start(self._find())
        while True:
            self._wake.clear()
            await self._settle_hopeless()
            if self._listing.is_used_up and self._book.is_empty and not self._to_settle:
                await self._show_outcomes()
                self._has_opened.set()
                await asyncio.wait([finding], timeout=HEAD_START_SECONDS)  # it reads what headers say, and announces it
                await self._announce(None)
                return
            if self._stopped:
                if not any(map(self._book.count, self._sessions)):
                    await self._show_outcomes()
                    raise Stopped
            else:
                # Whoever has least comes first, so that what a busy node gives back does not return to it.
                for session in sorted(self._ready(), key=lambda each: self._book.count(each.name)):
                    self._lease(session)
                self._check_opened()
                await self._settle()
            await self._show_outcomes()
            await self._wake.wait()

    def _lease(self, session: _Session) -> None:
        """Lease sources to a node that is ready, if it has few."""
        held = self._book.count(session.name)
        if session.figures.is_local:  # it is the only one, so nothing is left for others
            room = OPEN_SOURCES - held - len(self._in_order)
        else:
            room = self._pace.room(session.name, held, session.decode_processes)
        if room <= 0:
            return
        leases = []
        for path, seen_nowhere in self._book.take(session.name, room, self._sessions.keys() - {session.name}):
            source = self._leased[path]
            nowhere = seen_nowhere or session.figures.is_local
            leases.append(messages.Lease(path, source.size, source.stat, source.sha256, nowhere, source.options))
        if leases:
            session.node.send(*leases)

    async def _settle_hopeless(self) -> None:
        errors = {path: SourceError("MediaError", reason) for path, reason in self._book.hopeless(self._usable())}
        await asyncio.gather(*(self._folder.ledger.save_unreadable(*each) for each in errors.items()))
        for path, error in errors.items():
            self._count(self._leased.pop(path), Source(path), error)

    def _count(self, listed: ListedSource, source: Source, error: SourceError | None) -> None:
        """Count a source that is done."""
        self._meter.finished(source, error, listed.size, listed.done_shares, before=listed.is_done)
        self._in_order.done(listed.number, source.path, error)
        self._note_opened(source.path)
        self._wake.set()

    async def _show_outcomes(self) -> None:
        while outcome := self._in_order.pop():
            self._progress.finished(*outcome)
            if self._on_record:
                self._on_record(await self._record(outcome[0]))

    async def _record(self, path: str) -> Record:
        """Return the record of a source with the results of this run's models alone."""
        record = await asyncio.to_thread(self._folder.reader.record, path)
        return record.only(*self.kinds)

    # Nodes and their messages.

    def _begin_nodes(self, destination: Destination, stack: AsyncExitStack) -> None:
        self._broken = asyncio.get_running_loop().create_future()
        stack.push_async_callback(self._end)
        self._start(self._welcome(destination))

    async def _welcome(self, destination: Destination) -> None:
        """Begin a session with each node that can be used."""
        async for node in self._nodes.connections(destination):
            figures = self._meter.nodes.setdefault(node.name, NodeFigures(node.name))
            figures.state, figures.read_report = "starting", node.read_report
            figures.is_local = node.read_report is not None
            session = self._sessions[node.name] = _Session(node, figures)
            self._pending.expect(node.name)
            self._start(self._attend(session))

    async def _attend(self, session: _Session) -> None:
        """Work with a node until it is lost or of no use."""
        try:
            await session.node.run(partial(self._on_message, session), self._break)
        except NodeLost as lost:
            self._meter.nodes_lost += 1
            may_return = self._pending.lost(session.name, with_suspect=self._book.lose(session.name))
            self._forget(session, f"lost: {lost}")
            _log.warning("node %s was lost: %s; what it had not saved is done again", session.name, lost)
            await session.node.end()
            if may_return:
                self._nodes.free(session.name)
            else:
                self._abandon(session, UsageError(f"lost {LOSSES_IN_A_ROW} times in a row: {lost}"))
        except ReelscribeError as error:
            self._book.give_back_all(session.name)
            self._forget(session, f"not used: {error}")
            await session.node.end()
            self._abandon(session, error)

    def _on_message(self, session: _Session, message: FromNode) -> None:
        match message:
            case messages.Ready():
                self._admit(session, message)
            case messages.Opened(path, header):
                if header.seconds is not None and (listed := self._leased.get(path)):
                    if not self._is_announced:
                        self._listing.learn_header(path, header)
                    self._learn_duration(listed, header.seconds)
                self._note_opened(path)
            case messages.Finished(source, error) if self._book.holds(session.name, source.path):
                self._book.finish(session.name, source.path)
                self._pace.finished(session.name)
                self._pending.has_done_a_source(session.name)
                session.figures.sources_done += 1
                self._count(self._leased.pop(source.path), source, error)
            case messages.GivenBack(paths):
                self._book.give_back(session.name, paths)
                self._wake.set()
            case messages.Unseen(path, why):
                self._start(self._check_source_locally(session, path, why))
            case messages.Report(figures):
                session.figures.keep(figures)

    def _admit(self, session: _Session, ready: messages.Ready) -> None:
        """Lease sources to a node from now on."""
        if self._first is None:
            self._first = ready
            for track in ready.tracks:
                self._meter.add_track(track.medium.counts, self._speeds.get(track.speed_key))
            self._has_first.set()
        if difference := ready.difference(self._first):
            raise NodeRefused(difference)
        session.is_ready, session.decode_processes = True, ready.decode_processes
        session.figures.state = "ready"
        self._pending.forget(session.name)
        self._share_requests()
        if self._stopped:
            session.node.send(messages.Stop())
        self._wake.set()

    async def _check_source_locally(self, session: _Session, path: str, why: str) -> None:
        """Find out whether a source that a node cannot see is there at all. It stays leased to the node until then."""
        why_here = await asyncio.to_thread(why_unseen, path)
        if self._sessions.get(session.name) is not session:
            return  # it was lost, and its leases with it
        self._book.unseen(session.name, path, why)
        if why_here:
            self._book.seen_nowhere(path)
        elif session.name not in self._blind:
            self._blind.add(session.name)
            _log.warning("node %s cannot see %s: %s; what it does not see is left to others", session.name, path, why)
        self._wake.set()

    @property
    def _tracks(self) -> Sequence[PlannedTrack]:
        return self._first.tracks if self._first else ()

    def _ready(self) -> list[_Session]:
        return [session for session in self._sessions.values() if session.is_ready]

    def _usable(self) -> set[str]:
        """Return the names of the nodes that are ready, or are expected to be so soon."""
        return {session.name for session in self._ready()} | self._pending.names()

    def _forget(self, session: _Session, state: str) -> None:
        session.is_ready, session.figures.state = False, state
        self._meter.ended(session.figures)
        self._sessions.pop(session.name, None)
        self._share_requests()
        self._wake.set()

    def _abandon(self, session: _Session, error: ReelscribeError) -> None:
        """Go on without a node for good, if there is another one."""
        self._pending.forget(session.name)
        self._refusal = session.node.as_error_of_the_run(error)
        if self._sessions or self._usable():
            _log.warning("node %s is not used: %s", session.name, error)
        self._check_nodes()

    def _check_nodes(self) -> None:
        """End the run if all nodes have been abandoned."""
        if self._refusal and not (self._sessions or self._usable()):
            self._break(self._refusal)

    def _share_requests(self) -> None:
        """Share out the requests that servers take, if they are the same for all nodes."""
        if (ready := self._ready()) and self._nodes.share_servers:
            for session in ready:
                session.node.send(messages.Share(len(ready)))

    async def _tick(self) -> None:
        """Learn how fast nodes are, and move sources to those that have none, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._update_figures()
            self._check_nodes()
            if self._listing.is_used_up:
                self._level()
            self._wake.set()

    def _update_figures(self) -> None:
        self._meter.all_leased = self._listing.is_used_up
        self._pace.update_rates(self._sessions, TICK_SECONDS)
        for name, session in self._sessions.items():
            session.figures.sources_open = self._book.count(name)

    def _level(self) -> None:
        """Ask the node with the most sources for some of them, if another one has none and nothing is left to lease."""
        if surplus := self._book.surplus({session.name: session.decode_processes for session in self._ready()}):
            self._sessions[surplus[0]].node.send(messages.GiveBack(surplus[1]))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._check)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check(self, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled() and (error := ended.exception()):
            self._break(error)

    def _break(self, error: BaseException) -> None:
        assert self._broken
        if not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # marks it as retrieved: the run may be ending already

    async def _end(self) -> None:
        sessions = list(self._sessions.values())
        await cancel_all(self._tasks)
        await asyncio.gather(*(session.node.end() for session in sessions))
