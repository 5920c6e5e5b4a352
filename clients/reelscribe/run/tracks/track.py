"""A track: it makes one kind of annotations of each source of a run, and saves them in the ledger.

It takes the sources one by one, many of them at the same time. A decode process reads a source, its batches go to the
model, and each answer is saved as soon as it arrives. Batches of short sources share requests. A track needs no limits
of its own: its client limits the requests in flight, and a batch that may not be sent yet keeps its slot, so its decode
process waits too. `medium.py` says what differs between kinds of annotations.

What a track makes of a source follows from a `PlannedTrack`, which is the track as the driver of a run knows it
(planned.py): that of the run, or one with options that a list has chosen for the source. All sources share the decode
processes of the track and its connections to the model.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from reelscribe.client import endpoint
from reelscribe.client.in_flight import MOST_REQUESTS
from reelscribe.client.joining import JoinedRequests
from reelscribe.client.models import ModelClient
from reelscribe.client.operations import Operation
from reelscribe.contract import shared_memory
from reelscribe.contract.outcomes import Segment, SourceError, Utterance, source_error
from reelscribe.contract.source import Header, Section, Source, VideoInfo, content_name
from reelscribe.decode_pool.commands import DecodedBatch, Opened, items_per_request
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, ServerError, SourceChanged
from reelscribe.reporting.counters import Counters, Resources
from reelscribe.reporting.node_meter import NodeMeter, TrackMeter
from reelscribe.reporting.units import Counts
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedVideo
from reelscribe.results.records import Kind
from reelscribe.run.store import Store
from reelscribe.run.tracks.medium import Medium, Options
from reelscribe.run.tracks.planned import PlannedTrack
from reelscribe.thumbnails.store import ThumbnailTask


class Stopped(Exception):
    """The run was stopped before a source was done."""


class Siblings(Protocol):
    """The results of the other tracks of a run for a source."""

    async def utterances(self) -> list[Utterance]:
        """Wait until the source has been transcribed, and return what is said in it, in the order of time."""

    async def texts(self, kinds: Collection[Kind]) -> dict[Kind, list[Segment]]:
        """Wait until all of these kinds of texts have been made that the run makes, and return them."""

    async def shots(self) -> list[Section] | None:
        """Wait until its shots have been looked for, and return them, in order; None if it has no pictures.

        Raises:
            MediaError: They could not be found.
        """


@dataclass(frozen=True)
class Assignment:
    """A source, and what a track makes of it."""

    source: Source
    """The source."""
    planned: PlannedTrack
    """The track with the options for the source."""
    settings_id: int
    """Number in the ledger of the model with its settings."""


class Track:
    """Makes one kind of annotations of each source. `run.node.enter_tracks` opens all tracks of a node."""

    planned: PlannedTrack
    """The track as a driver knows it, with the options of the run. It and the pool exist after entry."""
    pool: DecodePool
    """The decode processes of the track."""

    def __init__(self, options: Options, client: ModelClient[Any] | None = None) -> None:
        """Create a track.

        Args:
            options: The options, whose type says of which medium the track is.
            client: The open client of the model; None if the medium needs none.
        """
        self.options = options
        self._client = client
        self._clients: list[ModelClient[Any]] = [client] if client else []
        """That client, and after entry that of the second model, if there is one."""
        self._joined: dict[Hashable, JoinedRequests[Any, Any]] = {}
        """What forms requests, for each `Options.request_key` and of the two models; none without a model."""
        self._request_items = 1
        """Number of items of a full request."""
        self._thumbnails: tuple[str, int | None] | None = None
        """The folder and the number of thumbnails that are kept; None if none are."""
        self._until_exit = AsyncExitStack()
        self._processes: tuple[int, str, int] = (0, "", 0)
        """Number of decode processes, why it has so many, and the largest number for which there are cores."""
        self._reading = 0
        """Number of sources that are being decoded, or wait for a process."""
        self._stopping = False

    async def connect(self, stack: AsyncExitStack) -> None:
        """Ask the servers of its models what they are.

        Args:
            stack: Closes what is opened for that.

        Raises:
            ServerError: No server answers.
            UsageError: The model does not support the options.
        """
        if self._client and self.options.second_model:
            second = self._client.beside(self.options.second_model)
            self._clients.append(await stack.enter_async_context(second))
        descriptions: list[Any] = [await client.describe() for client in self._clients]
        self._medium = self.options.medium(self.options, *(descriptions or [None]))
        self._medium.settings()  # what a model does not support is refused before anything begins
        if self._client and (operation := self._medium.operation()):
            await self._client.check_accepted(operation)

    @property
    def cores_of_servers(self) -> int:
        """Number of cores that the workers of its models keep busy on this machine."""
        here = shared_memory.machine() or None
        return sum(each.cores for client in self._clients for each in client.descriptions if each.machine == here)

    def decode_with(self, processes: int, why: str, cores: int) -> None:
        """Choose the number of decode processes. Call it before entry.

        Args:
            processes: The number.
            why: Its reason in words; empty if the user has chosen it.
            cores: Largest number for which there are cores, beside the other tracks.
        """
        self._processes = processes, why, cores

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            medium, (processes, why, _) = self._medium, self._processes
            description = medium.description
            most_requests = (self._client.requests_in_flight or MOST_REQUESTS) if self._client else 0
            self.pool = self.options.pool(processes, description, most_requests)
            for client in self._clients:
                stack.enter_context(client.sharing(self.pool.memory))
            if self._client:
                most, item_bytes = self.options.batch_size(description), self.options.item_bytes(description)
                self._request_items = items_per_request(self.pool.slot_bytes, item_bytes, most)
                self._client.expect_requests(self._request_items)
            self.planned = PlannedTrack(medium, self.pool.workers, why)
            await self.pool.__aenter__()
            self._until_exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for joined in self._joined.values():
            await joined.close()
        await self._until_exit.aclose()
        await self.pool.__aexit__(kind, error, trace)

    @property
    def kind(self) -> Kind:
        """The kind of annotations that the track makes."""
        return self.options.medium.kind

    @property
    def counts(self) -> Counts:
        """Unit in which the track's progress is counted."""
        return self.options.medium.counts

    @property
    def needs_audio(self) -> bool:
        """True if recordings without pictures are sources, too."""
        return self.options.medium.needs_audio()

    @property
    def can_keep_thumbnails(self) -> bool:
        """True if its decode processes can keep thumbnails of the frames that they decode."""
        return self.options.medium.keeps_thumbnails

    def count_in(self, meter: NodeMeter) -> None:
        """Connect the track to the meter of its node. Call it once, after entry.

        Args:
            meter: Counts the frames or seconds that are done.
        """
        self._cpu_before = time.process_time()
        self._node_meter = meter
        self._meter: TrackMeter = meter.track(self._resources, self._counters)
        if self._client:
            self._client.on_answer = self._count

    async def begin(self, store: Store) -> None:
        """Connect the track to the place where results are saved. Call it once, after `count_in`.

        Args:
            store: The open ledger of the run, or a link to it.
        """
        self._store = store
        self._settings_id = await store.settings_id(self.planned.settings)

    async def assign(self, source: Source, planned: PlannedTrack) -> Assignment:
        """Return a source as the other methods take it. Call `begin` before.

        Args:
            source: The source.
            planned: The track with the options for the source.
        """
        is_usual = planned.settings_text == self.planned.settings_text
        settings_id = self._settings_id if is_usual else await self._store.settings_id(planned.settings)
        return Assignment(source, planned, settings_id)

    def stop(self) -> None:
        """Stop decoding. Requests in flight are still answered and saved; `work` raises Stopped for everything else.

        An answer about which the same model has to be asked again is not saved, and asked for anew by the next run.
        """
        self._stopping = True
        self.pool.stop()
        for client in self._clients:
            # What is still answered is also followed up by the second model, or it could not be saved.
            client.stop_waiting(for_permits=client is self._client)

    def raise_if_stopping(self) -> None:
        """Raise Stopped after `stop`."""
        if self._stopping:
            raise Stopped

    def share_requests(self, nodes: int) -> None:
        """Leave the other nodes of so many their equal parts of the requests that servers take.

        A second model may have as many as the first, as the requests to each wait for workers of its own. A batch that
        is followed up keeps its slot of shared memory, so together they are no more than there are slots.
        """
        for client in self._clients:
            client.in_flight.share(nodes)

    def keep_thumbnails(self, out: Path, most: int | None) -> None:
        """Keep thumbnails of sources in an output folder, as far as pictures are decoded anyway.

        Args:
            out: The output folder.
            most: Number of thumbnails of a source; None for one of each shot or, if shots are
                not known, one in 5 seconds, at most 12.
        """
        self._thumbnails = os.path.abspath(out), most

    async def job(self, assigned: Assignment) -> Job:
        """Return the job of a source for this model and its settings; the ledger adds it if it is new."""
        return await self._store.job(assigned.source.sha256, assigned.settings_id)

    async def job_to_do(self, assigned: Assignment, *, is_needed: bool = False) -> Job:
        """Return the job of a source, which is what its record shows if the run keeps that (`PlannedTrack.keeps`).

        With `retry_failed`, a job that failed in an earlier run is reopened first.

        Args:
            assigned: The source.
            is_needed: Whether another track has something to do for the source that depends on this one.
        """
        source, planned = assigned.source, assigned.planned
        if self.options.retry_failed or planned.extras:
            text, shown = await self._store.shown(source.path, source.sha256, self.kind) or ("{}", None)
            if shown:
                error_type = shown.error and shown.error.type
                if planned.keeps(json.loads(text), error_type, is_needed=is_needed):
                    return shown
        job = await self.job(assigned)
        if job.done and not job.is_settled(retry_failed=self.options.retry_failed):
            await self._store.reopen(job.id)
            job = await self._with_less_saved(assigned, job)
        return job

    async def job_anew(self, assigned: Assignment) -> Job:
        """Return the job of a source without any results, because what they were made of is made anew."""
        job = await self.job(assigned)
        await self._store.forget(job.id)
        return await self._with_less_saved(assigned, job)

    async def _with_less_saved(self, assigned: Assignment, before: Job) -> Job:
        """Return a job some results of which were deleted, which earlier runs have made and this one makes again."""
        job, total = await self.job(assigned), before.total or 0
        missing = [
            sum((total if span.stop is None else span.stop) - span.first for span in each.missing)
            for each in (before, job)
        ]
        self._meter.count(redone=(missing[1] - missing[0]) / self.planned.medium.items_per_count)
        return job

    async def work(self, assigned: Assignment, job: Job, siblings: Siblings | None = None) -> Job:
        """Decode and send the part of a job that has no results yet, and save its results.

        Args:
            assigned: The source file.
            job: Its job, not done yet.
            siblings: What other tracks make of the source; None if there are none.

        Returns:
            The job as it is now, with the error that it ends with. The ledger does not know yet that it is done.

        Raises:
            Stopped: The run was stopped before the job was done.
            SourceChanged: The file is not the one that was digested.
            ServerError: No server can be used.
            OutputError: The ledger cannot be written.
        """
        options = assigned.planned.options
        utterances: Sequence[Utterance] = ()
        if siblings and options.needs_transcript:
            with self._meter.during("depending"):
                utterances = await siblings.utterances()
        try:
            if job.missing:
                shots: Sequence[Section] | None = job.opened.shots if isinstance(job.opened, SavedVideo) else None
                if siblings and options.needs_shots:
                    with self._meter.during("depending"):
                        shots = await siblings.shots()
                await self._take(assigned, job, shots, utterances)
        except SourceChanged:
            self.raise_if_stopping()
            raise
        except MediaError as error:
            self.raise_if_stopping()
            return await self._ended(assigned, source_error(error, assigned.source.path))
        return await self._ended(assigned)

    async def _ended(self, assigned: Assignment, error: SourceError | None = None) -> Job:
        """Return the job of a source after its last request, with what stopped it, or else with its verdict."""
        medium = assigned.planned.medium
        job, failures = await self._store.outcome(assigned.source.sha256, assigned.settings_id)
        if opened := await medium.concluded(job, self._store):
            await self._store.save_opened(job.id, opened, job.total)
        self._meter.completed(assigned.source.path)
        return replace(job, done=True, error=error or medium.verdict(job, failures))

    async def send(self, assigned: Assignment, batch: DecodedBatch) -> asyncio.Task[SavedBatch]:
        """Wait until a request has room for a batch, which may be shared with other sources, and let the batch join it.

        Until then, its decode process fills one more slot at most, so little is decoded that cannot be sent.

        Args:
            assigned: The source.
            batch: The batch.

        Returns:
            The task that returns the results of the batch. When it ends, the batch is released.

        Raises:
            Stopped: The run was stopped.
        """
        medium, batch = assigned.planned.medium, batch.copy_if_small()
        with ExitStack() as stack:
            stack.callback(batch.release)
            self.raise_if_stopping()
            items = batch.items
            answers = await self._requests(medium).add(items) if len(items) else None
            request = asyncio.create_task(self._answer(medium, batch, items, answers))
            at_end = stack.pop_all()
        request.add_done_callback(lambda _: at_end.close())  # also if it is cancelled before it starts
        return request

    def _requests(
        self, medium: Medium, of_second_model: Callable[[], Operation[Any, Any]] | None = None
    ) -> JoinedRequests[Any, Any]:
        """Return what forms the requests of sources with such options, or those to the second model."""
        key = (medium.options.request_key, of_second_model is not None)
        if not (joined := self._joined.get(key)):
            operation = of_second_model() if of_second_model else medium.operation()
            assert self._clients, "there is a model"
            assert operation, "it answers something"
            client, description = (
                (self._clients[-1], medium.second) if of_second_model else (self._clients[0], medium.description)
            )
            most, nbytes = medium.options.batch_size(description), self.pool.slot_bytes
            joined = JoinedRequests(client, operation, max_items=most, max_bytes=nbytes)
            self._joined[key] = joined
        return joined

    async def _answer(
        self, medium: Medium, batch: DecodedBatch, items: Any, answers: asyncio.Future[list[Any]] | None
    ) -> SavedBatch:
        return medium.results(batch, await self._followed_up(medium, items, await answers) if answers else [])

    async def _followed_up(self, medium: Medium, items: Any, answers: list[Any]) -> list[Any]:
        """Ask what follows the answers to items, and return the answers to all."""
        for follow_up in medium.follow_ups(items, answers):
            if follow_up.asked:
                joined = self._requests(follow_up.medium or medium, follow_up.of_second_model)
                second = await joined.add(list(follow_up.asked.values()))
                if not self._reading:
                    joined.flush()
                for k, answer in zip(follow_up.asked, await second, strict=True):
                    answers[k] = follow_up.merge(answers[k], answer)
        return answers

    async def _take(
        self, assigned: Assignment, job: Job, shots: Sequence[Section] | None, utterances: Sequence[Utterance]
    ) -> None:
        """Decode the missing part of a source and save what the track makes of it.

        Raises:
            MediaError: The file cannot be read, or not to its end. What came before is saved.
        """
        source, path = assigned.source, assigned.source.path
        content = content_name(source.sha256)
        thumbnails = self._thumbnails and ThumbnailTask(self._thumbnails[0], content, self._thumbnails[1])
        sender = SourceSender(self, assigned, job)
        decoding_failed: MediaError | None = None

        def begun() -> None:
            self._meter.begun(path)

        try:
            try:
                with self._reads():
                    command = assigned.planned.medium.read(source, shots, thumbnails, utterances)
                    read = self.pool.read(command, job.missing, begun)
                    async with aclosing(read) as items:
                        async for item in items:
                            if isinstance(item, DecodedBatch):
                                await sender.send(item)
                            else:
                                sender.open(item)
            except MediaError as error:
                decoding_failed = error  # raised later: the batches before it are still sent and saved
            await sender.finish(died=isinstance(decoding_failed, DecoderDied | DecoderStalled))
            if decoding_failed:
                raise decoding_failed
            if not self._client:
                self._count_whole(path, sender.opened)
        except asyncio.CancelledError:
            sender.cancel()
            raise
        finally:
            await sender.close()

    @contextmanager
    def _reads(self) -> Iterator[None]:
        """Count a source as one that is being read. When none is, no batch is coming that requests could wait for."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            if not self._reading:
                for joined in self._joined.values():
                    joined.flush()

    def save_opened(self, path: str, job: Job, opened: Opened) -> asyncio.Future[None]:
        """Save the facts about an opened source; the future is done when they are on the disk."""
        info = opened.info
        rate = info.average_fps if isinstance(info, VideoInfo) else None
        self._node_meter.learn_header(path, Header(info.duration_seconds or None, rate))
        if not self._meter.is_open(path):
            missing = sum(opened.share(span.first, span.stop)[0] for span in job.missing)
            self._meter.opened(path, max(0.0, 1 - missing))
        return self._store.save_opened(job.id, opened.to_save(), opened.total)

    async def save(self, path: str, job: Job, opened: Opened, saved: SavedBatch) -> None:
        """Save the results of a batch of an opened source; returns when they are on the disk."""
        with self._meter.during("saving"):
            await self._store.save_batch(job.id, saved)
        share, seconds = opened.share_of(saved)
        self._meter.saved(path, saved.amount, share, seconds, saved.unsent)

    def _count_whole(self, path: str, opened: Opened) -> None:
        """Count a source whose results are the facts about it."""
        share, seconds = opened.share(0, None)
        self._meter.saved(path, seconds, share, seconds)

    def _resources(self) -> Resources:
        """Return what the track has to work with now."""
        cores = self._processes[-1]
        if not self._client:
            return Resources(self.counts, self.pool.workers, server_workers=0, requests_in_flight=0, cores=cores)
        medium, in_flight = self.planned.medium, self._client.in_flight
        return Resources(
            self.counts,
            self.pool.workers,
            self._client.workers / in_flight.parts,
            in_flight.limit,
            in_flight.wanted,
            in_flight.most,
            sum(client.in_flight.used for client in self._clients),
            medium.description.items_of_call(self._request_items),
            on_cpu=set(medium.description.devices) == {"cpu"},
            cores=cores,
            outage=next((outage for client in self._clients if (outage := client.outage)), None),
        )

    def _counters(self) -> Counters:
        """Return what the decode processes and clients have done, and how long they were busy."""
        return Counters(
            decoded=self.pool.decoded,
            substituted=self.pool.substituted,
            retries=sum(client.retries for client in self._clients),
            with_file=self.pool.assigned_seconds,
            busy=self.pool.busy_seconds,
            digesting=self.pool.digesting_seconds,
            replaced=self.pool.failures,
            client_cpu=time.process_time() - self._cpu_before,
        )

    def _count(self, answer: endpoint.Answer) -> None:
        self._meter.answered(answer)


class SourceSender:
    """The batches of one source on their way to the model and into the ledger, several at a time."""

    opened: Opened
    """Facts about the file, set before the first batch is sent."""

    def __init__(self, track: Track, assigned: Assignment, job: Job) -> None:
        """Begin before the source is opened.

        Args:
            track: The track that takes the source through its model.
            assigned: The source.
            job: Its job.
        """
        self._track, self._assigned, self._path, self._job = track, assigned, assigned.source.path, job
        self._is_saved = True
        """True if all facts about the file are saved, or being saved."""
        self._requests: dict[asyncio.Future[None], asyncio.Task[SavedBatch] | None] = {}
        """The requests in flight, by the futures of their results on the disk; None where what was opened is saved."""

    def open(self, opened: Opened) -> None:
        """Take note of what is known about the file. It is saved with its first batch, or at its end.

        A decode process that dies before its first batch may or may not have told what it has opened, and what is
        saved must not depend on that.
        """
        self.opened = opened
        self._is_saved = False

    async def send(self, batch: DecodedBatch) -> None:
        """Wait until a batch may be sent; its results are saved as soon as it is answered."""
        self._save_opened()
        request = await self._track.send(self._assigned, batch)
        self._requests[asyncio.create_task(self._save(request))] = request
        for saving in [saving for saving in self._requests if saving.done()]:
            del self._requests[saving]
            saving.result()  # raises its error, so that a source whose results cannot be saved is not decoded further

    async def finish(self, *, died: bool) -> None:
        """Return when all results are saved.

        Args:
            died: Whether the decode process died or hung before the end of the file.
        """
        if not died:
            self._save_opened()
        await asyncio.gather(*self._requests)

    def cancel(self) -> None:
        """Cancel the requests that are in flight."""
        for future in self._futures():
            future.cancel()

    async def close(self) -> None:
        """Wait until the requests in flight are saved or have failed."""
        await asyncio.gather(*self._futures(), return_exceptions=True)

    def _futures(self) -> list[asyncio.Future[Any]]:
        return [*self._requests, *(request for request in self._requests.values() if request)]

    def _save_opened(self) -> None:
        if not self._is_saved:
            self._requests[self._track.save_opened(self._path, self._job, self.opened)] = None
            self._is_saved = True

    async def _save(self, request: asyncio.Task[SavedBatch]) -> None:
        try:
            saved = await request
        except ServerError:
            self._track.raise_if_stopping()
            raise
        await self._track.save(self._path, self._job, self.opened, saved)
