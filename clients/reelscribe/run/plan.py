"""The plan of a run: its sources, how much of each was done before, and how long each of them is.

What the ledger knows is read at once. The durations of all other sources are in their headers, which a process of its
own reads while the run goes on. It begins with the last source, because the tracks begin with the first and tell the
durations of those that they open. A header of a small file takes as long to read as the whole file, so of many small
files only some are read, and the others are taken for as long as those of their size.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from reelscribe._files import file_stat, size_in
from reelscribe.contract.source import VIDEO_SUFFIXES, Header
from reelscribe.decode_pool.digest_queue import SMALL_BYTES
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import MediaError
from reelscribe.reporting.forecast import SourceSize
from reelscribe.reporting.meter import Meter
from reelscribe.reporting.outlook import Choice, Outlook
from reelscribe.reporting.units import UNITS
from reelscribe.results.known_files import KnownFiles, KnownJob
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.results.schema import path_key
from reelscribe.run.tracks.track import Track

USUAL_FRAMES_PER_SECOND = 25.0
"""Frame rate of videos where no header states one."""

SMALL_FILES = 100
"""Largest number of small files whose headers are read while a run goes on."""


@dataclass(frozen=True)
class PlannedShare:
    """How much of a source is done for one model."""

    share: float = 0.0
    """Fraction of it (0 to 1)."""
    amount: float = 0.0
    """Frames or seconds of audio; 0 for a copy of a source before it."""
    done: bool = False
    """Whether nothing is left to do."""
    total: int | None = None
    """Number of chosen frames or samples of it; None if it was never opened."""


@dataclass(frozen=True)
class PlannedSource:
    """A source of a run, as far as it is known before it is opened."""

    path: str
    stat: str
    """Its `file_stat`; empty if there is none."""
    size: SourceSize
    header: Header | None
    """What its header says; None if no run has read it."""
    done: tuple[PlannedShare, ...]
    """How much of it is done, for each model."""
    changed_settings: frozenset[str] = frozenset()
    """Names of the settings because of which its record will show other results."""

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
    replaced: int = 0
    """Number of sources whose records will show other results, because settings differ from those of now."""
    changed_settings: tuple[str, ...] = ()
    """Names of these settings."""
    others: int = 0
    """Number of sources with a record in the folder that are not among these."""
    others_failed: int = 0
    """Number of these whose record has an error."""

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
    tracks: Sequence[Track],
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
        limit: Largest number of sources, of those that are not done; those that could not be read before come last.
            None for all sources, done or not.

    Raises:
        OutputError: The ledger cannot be read.
    """
    known = KnownFiles(out, [(track.kind, track.job_settings) for track in tracks])
    seen: set[str] = set()
    sources = [_look_up(path, known, tracks, seen) for path in paths]
    if limit is not None:
        to_do = [source for source in sources if not source.is_done]
        to_do.sort(key=lambda source: known.was_unreadable(source.path))
        sources, excluded = to_do[:limit], excluded + len(to_do[limit:])
    changed = [source.changed_settings for source in sources if source.changed_settings]
    names = tuple(sorted(frozenset().union(*changed)))
    return Plan(sources, excluded, len(changed), names, *_count_others(out, sources))


def _count_others(out: Path, sources: Sequence[PlannedSource]) -> tuple[int, int]:
    """Return how many sources have a record in the folder and are not among these, and how many of them failed."""
    if not (out / LEDGER).exists():
        return 0, 0
    named = {path_key(source.path) for source in sources}
    with LedgerReader(out) as reader:
        errors = [source.error for source in reader.finished() if source.path not in named]
    return len(errors), sum(error is not None for error in errors)


def _look_up(path: str, known: KnownFiles, tracks: Sequence[Track], seen: set[str]) -> PlannedSource:
    video = os.path.splitext(path)[1].lower() in VIDEO_SUFFIXES
    stat = file_stat(path)
    header = known.header(path, stat)
    seconds = header.seconds if header else None
    size = SourceSize("video" if video else "audio", size_in(stat) if stat else 0, seconds)
    sha256 = known.digest(path, stat) if stat else None
    done = (PlannedShare(),) * len(tracks)
    changed = set[str]()
    if sha256:
        jobs = [known.job(sha256, number) for number in range(len(tracks))]
        for number, track in enumerate(tracks):
            if shown := known.shown(path, sha256, number):
                if track.keeps(shown.settings, shown.job.error_type):
                    jobs[number] = shown.job
                elif not track.retries(shown.job.error_type):
                    changed.update(track.differences(shown.settings))
        done = tuple(_share(job, track, seconds) for job, track in zip(jobs, tracks, strict=True))
        if sha256 in seen:  # its results count once, and nothing is left to do for it
            done = tuple(replace(each, share=1.0, amount=0.0) for each in done)
        seen.add(sha256)
    return PlannedSource(path, stat, size, header, done, frozenset(changed))


def _share(job: KnownJob | None, track: Track, seconds: float | None) -> PlannedShare:
    if job is None:
        return PlannedShare()
    amount = job.searched if track.item is None else job.saved / track.items_per_count
    total = amount if job.total is None else job.total / track.items_per_count
    if job.total is None and seconds:
        total = seconds
    if job.done and track.retries(job.error_type):
        return PlannedShare(0.0, amount, total=job.total)
    share = 1.0 if job.done else min(1.0, amount / total) if total else 0.0
    return PlannedShare(share, amount, job.done, job.total)


class Outlooks:
    """Finds out how long the sources of a plan are, and what a run has before it."""

    def __init__(self, plan: Plan, tracks: Sequence[Track], meter: Meter) -> None:
        """Tell a meter what to expect.

        Args:
            plan: The sources.
            tracks: The models of the run. They count in `meter`.
            meter: The meter of the run.
        """
        self._plan, self._tracks, self._meter = plan, tracks, meter
        for source in plan.sources:
            for track, done in zip(meter.tracks, source.done, strict=True):
                track.expect(source.path, source.size, 1.0 if done.done else done.share, done.amount)
            if source.header:
                meter.learn_header(source.path, source.header)

    async def read_headers(self, ledger: Ledger | None = None, processes: int = 1) -> None:
        """Find out the durations and frame rates of sources.

        Tracks have learned them of the sources that they have opened. Of others, headers are read, in decode processes
        of their own.

        Args:
            ledger: Where headers are kept for later runs; then only some of many small files are read. None to keep
                nothing and to read all of them.
            processes: Number of processes.
        """
        unknown = []
        for source in reversed(self._plan.sources):
            if source.header or not source.stat:
                continue
            learned = self._meter.headers.get(source.path)
            if learned is None or (learned.frames_per_second is None and source.size.kind == "video"):
                unknown.append(source)
            elif ledger:
                await ledger.save_header(source.path, source.stat, learned)
        chosen = iter(_without_many_small(unknown) if ledger else unknown)
        if (first := next(chosen, None)) is None:
            return

        async def read(source: PlannedSource | None) -> None:
            while source:
                await self._read_header(source, pool, ledger)
                source = next(chosen, None)

        # Nothing is written to its slots.
        async with DecodePool(processes, 1, 0) as pool:
            begun = [first, *(next(chosen, None) for _ in range(processes - 1))]
            await asyncio.gather(*(read(source) for source in begun))

    async def _read_header(self, source: PlannedSource, pool: DecodePool, ledger: Ledger | None) -> None:
        try:
            header = await pool.read_header(source.path)
        except MediaError:
            header = Header(None, None)  # the track that opens it says what is wrong
        self._meter.learn_header(source.path, header)
        if ledger:
            await ledger.save_header(source.path, source.stat, header)

    def outlook(self) -> Outlook:
        """Return what the run has before it, by what is known now."""
        seconds, durations = self._likely_seconds(), self._durations()
        return Outlook(
            sources=len(self._plan.sources),
            before=len(self._plan.before),
            excluded=self._plan.excluded,
            replaced=self._plan.replaced,
            changed_settings=self._plan.changed_settings,
            media_seconds=sum(each or 0.0 for each in seconds.values()),
            estimated=any(each is not None and path not in durations for path, each in seconds.items()),
            unknown=sum(each is None for each in seconds.values()),
            choices=tuple(self._choice(number, seconds) for number in range(len(self._tracks))),
            left=self._meter.time_left(),
        )

    def _durations(self) -> dict[str, float]:
        """Return the durations of the sources of which they are known, in seconds."""
        headers = self._meter.headers.items()
        return {path: header.seconds for path, header in headers if header.seconds is not None}

    def _likely_seconds(self) -> dict[str, float | None]:
        """Return the durations of all sources; None for those of which nobody can tell."""
        durations = self._durations()
        seconds: dict[str, float | None] = dict(durations)
        rates = {}
        for alike in {_kind(source) for source in self._plan.sources}:
            known = [each for each in self._plan.sources if _kind(each) == alike and each.path in seconds]
            size = sum(source.size.bytes for source in known)
            rates[alike] = sum(durations[source.path] for source in known) / size if size else None
        for source in self._plan.sources:
            rate, read = rates[_kind(source)], source.path in self._meter.headers or not source.stat
            seconds.setdefault(source.path, None if rate is None or read else rate * source.size.bytes)
        return seconds

    def _choice(self, number: int, seconds: Mapping[str, float | None]) -> Choice:
        track = self._tracks[number]
        headers = self._meter.headers
        stated = [rate for header in headers.values() if (rate := header.frames_per_second)]
        usual_rate = fmean(stated) if stated else USUAL_FRAMES_PER_SECOND
        count: float | None = 0.0
        for source in self._plan.sources:
            done = source.done[number]
            if done.share == 1 or count is None or (source.size.kind == "audio" and UNITS[track.counts].pictures):
                continue
            header = headers.get(source.path)
            rate = header.frames_per_second if header else None
            items = track.likely_items(seconds[source.path] or 0.0, usual_rate if rate is None else rate)
            if done.total is not None and track.counts == "frames":
                items = done.total
            count = None if items is None else count + (1 - done.share) * items
        return Choice(track.choice, track.item, None if count is None else math.ceil(count))


def _kind(source: PlannedSource) -> tuple[str, bool]:
    """Return what sources have in common that are about as long for each byte."""
    return source.size.kind, source.size.bytes <= SMALL_BYTES


def _without_many_small(sources: Sequence[PlannedSource]) -> list[PlannedSource]:
    """Leave out small files if there are many, so that at most SMALL_FILES of them are left, evenly spread."""
    small = [source for source in sources if source.size.bytes <= SMALL_BYTES]
    kept = {source.path for source in small[:: -(-len(small) // SMALL_FILES) or 1]}
    return [source for source in sources if source.size.bytes > SMALL_BYTES or source.path in kept]
