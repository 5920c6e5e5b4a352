"""What all tracks have in common: the jobs of a track in the ledger, and the places where a run asks it something.

A track makes one kind of annotations. It takes the sources of a run one by one, many of them at the same time, and
saves what it makes of them in the ledger. model_track.py holds what the tracks of models add.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self

from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Header, Source, VideoInfo
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import MediaError, ReelscribeError, RequestRefused, SourceChanged
from reelscribe.reporting.bottleneck import Load, Resources
from reelscribe.reporting.node_meter import NodeMeter
from reelscribe.reporting.track_meter import Readings, TrackMeter
from reelscribe.reporting.units import Counts
from reelscribe.reporting.formatting import count
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.records import Kind, Model
from reelscribe.results.schema import settings_text
from reelscribe.run.planned_track import PlannedTrack
from reelscribe.run.store import Store
from reelscribe.run.tracks.sender import Opened


class Stopped(Exception):
    """The run was stopped before a source was done."""


class Siblings(Protocol):
    """What the other tracks of a run make of a source."""

    async def utterances(self) -> list[Utterance]:
        """Wait until the source has been transcribed, and return what is said in it, in the order of time."""


class Track(ABC, Generic[Opened]):
    """What a run makes of each source. Use it as an async context manager.

    Entering it creates the decode pool. The tracks of models first request the model's description from the servers;
    they raise ServerError if no server answers, and UsageError if the model does not support the options.
    """

    kind: ClassVar[Kind]
    """The kind of annotations that the track makes."""
    counts: ClassVar[Counts]
    """Unit in which the track's progress is counted."""
    extras: frozenset[str] = frozenset()
    """Names of the settings that, when they are on, only add something to results."""
    item: ClassVar[str | None]
    """What its requests are made of, in the singular; None if it sends none."""
    model: Model
    """Name and revision of the model. This attribute and the next two exist after entry."""
    settings: Mapping[str, Any]
    """Everything except the model that decides the results of a source, as JSON."""
    pool: DecodePool
    """The decode processes of the track."""
    planned: PlannedTrack
    """The track as a driver knows it. It exists after `begin`."""

    def __init__(self, *, retry_failed: bool) -> None:
        """Create a track.

        Args:
            retry_failed: Whether to retry sources that ended with an error in an earlier run.
        """
        self._retry_failed = retry_failed
        self._stopping = False

    async def __aenter__(self) -> Self:
        await self._prepare()
        await self.pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pool.__aexit__(kind, error, trace)

    def count_in(self, meter: NodeMeter) -> None:
        """Connect the track to the meter of its node. Call it once, after entry.

        Args:
            meter: Counts the frames or seconds that are done.
        """
        self._cpu_before = time.process_time()
        self._node_meter = meter
        self._meter: TrackMeter = meter.track(self._resources(), self._readings())

    async def begin(self, store: Store) -> None:
        """Connect the track to the place where results are saved. Call it once, after `count_in`.

        Args:
            store: The open ledger of the run, or a link to it.
        """
        self._store = store
        self.planned = self.plan()
        self._settings_id = await store.settings_id(self.job_settings)

    def plan(self) -> PlannedTrack:
        """Return what a driver knows about the track. Call it after entry and `resolve_dependencies`."""
        text = settings_text(self.job_settings)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return PlannedTrack(
            kind=self.kind,
            counts=self.counts,
            choice=self.choice,
            item=self.item,
            items_per_count=self.items_per_count,
            likely_items=self.likely_items,
            settings_text=text,
            extras=self.extras,
            retry_failed=self._retry_failed,
            workers=self.pool.workers,
            costs_key=f"{self.counts}, {digest}, {self.pool.workers} processes",
        )

    @property
    def job_settings(self) -> dict[str, Any]:
        """The model with its settings, by which the ledger knows the track's jobs, as JSON. It exists after entry."""
        return {"model": [self.model.name, self.model.revision], **self.settings}

    def stop(self) -> None:
        """Stop decoding. What is on its way is still saved; `work` raises Stopped for everything else."""
        self._stopping = True
        self.pool.stop()

    def raise_if_stopping(self) -> None:
        """Raise Stopped after `stop`."""
        if self._stopping:
            raise Stopped

    async def job(self, source: Source) -> Job:
        """Return the job of a source for this model and its settings; the ledger adds it if it is new."""
        return await self._store.job(source.sha256, self._settings_id)

    async def job_to_do(self, source: Source) -> Job:
        """Return the job of a source, which is what its record shows if the run keeps that (`PlannedTrack.keeps`).

        With `retry_failed`, a job that failed in an earlier run is reopened first.
        """
        if self._retry_failed or self.extras:
            text, shown = await self._store.shown(source.path, source.sha256, self.kind) or ("{}", None)
            if shown and self.planned.keeps(json.loads(text), shown.error and shown.error.type):
                return shown
        job = await self.job(source)
        if job.done and not job.is_settled(retry_failed=self._retry_failed):
            await self._store.reopen(job.id)
            job = await self.job(source)
        return job

    def resolve_dependencies(self, tracks: Sequence[Track[Any]]) -> None:
        """Take note of all tracks of the run. Called once, when all of them have been entered.

        Raises:
            UsageError: The track needs another one, which is not there.
        """

    async def work(self, source: Source, job: Job, siblings: Siblings) -> Job:  # noqa: ARG002 - few tracks look
        """Decode and send the part of a job that has no results yet, and save its results.

        Args:
            source: The source file.
            job: Its job, not done yet.
            siblings: What other tracks make of the source.

        Returns:
            The job as it is now, with the error that it ends with. The ledger does not know yet that it is done.

        Raises:
            Stopped: The run was stopped before the job was done.
            SourceChanged: The file is not the one that was digested.
            ServerError: No server can be used.
            OutputError: The ledger cannot be written.
        """
        try:
            if job.missing:
                await self._take(source, job)
        except SourceChanged:
            self.raise_if_stopping()
            raise
        except MediaError as error:
            self.raise_if_stopping()
            return replace(await self.job(source), done=True, error=source_error(error))
        job, failures = await self._store.outcome(source.sha256, self._settings_id)
        return replace(job, done=True, error=self._verdict(job, failures))

    @property
    @abstractmethod
    def choice(self) -> str:
        """What the track takes from sources, in words."""

    @property
    @abstractmethod
    def items_per_count(self) -> float:
        """How many of what jobs are counted in, frames or samples, there are in what `counts` names."""

    @property
    @abstractmethod
    def likely_items(self) -> Callable[[float, float], float | None]:
        """Returns how many items a source of a duration and frame rate likely has; it can be sent to a driver."""

    @abstractmethod
    async def _prepare(self) -> None:
        """Set `model`, `settings` and `pool`. Raises ServerError and UsageError as entering the track does."""

    @abstractmethod
    async def _take(self, source: Source, job: Job) -> None:
        """Decode the missing part of a source and save what the track makes of it.

        Raises:
            MediaError: The file cannot be read, or not to its end. What came before is saved.
        """

    @abstractmethod
    def _opened_to_save(self, opened: Opened) -> tuple[SavedSource, int | None]:
        """Return what the ledger keeps about an opened file, and its number of chosen frames or samples if known."""

    @abstractmethod
    def _share(self, opened: Opened, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of a source from `first` to before `stop`, as a fraction (0 to 1) and in seconds."""

    @abstractmethod
    def _verdict(self, job: Job, failures: dict[str, int]) -> SourceError | None:
        """Return the error that a job ends with after its last request; None if it has all results.

        `failures` is the number of failed frames or chunks by reason.
        """

    def save_opened(self, path: str, job: Job, opened: Opened) -> asyncio.Future[None]:
        """Save what is known about an opened source; the future is done when it is on the disk."""
        saved, total = self._opened_to_save(opened)
        info = saved.info
        rate = info.average_fps if isinstance(info, VideoInfo) else None
        self._node_meter.learn_header(path, Header(info.duration_seconds or None, rate))
        if not self._meter.is_open(path):
            missing = sum(self._share(opened, span.first, span.stop)[0] for span in job.missing)
            self._meter.opened(path, max(0.0, 1 - missing))
        return self._store.save_opened(job.id, saved, total)

    def _resources(self) -> Resources:
        """Return what the track has to work with."""
        return Resources(self.counts, self.pool.workers, server_workers=0, requests_in_flight=0)

    def _readings(self) -> Readings:
        """Return what the meter reads from the track."""
        return Readings(load=self._load, decoded=lambda: self.pool.decoded)

    def _load(self) -> Load:
        """Return how long the decode processes and the client were busy; the meter adds what requests took."""
        return Load(
            with_file=self.pool.lent_seconds,
            busy=self.pool.busy_seconds,
            digesting=self.pool.digesting_seconds,
            client_cpu=time.process_time() - self._cpu_before,
        )


def source_error(error: MediaError) -> SourceError:
    """Return the entry in the ledger and in records for an exception."""
    return SourceError(type(error).__name__, str(error))


def incomplete(job: Job, items: str) -> SourceError:
    """Return the error of a job for which a decode process has skipped frames or samples.

    Args:
        job: The job.
        items: "frames" or "samples".
    """
    left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
    return SourceError(
        "MediaError", f"incomplete: nothing is known of the {items} {left}; try again with --retry-failed"
    )


def unanswered(
    failures: Mapping[str, int], item: str, lacks: str, error: type[ReelscribeError] = RequestRefused
) -> SourceError | None:
    """Return the error of a job with items that have no answer; None if there are none.

    Args:
        failures: Why items have none, and how many for each reason.
        item: What has none, such as "clip".
        lacks: What it has none of, such as "description".
        error: Class of the error.
    """
    if not failures:
        return None
    number, reason = sum(failures.values()), next(iter(failures))
    noun, _, of = item.partition(" ")
    items = f"{count(number, noun)}{of and f' {of}'} {'has' if number == 1 else 'have'}"
    return SourceError(error.__name__, f"{items} no {lacks}: {reason}")
