"""The driver of a run over many machines: it lists the sources, leases them to nodes, and alone writes the ledger.

Read it from `ClusterRun.run` downwards. Each node has a session (session.py) for as long as it lives; what nodes say
comes to `_hear`. Sources are leased in `_lease`, the more at a time the faster a node does them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from reelscribe._tasks import cancel_all
from reelscribe._track_specs import TrackSpec
from reelscribe.client.http_session import open_session
from reelscribe.cluster import messages
from reelscribe.cluster.figures import ClusterMeter, NodeFigures
from reelscribe.cluster.leases import LeaseBook, Pace
from reelscribe.cluster.listing import Listing
from reelscribe.cluster.messages import Message
from reelscribe.cluster.node import NodeSpec, look
from reelscribe.cluster.serving import Archives
from reelscribe.cluster.session import LOSSES_IN_A_ROW, Cluster, ComingNodes, NodeLost, NodeSession
from reelscribe.cluster.tokens import CurrentTokens, without_tokens
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES, Source
from reelscribe.errors import NodeRefused, ReelscribeError, UsageError
from reelscribe.reporting.progress import Progress, Silent
from reelscribe.results.records import Kind
from reelscribe.run.bulk import Summary
from reelscribe.run.folder import RunFolder
from reelscribe.run.sources import iter_sources
from reelscribe.run.tracks.track import Stopped

TICK_SECONDS = 1.0
"""Seconds between two looks at how fast nodes are, and at what could be moved from one to another."""

_log = logging.getLogger(__name__)


class ClusterRun:
    """One run over many sources, on many machines, into one folder of this machine."""

    def __init__(
        self,
        specs: Sequence[TrackSpec],
        out: Path,
        cluster: Cluster,
        *,
        archives: Archives | None = None,
        progress: Progress | None = None,
        exclude: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:
        """Describe a run.

        Args:
            specs: What the run makes of each source, at least one.
            out: Folder for annotations.jsonl and the ledger, on a disk of this machine; it is created if it is missing.
            cluster: The machines.
            archives: The models that each node serves by itself; None if the servers of `specs` do.
            progress: Shows the progress of the run; by default nothing is shown.
            exclude: Globs; sources whose path or file name fits one of them are left out.
            limit: Largest number of sources, of those that are not done yet; None for all sources.
        """
        self._specs, self._cluster, self._archives = list(specs), cluster, archives
        self._progress = progress or Silent()
        self._exclude = exclude
        self._left = limit
        """Number of sources that may still be leased; None for all."""
        self._folder = RunFolder(out)
        self._meter = ClusterMeter()
        self._sessions: dict[str, NodeSession] = {}
        self._pace = Pace()
        self._coming = ComingNodes()
        self._blind: set[str] = set()
        """Names of nodes that do not see some source."""
        self._refusal: ReelscribeError | None = None
        """Why the last node was abandoned."""
        self._first: messages.Ready | None = None
        """What the first node has told about its models and settings."""
        self._settings: list[int] = []
        """Their numbers in the ledger."""
        self._wake = asyncio.Event()
        """Set when sources may be leased, or the run may be done."""
        self._broken: asyncio.Future[None] | None = None
        """Has the error because of which the run cannot go on."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of annotations that the run has made; empty before the first node is ready."""
        return [kind for kind, _ in self._first.tracks] if self._first else []

    def stop(self) -> None:
        """End the run early: nodes save the answers to their requests in flight, and `run` returns."""
        self._stopped = True
        self._folder.stopping()
        for session in self._ready():
            session.send(messages.Stop())
        self._wake.set()

    async def run(self, names: Sequence[str]) -> Summary:
        """Annotate sources, and write the files of results in the output folder.

        Results that an earlier run has saved in the same folder are used again, and records of its other sources stay.

        Args:
            names: Files, folders and globs.

        Returns:
            The outcome, also if `stop` has ended the run early.

        Raises:
            UsageError: A name matches no source, a model does not support the options, or no node can be used.
            OutputError: The folder is in use by another run, or cannot be written to.
            ServerError: No server can be used.
        """
        self._broken = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(self._folder)
            suffixes = MEDIA_SUFFIXES if any(spec.needs_audio for spec in self._specs) else VIDEO_SUFFIXES
            sources = iter_sources(names, suffixes, self._exclude)
            self._listing = await stack.enter_async_context(Listing(sources, self._wake.set))
            self._book = LeaseBook(self._next_sources)
            await stack.enter_async_context(self._cluster)
            self._tokens = CurrentTokens(self._specs, await stack.enter_async_context(open_session()))
            folder.begin(self._meter, self._progress)
            stack.enter_context(self._progress)
            stack.push_async_callback(self._end)
            for task in (self._meter.stalls.watch(), folder.report(), self._tick(), self._welcome(), self._renew()):
                self._start(task)
            interrupted = await folder.complete(self._work())
            return Summary(
                self._meter.snapshot(), interrupted=interrupted, replaced_processes=self._meter.replaced_processes
            )

    async def _work(self) -> None:
        """Lease sources until all are done. Raises Stopped if the run was stopped before."""
        assert self._broken
        self._listing.finding.add_done_callback(self._check)
        leasing = asyncio.create_task(self._lease_all())
        try:
            await asyncio.wait((leasing, self._broken), return_when=asyncio.FIRST_COMPLETED)
            (self._broken if self._broken.done() else leasing).result()
            if not self._listing.count:
                raise UsageError(
                    f"--exclude: expected globs that leave a source, but {', '.join(self._exclude)} fits all"
                )
        finally:
            await cancel_all([leasing])
            self._look()

    async def _lease_all(self) -> None:
        while True:
            self._wake.clear()
            self._settle_hopeless()
            if self._stopped:
                if not any(map(self._book.count, self._sessions)):
                    raise Stopped
            elif (self._listing.is_used_up or self._left == 0) and self._book.is_empty:
                return
            else:
                # Whoever has least comes first, so that what a busy node gives back does not return to it.
                for session in sorted(self._sessions.values(), key=lambda each: self._book.count(each.name)):
                    await self._lease(session)
            await self._wake.wait()

    async def _lease(self, session: NodeSession) -> None:
        """Lease sources to a node, if it has few."""
        if not session.is_ready:
            return
        room = self._pace.room(session.name, self._book.count(session.name), session.decode_processes)
        if not room:
            return
        leased = self._book.take(session.name, room, self._sessions.keys() - {session.name})
        if not leased:
            return
        found = await self._folder.ledger.look_up([each.path for each in leased], self._settings)
        if self._is_lost(session):
            return  # and its leases with it
        leases = []
        for each, file in zip(leased, found, strict=True):
            jobs = {job: done for job, done in zip(self._settings, file.jobs, strict=True) if done} if file else {}
            is_done = file is not None and all(
                job and job.is_settled(retry_failed=spec.retry_failed)
                for spec, job in zip(self._specs, file.jobs, strict=True)
            )
            stat, sha256 = (file.stat, file.sha256) if file else (None, None)
            if is_done and self._left is not None:  # the limit is on those that are not done
                self._left += 1
                self._wake.set()
            leases.append(messages.Lease(each.path, stat, sha256, jobs, is_done, each.unseen_elsewhere))
        session.send(*leases)

    def _next_sources(self, most: int) -> list[str]:
        paths = self._listing.take(most if self._left is None else min(most, self._left))
        if self._left is not None:
            self._left -= len(paths)
        return paths

    # What comes from nodes.

    async def _welcome(self) -> None:
        """Begin a session with each node that can be used."""
        async for node in self._cluster.nodes():
            figures = self._meter.nodes.setdefault(node.name, NodeFigures(node.name))
            figures.state = "starting"
            session = NodeSession(node, figures, self._folder.ledger, heard=self._hear, broken=self._break)
            self._sessions[node.name] = session
            self._coming.expect(node.name)
            self._start(self._attend(session))

    async def _attend(self, session: NodeSession) -> None:
        """Work with a node until it is lost or of no use."""
        tokens = await self._tokens.read()
        served = self._archives.all if self._archives else ()
        spec = NodeSpec(without_tokens(self._specs), os.getcwd(), tokens, served)
        try:
            await session.run(spec, self._archives)
        except NodeLost as lost:
            self._meter.nodes_lost += 1
            may_return = self._coming.lost(session.name, with_suspect=self._book.lose(session.name))
            self._forget(session, f"lost: {lost}")
            _log.warning("node %s was lost: %s; what it had not saved is done again", session.name, lost)
            await session.node.end()
            if may_return:
                self._cluster.free(session.name)
            else:
                self._abandon(session, UsageError(f"lost {LOSSES_IN_A_ROW} times in a row: {lost}"))
        except ReelscribeError as error:
            self._book.give_back_all(session.name)
            self._forget(session, f"not used: {error}")
            await session.node.end()
            self._abandon(session, error)

    def _is_lost(self, session: NodeSession) -> bool:
        return self._sessions.get(session.name) is not session

    def _ready(self) -> list[NodeSession]:
        return [session for session in self._sessions.values() if session.is_ready]

    def _forget(self, session: NodeSession, state: str) -> None:
        session.is_ready = False
        session.figures.state = state
        self._meter.ended(session.figures)
        self._sessions.pop(session.name, None)
        self._share_requests()
        self._wake.set()

    def _abandon(self, session: NodeSession, error: ReelscribeError) -> None:
        """Go on without a node for good, if there is another one."""
        self._coming.forget(session.name)
        self._refusal = messages.Failed(type(error).__name__, f"node {session.name}: {error}").error()
        if self._sessions or self._usable():
            _log.warning("node %s is not used: %s", session.name, error)
        self._check_nodes()

    def _check_nodes(self) -> None:
        """End the run if all nodes have been abandoned."""
        if self._refusal and not (self._sessions or self._usable()):
            self._break(self._refusal)

    def _usable(self) -> set[str]:
        """Return the names of the nodes that are ready, or are expected to be so soon."""
        return {session.name for session in self._ready()} | self._coming.names()

    def _hear(self, session: NodeSession, message: Message) -> None:
        match message:
            case messages.Ready():
                session.decode_processes = message.decode_processes
                self._first = self._first or message
                if difference := message.difference(self._first):
                    raise NodeRefused(difference)
                self._start(self._admit(session))
            case messages.Finished(source, error, known) if self._book.holds(session.name, source.path):
                self._book.finish(session.name, source.path)
                self._pace.finished(session.name)
                self._coming.has_done_a_source(session.name)
                session.figures.sources_done += 1
                self._count(source, error, known=known)
            case messages.GivenBack(paths):
                self._book.give_back(session.name, paths)
                self._wake.set()
            case messages.Unseen(path, why):
                self._start(self._look_myself(session, path, why))
            case messages.Report(snapshot, replaced):
                session.figures.report, session.figures.replaced_processes = snapshot, replaced
            case messages.Said(level, text):
                _log.log(level, "node %s: %s", session.name, text)
            case messages.Lost(why):
                raise NodeLost(why)
            case messages.Failed():
                raise message.error()

    async def _admit(self, session: NodeSession) -> None:
        """Lease sources to a node from now on."""
        assert self._first
        texts = [json.loads(text) for _, text in self._first.tracks]
        self._settings = [await self._folder.ledger.settings_id(settings) for settings in texts]
        if self._is_lost(session):
            return
        session.is_ready = True
        self._coming.forget(session.name)
        session.figures.state = "ready"
        self._share_requests()
        if self._stopped:
            session.send(messages.Stop())
        self._wake.set()

    async def _look_myself(self, session: NodeSession, path: str, why: str) -> None:
        """Find out whether a source that a node cannot see is there at all. It stays leased to the node until then."""
        _, why_unseen = await asyncio.to_thread(look, path)
        if self._is_lost(session):
            return  # and its leases with it
        self._book.unseen(session.name, path, why)
        if why_unseen:
            self._book.seen_nowhere(path)
        elif session.name not in self._blind:
            self._blind.add(session.name)
            _log.warning("node %s cannot see %s: %s; what it does not see is left to others", session.name, path, why)
        self._wake.set()

    def _settle_hopeless(self) -> None:
        for path, reason in self._book.hopeless(self._usable()):
            error = SourceError("MediaError", reason)
            self._folder.ledger.save_unreadable(path, error).add_done_callback(self._check)
            self._count(Source(path), error, known=False)

    def _count(self, source: Source, error: SourceError | None, *, known: bool) -> None:
        self._meter.finished(source, error, known=known)
        self._progress.finished(source.path, error)
        self._wake.set()

    # What goes on beside that.

    async def _tick(self) -> None:
        """Look how fast nodes are, and move sources to those that have none, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._look()
            self._check_nodes()
            if self._listing.is_used_up:
                self._level()
            self._wake.set()

    def _look(self) -> None:
        """Look how many sources there are, and how fast nodes are."""
        listed, most = self._listing.count, self._listing.taken + (self._left or 0)
        self._meter.sources = listed if self._left is None else min(listed, most)
        self._meter.all_listed = self._listing.is_complete
        for name, session in self._sessions.items():
            self._pace.look(name, TICK_SECONDS)
            session.figures.sources_open = self._book.count(name)

    def _level(self) -> None:
        """Ask the node with the most sources for some of them, if another one has none and nothing is left to lease."""
        if surplus := self._book.surplus({session.name: session.decode_processes for session in self._ready()}):
            node, sources = surplus
            self._sessions[node].send(messages.GiveBack(sources))

    def _share_requests(self) -> None:
        """Share out the requests in flight, if the servers are the same for all nodes."""
        ready = self._ready()
        most = max((spec.most_requests for spec in self._specs), default=0)
        for session in ready if self._archives is None else ():
            session.send(messages.Share(max(1, most // len(ready))))

    async def _renew(self) -> None:
        """Tell nodes the tokens when they change, until cancelled."""
        async for tokens in self._tokens.changes():
            for session in self._sessions.values():
                session.send(messages.Tokens(tokens))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._check)
        task.add_done_callback(self._tasks.discard)

    def _check(self, ended: asyncio.Future[Any]) -> None:
        if not ended.cancelled() and (error := ended.exception()):
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """End the run with an error."""
        assert self._broken
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _end(self) -> None:
        """End all sessions and whatever else goes on."""
        sessions = list(self._sessions.values())
        await cancel_all(self._tasks)
        await asyncio.gather(*(session.node.end() for session in sessions))
