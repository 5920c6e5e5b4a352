"""The plan of a run: its sources, how much of each was done before, and how long each of them is.

What the ledger knows is read at once. The durations of all other sources are in their headers, which a process of its
own reads while the run goes on. It begins with the last source, because the tracks begin with the first and tell the
durations of those that they open.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import MediaError
from reelscribe.reporting.forecast import SourceSize
from reelscribe.reporting.meter import Meter
from reelscribe.reporting.outlook import Choice, Outlook
from reelscribe.results.known_files import KnownFiles, KnownJob
from reelscribe.results.ledger import Ledger, file_stat, size_in
from reelscribe.run.track import Track

USUAL_FRAMES_PER_SECOND = 25.0
"""Frame rate of videos whose headers have not been read in this run."""


@dataclass(frozen=True)
class PlannedShare:
    """How much of a source is done for one model."""

    share: float = 0.0
    """Fraction of it (0 to 1)."""
    amount: float = 0.0
    """Frames or seconds of audio; 0 for a copy of a source before it."""
    done: bool = False
    """Whether nothing is left to do."""


@dataclass(frozen=True)
class PlannedSource:
    """A source of a run, as far as it is known before it is opened."""

    path: str
    stat: str
    """Its `file_stat`; empty if there is none."""
    size: SourceSize
    probed: bool
    """Whether its header has been read before."""
    done: tuple[PlannedShare, ...]
    """How much of it is done, for each model."""

    @property
    def is_done(self) -> bool:
        """Whether earlier runs have done all of it."""
        return all(each.done for each in self.done)


@dataclass(frozen=True)
class Plan:
    """The sources of a run."""

    sources: list[PlannedSource]
    excluded: int
    """Number of sources that are left out."""

    @property
    def paths(self) -> list[str]:
        """The paths of the sources, in order."""
        return [source.path for source in self.sources]

    @property
    def before(self) -> list[str]:
        """The paths of the sources that earlier runs have done."""
        return [source.path for source in self.sources if source.is_done]


def make_plan(
    paths: Sequence[str],
    out: Path,
    tracks: Sequence[Track[Any, Any, Any, Any, Any]],
    *,
    excluded: int = 0,
    limit: int | None = None,
) -> Plan:
    """Choose the sources of a run, and look up in the ledger what is known about them.

    Args:
        paths: All sources that the user names.
        out: Folder of the run, in which there may be a ledger.
        tracks: The models of the run, entered.
        excluded: Number of sources that have been left out of the paths.
        limit: Largest number of sources, of those that are not done; None for all sources, done or not.

    Raises:
        OutputError: The ledger cannot be read.
    """
    known = KnownFiles(out, [track.job_settings for track in tracks])
    seen: set[str] = set()
    sources = [_look_up(path, known, tracks, seen) for path in paths]
    if limit is not None:
        sources = [source for source in sources if not source.is_done][:limit]
    return Plan(sources, excluded + len(paths) - len(sources))


def _look_up(
    path: str, known: KnownFiles, tracks: Sequence[Track[Any, Any, Any, Any, Any]], seen: set[str]
) -> PlannedSource:
    video = os.path.splitext(path)[1].lower() in VIDEO_SUFFIXES
    try:
        stat = file_stat(path)
    except (OSError, ValueError):
        stat = ""
    probed, seconds = known.duration(path, stat)
    size = SourceSize("video" if video else "audio", size_in(stat) if stat else 0, seconds)
    sha256 = known.digest(path, stat) if stat else None
    done = (PlannedShare(),) * len(tracks)
    if sha256:
        jobs = [known.job(sha256, number) for number in range(len(tracks))]
        done = tuple(_share(job, track, seconds) for job, track in zip(jobs, tracks, strict=True))
        if sha256 in seen:  # its results count once, and nothing is left to do for it
            done = tuple(replace(each, share=1.0, amount=0.0) for each in done)
        seen.add(sha256)
    return PlannedSource(path, stat, size, probed, done)


def _share(job: KnownJob | None, track: Track[Any, Any, Any, Any, Any], seconds: float | None) -> PlannedShare:
    if job is None:
        return PlannedShare()
    amount = job.saved / track.items_per_count
    total = amount if job.total is None else job.total / track.items_per_count
    if job.total is None and seconds:
        total = seconds
    if job.done and track.retries(job.error_type):
        return PlannedShare(0.0, amount)
    share = 1.0 if job.done else min(1.0, amount / total) if total else 0.0
    return PlannedShare(share, amount, job.done)


class Outlooks:
    """Finds out how long the sources of a plan are, and what a run has before it."""

    def __init__(self, plan: Plan, tracks: Sequence[Track[Any, Any, Any, Any, Any]], meter: Meter) -> None:
        """Tell a meter what to expect.

        Args:
            plan: The sources.
            tracks: The models of the run. They count in `meter`.
            meter: The meter of the run.
        """
        self._plan, self._tracks, self._meter = plan, tracks, meter
        self._rates: dict[str, float] = {}
        """Frames per second of the videos whose headers were read; 0.0 for recordings."""
        for source in plan.sources:
            for track, done in zip(meter.tracks, source.done, strict=True):
                track.expect(source.path, source.size, 1.0 if done.done else done.share, done.amount)
            if source.size.seconds is not None:
                meter.learn_duration(source.path, source.size.seconds)

    async def find_durations(self, ledger: Ledger | None = None, processes: int = 1) -> None:
        """Read the headers of all sources whose durations are not known, in decode processes of their own.

        Args:
            ledger: Where durations are kept for later runs; None to keep none.
            processes: Number of processes.
        """
        unknown = iter([source for source in reversed(self._plan.sources) if not source.probed and source.stat])
        if (first := next(unknown, None)) is None:
            return

        async def read_headers(source: PlannedSource | None) -> None:
            while source:
                await self._find_duration(source, pool, ledger)
                source = next(unknown, None)

        # Nothing is written to its slots.
        async with DecodePool(processes, 1, 0) as pool:
            begun = [first, *(next(unknown, None) for _ in range(processes - 1))]
            await asyncio.gather(*(read_headers(source) for source in begun))

    async def _find_duration(self, source: PlannedSource, pool: DecodePool, ledger: Ledger | None) -> None:
        seconds = self._meter.durations.get(source.path)  # a track may have opened it meanwhile
        if seconds is None:
            try:
                probe = await pool.probe_file(source.path)
            except MediaError:
                pass  # the track that opens it says what is wrong
            else:
                seconds = probe.seconds or None
                self._rates[source.path] = probe.frames_per_second or 0.0
        if seconds is not None:
            self._meter.learn_duration(source.path, seconds)
        if ledger:
            await ledger.save_duration(source.path, source.stat, seconds)

    def outlook(self) -> Outlook:
        """Return what the run has before it, by what is known now."""
        durations = self._meter.durations
        paths = self._plan.paths
        return Outlook(
            sources=len(paths),
            before=len(self._plan.before),
            excluded=self._plan.excluded,
            media_seconds=sum(durations.get(path, 0.0) for path in paths),
            unknown=sum(path not in durations for path in paths),
            choices=tuple(self._choice(number) for number in range(len(self._tracks))),
            left=self._meter.time_left(),
        )

    def _choice(self, number: int) -> Choice:
        track = self._tracks[number]
        usual = [rate for rate in self._rates.values() if rate]
        usual_rate = sum(usual) / len(usual) if usual else USUAL_FRAMES_PER_SECOND
        count: float | None = 0.0
        for source in self._plan.sources:
            left = 1 - source.done[number].share
            if not left or count is None or (source.size.kind == "audio" and track.counts == "frames"):
                continue
            rate = self._rates.get(source.path, usual_rate)
            items = track.likely_items(self._meter.durations.get(source.path, 0.0), rate)
            count = None if items is None else count + left * items
        return Choice(track.choice, track.items, None if count is None else math.ceil(count))
