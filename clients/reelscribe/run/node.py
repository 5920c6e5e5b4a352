"""A node of a run: it annotates the sources that the driver leases to it, many at once, with its tracks.

On one machine, the only node is part of the process of the driver (`LocalNodes`), and saves into the ledger. On other
machines, the package `cluster` runs a `Node` with a link to the ledger, and carries its messages. Its `Annotator` takes
one source: it gets a digest, all tracks work on it at the same time, and it ends as a record.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from reelscribe._cores import CORES_OF_JAVA, share_cores, usable_cores
from reelscribe._files import file_stat, size_in
from reelscribe._tasks import CallBatcher, cancel_all
from reelscribe.contract.outcomes import Segment, SourceError, Utterance, source_error
from reelscribe.contract.source import INDEXED_SUFFIXES, Section, Source
from reelscribe.errors import MediaError, ReelscribeError, RequestRefused, SourceChanged
from reelscribe.reporting.counters import NodeReport
from reelscribe.reporting.node_meter import NodeMeter
from reelscribe.reporting.units import UNITS
from reelscribe.results.jobs import Job
from reelscribe.results.records import Kind, error_of
from reelscribe.run import messages
from reelscribe.run.messages import FromNode, ToNode
from reelscribe.run.store import Store
from reelscribe.run.tracks.planned import for_source, resolved
from reelscribe.run.tracks.track import Assignment, Stopped, Track
from reelscribe.storage.address import file_of, is_member, is_stored, suffix
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.spool import FETCHES, Spool, SpoolOptions

OnMessage = Callable[[FromNode], None]

SOURCES_AHEAD = 2 * FETCHES
"""Number of sources in stores that are being fetched, or are about to be. Others wait until these are done with it."""


@dataclass(frozen=True)
class Destination:
    """The place for what the nodes of a run make."""

    store: Store
    """The ledger; a store in memory for nodes that are only asked what they would do."""
    out: Path
    """The output folder."""
    thumbnails: int | None = None
    """Number of thumbnails of a source; None for one of each shot or, if shots are not known, one in 5 seconds, at
    most 12; 0 for none."""
    spool: SpoolOptions = field(default_factory=SpoolOptions)
    """The room on each node for copies of sources that are no files."""


class NodeConnection(Protocol):
    """A node, as the driver reaches it."""

    @property
    def name(self) -> str:
        """Name of its machine for people; it is the same when a node is started there again."""

    @property
    def read_report(self) -> Callable[[], NodeReport] | None:
        """Reads the figures of a node in this process; None for one that reports them by itself."""

    def send(self, *mail: ToNode) -> None:
        """Tell the node messages, soon and in order."""

    async def run(self, on_message: OnMessage, on_broken: Callable[[BaseException], None]) -> None:
        """Open the node, and work until it is lost or cannot go on. This returns only by an error.

        Args:
            on_message: Called with each message of the node, in order.
            on_broken: Called with the error of the store, after which no node can go on.

        Raises:
            NodeLost: The node has died, or does not answer any more.
            ReelscribeError: The node cannot be used.
        """

    async def end(self) -> None:
        """End the node in an orderly way, or by force where it does not answer. It raises nothing."""

    def as_error_of_the_run(self, error: ReelscribeError) -> ReelscribeError:
        """Return the error that a run ends with which has no node but this one, which ended with `error`."""


class Nodes(Protocol):
    """The nodes of a run. Use it as an async context manager, which ends every node that is left."""

    takes_audio: bool
    """True if recordings without pictures are sources, too."""
    share_servers: bool
    """True if the servers are the same for all nodes."""

    async def __aenter__(self) -> Self:
        """Connect to the nodes. Raises UsageError or ServerError if that cannot be done."""

    async def __aexit__(self, *error: Any) -> None:
        """End every node."""

    def connections(self, destination: Destination) -> AsyncIterator[NodeConnection]:
        """Yield each node that can be used, as soon as it can; again after `free`. It does not end by itself."""

    def free(self, name: str) -> None:
        """Note that a node is not used any more, and may be yielded again."""


class Node:
    """Annotates sources for a driver."""

    def __init__(self, tracks: Sequence[Track], store: Store, send: OnMessage, spool: Spool) -> None:
        """Prepare a node.

        Args:
            tracks: The tracks, entered.
            store: The place for results.
            send: Tells the driver a message.
            spool: Keeps copies of sources that are no files of this machine; it is open.
        """
        self._tracks, self._store, self._send, self._spool = tracks, store, send, spool
        self.meter = NodeMeter(lambda path, header: send(messages.Opened(path, header)), lambda: spool.is_fetching)
        """Measures the node."""
        self._visible = CallBatcher(_why_unseen)
        self._leased: dict[str, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error because of which the node cannot go on."""
        self._is_ending = False

    async def begin(self) -> None:
        """Connect the tracks to the store, and tell the driver that the node is ready."""
        for track in self._tracks:  # at once, as a report has all of them or none
            track.count_in(self.meter)
        for track in self._tracks:
            await track.begin(self._store)
        self._annotator = Annotator(self._tracks, self._store, self._spool)
        self._send(messages.Ready([track.planned for track in self._tracks]))

    async def run(self) -> None:
        """Work until cancelled, or until the error because of which the node cannot go on, which is raised."""
        try:
            await self._failed
        finally:
            self._is_ending = True  # what is given back now must not be leased to this node again
            await cancel_all(self._leased.values())

    def receive(self, message: ToNode) -> None:
        """Take a message of the driver."""
        match message:
            case messages.Lease() if not self._is_ending:
                task = self._leased[message.path] = asyncio.create_task(self._annotate(message))
                task.add_done_callback(partial(self._lease_ended, message.path))
            case messages.Share(nodes):
                for track in self._tracks:
                    track.share_requests(nodes)
            case messages.GiveBack(most):
                for path in self._not_begun(most):
                    self._leased[path].cancel()
            case messages.Stop():
                self._annotator.stop()

    def report(self) -> NodeReport:
        """Return the figures of the node now."""
        return self.meter.report()

    async def _annotate(self, lease: messages.Lease) -> None:
        path = lease.path
        try:
            if not lease.seen_nowhere and (why := await self._visible.ask(path)):
                self._send(messages.Unseen(path, why))
                return
            self.meter.expect(path, lease.size)
            annotated = await self._annotator.annotate(path, lease.stat, lease.options)
            self.meter.close(path)
            self._send(messages.Finished(annotated.source, annotated.error))
        except Stopped:
            self._send(messages.GivenBack([path]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must not wait for the source
            error.add_note(f"while {path} was annotated")
            if not self._failed.done():
                self._failed.set_exception(error)

    def _lease_ended(self, path: str, task: asyncio.Task[None]) -> None:
        self.meter.close(path)
        del self._leased[path]
        if self._is_ending:  # the driver takes back all leases of the node
            return
        if task.cancelled():  # maybe before its first step
            self._send(messages.GivenBack([path]))
        if not self._leased:
            self._send(messages.Report(self.report()))  # the run may end before the next report is due

    def _not_begun(self, most: int) -> list[str]:
        """Return the newest leases of sources that no decode process has begun to read."""
        waiting = [path for path in reversed(self._leased) if not self.meter.is_begun(path)]
        return waiting[:most]


class LocalNode:
    """The node that is part of this process; see `NodeConnection`."""

    name = "this machine"

    def __init__(self, tracks: Sequence[Track], destination: Destination) -> None:
        """Take the tracks, entered, and the place for results."""
        self._tracks, self._destination = tracks, destination
        self._node: Node | None = None

    def read_report(self) -> NodeReport:
        """Return the figures of the node now."""
        return self._node.report() if self._node else NodeMeter().report()

    def send(self, *mail: ToNode) -> None:
        """Give the node messages."""
        assert self._node, "it is ready before it gets any"
        for message in mail:
            self._node.receive(message)

    async def run(self, on_message: OnMessage, on_broken: Callable[[BaseException], None]) -> None:  # noqa: ARG002
        """Work until an error; one of the store is one of the node, too."""
        async with Spool(self._destination.spool, self._destination.out) as spool:
            self._node = Node(self._tracks, self._destination.store, on_message, spool)
            await self._node.begin()
            await self._node.run()

    async def end(self) -> None:
        """Do nothing, as the node ends with `run`."""

    def as_error_of_the_run(self, error: ReelscribeError) -> ReelscribeError:
        """Return the error itself."""
        return error


class LocalNodes:
    """The only node of a run on one machine; see `Nodes`."""

    share_servers = False

    def __init__(self, tracks: Sequence[Track]) -> None:
        """Take the tracks, whose clients must stay open until the run has ended."""
        self._tracks = tracks
        self.takes_audio = any(track.needs_audio for track in tracks)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await enter_tracks(self._tracks, stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def connections(self, destination: Destination) -> AsyncIterator[LocalNode]:
        """Yield the node."""
        keep_thumbnails(self._tracks, destination.out, destination.thumbnails)
        yield LocalNode(self._tracks, destination)
        await asyncio.Event().wait()

    def free(self, name: str) -> None:
        """Do nothing, as this node is never lost."""


async def enter_tracks(tracks: Sequence[Track], stack: AsyncExitStack, most_cores: int | None = None) -> None:
    """Connect the tracks of a node to their models, share its cores among them, and enter them.

    Args:
        tracks: The tracks. Each finds those that it depends on.
        stack: Closes the tracks.
        most_cores: Use at most so many cores for decoding; None for all that the process may use.

    Raises:
        ServerError: No server of a model answers.
        UsageError: A model does not support the options of its track, or a track needs another one, which is not there.
    """
    for track in tracks:
        await track.connect(stack)
    cores = min(usable_cores(), most_cores or sys.maxsize)
    workers = sum(track.cores_of_servers for track in tracks)
    for_servers = workers and workers + CORES_OF_JAVA
    chosen, pictures = [track.options.workers for track in tracks], [UNITS[track.counts].pictures for track in tracks]
    processes, why = share_cores(cores, for_servers, chosen, pictures)
    taken = sum(number for number in chosen if number is not None)
    for track, number, own in zip(tracks, processes, chosen, strict=True):
        # What the user has not chosen shrinks when a track gets more that is chosen.
        track.decode_with(number, why, number if own is None else cores - for_servers - (taken - own))
        await stack.enter_async_context(track)
    for track, planned in zip(tracks, resolved([track.planned for track in tracks]), strict=True):
        track.planned = planned


def keep_thumbnails(tracks: Sequence[Track], out: Path, most: int | None) -> None:
    """Let one track keep thumbnails: that of clips, which knows the shots more often, or else that of captions.

    Args:
        tracks: The tracks of a run.
        out: The folder in which they are kept.
        most: Number of thumbnails of a source, as for `Destination.thumbnails`.
    """
    by_kind = {track.kind: track for track in tracks if track.can_keep_thumbnails}
    track = by_kind.get("clips") or by_kind.get("captions")
    if track and most != 0:
        track.keep_thumbnails(out, most)


def why_unseen(path: str) -> str | None:
    """Return why a file cannot be seen from this machine; None if it can, or if it is in a store."""
    if (file := file_of(path)) is None:
        return None
    try:
        os.stat(file)
        return None if os.access(file, os.R_OK) else "permission denied"
    except (OSError, ValueError) as error:
        return str(error)


async def _why_unseen(paths: list[str]) -> list[str | None]:
    return await asyncio.to_thread(lambda: [why_unseen(path) for path in paths])


@dataclass(frozen=True)
class Annotated:
    """A source that is done."""

    source: Source
    jobs: Mapping[Kind, Job] = field(default_factory=dict)
    """The job of each kind of annotations of the run; none if the source could not be read."""
    unreadable: SourceError | None = None
    """Why the source could not be read; None if it could."""

    @property
    def error(self) -> SourceError | None:
        """Return the error of its record, as far as this run knows it."""
        return self.unreadable or error_of({kind: job.error for kind, job in self.jobs.items()})


class Annotator:
    """Annotates sources with the models of a run, many sources at once."""

    def __init__(self, tracks: Sequence[Track], store: Store, spool: Spool) -> None:
        """Create an annotator.

        Args:
            tracks: One for each model. Their `begin` has been called.
            store: Where digests, jobs and finished sources are saved.
            spool: Keeps copies of sources that are no files of this machine.
        """
        self._tracks, self._store, self._spool = tracks, store, spool
        self._fetching = asyncio.Semaphore(SOURCES_AHEAD)
        # A source needs only one digest, so it is computed in the pool of the first track that reads media. This track
        # also tells whether the run is stopping, because `stop` stops all tracks together.
        self._first_track = next(track for track in tracks if track.pool.workers)
        self._stats = CallBatcher(_file_stats)

    def stop(self) -> None:
        """Stop decoding. Requests in flight are still answered and saved; `annotate` raises Stopped for other work."""
        self._spool.stop()
        for track in self._tracks:
            track.stop()

    async def annotate(self, path: str, stat: str, options: str) -> Annotated:
        """Caption and transcribe a source, except for what the store already holds, and save that it is done.

        If the source cannot be read, or a model refuses its content, that is its error. So is whatever nobody has
        expected; this is the one place where it ends.

        Args:
            path: Path or address of the source.
            stat: What told its version when the run found it; empty if nothing did.
            options: Its own options, as `planned.options_in` returns them.

        Raises:
            Stopped: The run was stopped before the source was done.
            OutputError: The results cannot be saved.
            ServerError: No server can be used.
        """
        self._first_track.raise_if_stopping()
        try:
            async with AsyncExitStack() as stack:
                source = await (self._fetch(path, stat, options, stack) if is_stored(path) else self._digest(path))
                await stack.enter_async_context(self._store.hold(source.sha256))  # copies of a file are annotated once
                jobs = await self._complete_jobs(source, options)
                if source.ranges and source.ranges.failure:
                    raise source.ranges.failure
                await self._store.save_source(source.at_rest, jobs)
            return Annotated(source.at_rest, jobs)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sources are done
            self._first_track.raise_if_stopping()
            unreadable = source_error(error, path)
            await self._store.save_unreadable(path, unreadable)
            return Annotated(Source(path), unreadable=unreadable)

    async def _digest(self, path: str) -> Source:
        """Return the source with its size and digest, from the store if the file has not changed since."""
        if (stat := await self._stats.ask(path)) and (sha256 := await self._store.find_digest(path, stat)):
            return Source(path, size_in(stat), sha256, stat)
        source = await self._first_track.pool.digest_file(path, size_in(stat) if stat else 0)
        self._store.save_digest(path, source.stat, source)  # its error, if any, is that of what is asked next, too
        return source

    async def _fetch(self, address: str, stat: str, options: str, stack: AsyncExitStack) -> Source:
        """Return a source that is no file of this machine, with a copy of it where some track has to read it.

        Args:
            address: Its address.
            stat: What told its version when the run found it. An object may have a newer one, which is read; a member
                of an archive is not looked for again.
            options: Its own options.
            stack: Removes the copy at its end. No content may be held yet: whoever holds one may wait for room here.
        """
        async with self._fetching:
            self._first_track.raise_if_stopping()
            known = is_member(address) and stat
            stored = StoredObject.from_stat(address, stat) if known else await self._spool.info(address)
            sha256 = await self._store.find_digest(address, stored.stat)
            source = Source(address, stored.size, sha256 or "", stored.stat)
            if sha256 and await self._is_done(source, options):
                return source
            if self._reads_little(stored):
                source = replace(source, sha256=sha256 or stored.key)
                ranges = await stack.enter_async_context(self._spool.open_ranges(stored))
                read = replace(source, copy=ranges.path, ranges=ranges)
            else:
                copy = await stack.enter_async_context(self._spool.fetch(stored))
                if source.digest or not source.sha256:  # results that are kept by a version stay with it
                    source = replace(source, sha256=copy.sha256)
                read = replace(source, copy=copy.path)
        self._store.save_digest(address, stored.stat, source)
        return read

    def _reads_little(self, stored: StoredObject) -> bool:
        """Return whether ranges of a source are fetched, and not all of it."""
        readers = [track.options for track in self._tracks if track.pool.workers]
        is_indexed = suffix(stored.address) in INDEXED_SUFFIXES
        return bool(stored.version) and is_indexed and all(options.reads_little(stored.size) for options in readers)

    async def _assigned(self, source: Source, options: str) -> dict[Track, Assignment]:
        """Return what each track makes of a source with its own options."""
        planned = for_source([track.planned for track in self._tracks], options)
        return {track: await track.assign(source, each) for track, each in zip(self._tracks, planned, strict=True)}

    async def _is_done(self, source: Source, options: str) -> bool:
        """Return whether nothing of a source has to be read."""
        assigned = await self._assigned(source, options)
        jobs = [(await track.job(each), track.options.retry_failed) for track, each in assigned.items()]
        return all(job.is_settled(retry_failed=retry_failed) for job, retry_failed in jobs)

    async def _complete_jobs(self, source: Source, options: str) -> dict[Kind, Job]:
        """Do the jobs of a source that are not done yet, and return all of them, one for each track.

        The store does not know yet that they are done.

        Raises:
            MediaError: The file was removed or changed meanwhile. What came of a file that was changed is forgotten.
        """
        assigned = await self._assigned(source, options)
        needs = {track: each.planned.options.needs for track, each in assigned.items()}
        jobs: dict[Kind, Job] = {}
        needed: set[Kind] = set()
        for track in sorted(self._tracks, key=lambda track: len(needs[track]), reverse=True):
            job = jobs[track.kind] = await track.job_to_do(assigned[track], is_needed=track.kind in needed)
            if not job.done:
                needed |= needs[track]
        undone = {kind for kind, job in jobs.items() if not job.done}
        for track in self._tracks:
            if jobs[track.kind].done and track.options.made_anew_with & undone:
                jobs[track.kind] = await track.job_anew(assigned[track])
        todo = [(track, job) for track in self._tracks if not (job := jobs[track.kind]).done]
        if not todo:
            return jobs
        siblings = _Siblings(self._store, jobs)
        siblings.tasks = {
            track.kind: asyncio.create_task(track.work(assigned[track], job, siblings)) for track, job in todo
        }
        changed: SourceChanged | None = None
        worked: Sequence[Job] = ()
        try:
            worked = await _gather([*siblings.tasks.values()])
        except SourceChanged as error:
            changed = error
        if not await self._stats.ask(source.file[0]):
            raise MediaError("it is not there any more; what was done of it is kept for when it is")
        if changed:
            for _, job in todo:
                await self._store.forget(job.id)
            raise (source.ranges and source.ranges.failure) or MediaError(str(changed))
        return jobs | {track.kind: job for (track, _), job in zip(todo, worked, strict=True)}


class _Siblings:
    """The jobs and results of the tracks of a run for one source."""

    def __init__(self, store: Store, jobs: Mapping[Kind, Job]) -> None:
        self._store, self._jobs = store, jobs
        self.tasks: Mapping[Kind, asyncio.Task[Job]] = {}
        """Those that are being done."""

    async def utterances(self) -> list[Utterance]:
        """Wait until the source has been transcribed, and return what is said in it, in the order of time."""
        return await self._store.utterances((await self._done("transcript")).id)

    async def texts(self, kinds: Collection[Kind]) -> dict[Kind, list[Segment]]:
        """Wait until all of these kinds of texts have been made that the run makes, and return them."""
        made = [kind for kind in self._jobs if kind in kinds]
        return {kind: await self._store.texts(kind, (await self._done(kind)).id) for kind in made}

    async def shots(self) -> list[Section] | None:
        """Wait until its shots have been looked for, and return them; see `Siblings.shots`."""
        job = await self._done("shots")
        if job.error and job.error.is_missing_stream:
            return None
        # A damaged video has the shots of what is there; those of a job that will be tried again may become others.
        if job.error and (job.missing or not job.opened or job.error.type == RequestRefused.__name__):
            raise MediaError(f"its shots are not known: {job.error.message}")
        return await self._store.shots(job.id)

    async def _done(self, kind: Kind) -> Job:
        """Wait until a track has done its job, and return it."""
        task = self.tasks.get(kind)
        # Shielded, so that a track that is cancelled while it waits does not cancel the other one.
        return await asyncio.shield(task) if task else self._jobs[kind]


async def _gather(tasks: Sequence[asyncio.Task[Job]]) -> list[Job]:
    """Return the results of all tasks. If one raises an error, the others are cancelled.

    If it raises Stopped, the others are not cancelled: they stop by themselves once their requests in flight are saved.
    """
    if len(tasks) == 1:
        return [await tasks[0]]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(isinstance(task.exception(), Stopped) for task in done):
            done, _ = await asyncio.wait(tasks)
        errors = [error for task in done if (error := task.exception())]
        if errors:
            # An error that prevents the run from going on matters more than that the run was stopped.
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
        return [task.result() for task in tasks]
    finally:
        await cancel_all(tasks)


async def _file_stats(paths: list[str]) -> Sequence[str | Exception]:
    """Return the `file_stat` of files, or the error of one.

    A disk that does not answer stops it, as it would soon stop many threads.
    """

    def stat_of(path: str) -> str | Exception:
        try:
            return file_stat(path)
        except Exception as error:  # noqa: BLE001 - it is not that of the other files
            return error

    return await asyncio.to_thread(lambda: [stat_of(path) for path in paths])
