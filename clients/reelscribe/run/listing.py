"""The list of a run's sources: each once, how much of it was done before, and how long it is.

A thread finds the sources while the first of them are leased already, and what the ledger knows is looked up for a page
of them at a time. The list is a table in a file without a name, because a million sources would fill the memory.

The durations of sources that no run has read are in their headers, which a process of its own reads while the run goes
on. It begins with the last source, because nodes begin with the first and tell the durations of those that they open. A
header of a small file takes as long to read as the whole file, so of many small files only some are read, and the
others are taken for as long as those of their size.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, Self

from reelscribe._files import size_in
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import AUDIO_SUFFIXES, Header
from reelscribe.decode_pool.digest_queue import SMALL_BYTES
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import UsageError, is_of_one_source, reason_of
from reelscribe.reporting.plan import Choice, Plan
from reelscribe.reporting.time_left import SourceSize, TimeLeft
from reelscribe.reporting.units import UNITS
from reelscribe.results.jobs import Job
from reelscribe.results.known_files import AskedFile, KnownFile, KnownJob
from reelscribe.results.ledger import Ledger
from reelscribe.results.records import Kind
from reelscribe.results.schema import path_key
from reelscribe.run.file_search import NO_MEMBER, Found, Names, Selection, find_sources, with_stats
from reelscribe.run.tracks.planned import PlannedTrack, for_source, options_in
from reelscribe.storage.address import is_member, is_stored, suffix
from reelscribe.storage.stores import Stores

NAMES_AT_ONCE = 1000
"""Number of sources that are added to the list at once."""

USUAL_FRAMES_PER_SECOND = 25.0
"""Frame rate of videos where no header states one."""

SMALL_FILES = 100
"""Largest number of small files whose headers are read while a run goes on."""

LookUp = Callable[[list[AskedFile]], Awaitable[list[KnownFile]]]
"""Returns what the ledger knows about files."""

_CREATE = """
CREATE TABLE sources (
    number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, name BLOB NOT NULL, stat TEXT NOT NULL, kind TEXT NOT NULL,
    bytes INTEGER NOT NULL, header INTEGER NOT NULL, seconds REAL, rate REAL, sha256 TEXT, is_done INTEGER NOT NULL,
    shares TEXT, jobs TEXT, has_record INTEGER NOT NULL, was_unreadable INTEGER NOT NULL, changed TEXT,
    problem TEXT NOT NULL, options TEXT NOT NULL
)
"""
_ADD = "INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "number, name, stat, kind, bytes, header, seconds, rate, sha256, is_done, shares, jobs, problem, options"
_PAGE = f"SELECT {_COLUMNS} FROM sources WHERE number > ? ORDER BY number LIMIT ?"  # noqa: S608 - the text is our own
_ONE = f"SELECT {_COLUMNS} FROM sources WHERE number = ?"  # noqa: S608 - the text is our own
_LEARN = """
UPDATE sources SET header = max(header, 1), seconds = coalesce(?, seconds), rate = coalesce(?, rate) WHERE key = ?
"""
# Those that could not be read come last: they get the highest numbers.
_LIMIT = """
DELETE FROM sources WHERE number NOT IN (SELECT number FROM sources ORDER BY was_unreadable, number LIMIT ?)
"""
_UNREADABLE_LAST = """
UPDATE sources SET number = number + (SELECT max(number) FROM sources) WHERE was_unreadable
"""
_LENGTHS = """
SELECT kind, bytes <= ?, sum(iif(seconds IS NULL, 0, bytes)), sum(seconds) FROM sources GROUP BY 1, 2
"""
_CHANGED = "SELECT changed, count(*) FROM sources WHERE changed IS NOT NULL GROUP BY changed"
_TOLD = "header = 1 AND stat != '' AND (rate IS NOT NULL OR kind = 'audio')"
_UNKNOWN = "header < 2 AND stat != '' AND (header = 0 OR rate IS NULL AND kind = 'video')"
_NUMBERS = "SELECT number FROM sources WHERE {} ORDER BY number DESC"

_FROM_TRACK, _FROM_LEDGER = 1, 2
"""Where a header was found; 0 if it is not known."""


class Share(NamedTuple):
    """How much of a source is done for one track."""

    share: float = 0.0
    """Fraction of it (0 to 1)."""
    amount: float = 0.0
    """Frames or seconds of audio; 0 for a copy of a source before it."""
    total: int | None = None
    """Number of chosen frames or samples of it; None if it was never opened."""


class ListedSource(NamedTuple):
    """A source of a run, as far as it is known before it is opened."""

    number: int
    path: str
    stat: str
    """Its `file_stat`; empty if there is none."""
    size: SourceSize
    header: Header | None
    """The content of its header; None if it has not been read."""
    sha256: str | None
    """Digest of its content; None if it is not known."""
    is_done: bool
    """True if earlier runs have done all of it."""
    shares: tuple[Share, ...]
    """How much of it is done, for each track."""
    jobs: Mapping[Kind, Job]
    """Its jobs, if it is done."""
    problem: str = ""
    """Why it cannot be a source; empty if it can."""
    options: str = ""
    """Its own options, as `planned.options_in` returns them."""

    @property
    def done_shares(self) -> list[float]:
        """The fraction of it (0 to 1) that is done, for each track."""
        return [each.share for each in self.shares]

    @property
    def done_amounts(self) -> list[float]:
        """Frames or seconds of audio of it that are done, for each track."""
        return [each.amount for each in self.shares]


class _Candidate(NamedTuple):
    """A source that a name stands for, before it is on the list."""

    key: bytes
    """What identifies it."""
    found: Found
    options: str
    """Its own options."""
    tracks: Sequence[PlannedTrack]
    """The tracks of the run, with these."""
    models: Mapping[Kind, str]
    """The model of each, with its settings; none for what cannot be a source."""

    @property
    def asked(self) -> AskedFile:
        """What is asked about it."""
        return AskedFile(self.found.path, self.found.stat or "", self.models)

    def refused(self) -> _Candidate:
        """Return the row as one that cannot be used, because its source is on the list with other options."""
        problem = self.found.problem or (
            f"expected one choice of options for each source, as it has one record, got another one for"
            f" {self.found.path}; keep one row, or name a copy of the file or a link to it"
        )
        row = self.found.row
        return _Candidate(path_key(row), Found(row, "", problem=problem), "", self.tracks, {})


class Listing:
    """The sources of a run. Use it as a context manager; `find` fills it."""

    def __init__(
        self,
        names: Names,
        suffixes: Collection[str],
        selection: Selection | None = None,
        stores: Stores | None = None,
    ) -> None:
        """Begin with an empty list.

        Args:
            names: Files, folders, globs, addresses and lists; a source that several names stand for is listed once, by
                the first of them.
            suffixes: Endings of media files in lower case.
            selection: Which sources belong to the run; None for all.
            stores: Those in which addresses are looked for; None for new ones.
        """
        self._stores = stores or Stores()
        self.left_out: Counter[str] = Counter()
        """Numbers of other files in folders and archives, as `storage.search.leave_out` counts them."""
        sources = find_sources(names, suffixes, self._stores, self.left_out)
        self._sources = self._kept(sources, selection or Selection())
        self._lock = Lock()
        self._tracks: Sequence[PlannedTrack] = ()
        self._taken = self._found = self._last = 0
        """Numbers of the source that was taken last, of the last one that may be taken, and of the last one."""
        self._contents: set[int] = set()
        """Contents of which earlier runs have done something, by the hashes of their digests with their options."""
        self.count = 0
        """Number of sources so far."""
        self.before = 0
        """Number of these that earlier runs have done."""
        self.excluded = 0
        """Number of sources that are left out."""
        self.is_complete = False
        """True if no more sources will come."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            with tempfile.NamedTemporaryFile(prefix="reelscribe-sources-") as file:
                self._database = sqlite3.connect(file.name, isolation_level=None, check_same_thread=False)
                stack.callback(self._database.close)
                self._database.execute("SELECT 1 FROM sqlite_schema")  # opens the file, whose name goes with the block
            self._database.execute("PRAGMA journal_mode = OFF")  # nobody needs it after a crash
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute(_CREATE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._stack.close()

    async def find(
        self,
        tracks: Sequence[PlannedTrack],
        look_up: LookUp,
        limit: int | None = None,
        on_more: Callable[[list[ListedSource]], None] = lambda sources: None,
        save_extras: Callable[[dict[str, str]], Awaitable[None]] | None = None,
    ) -> None:
        """Find all sources, page by page.

        Args:
            tracks: The tracks of the run.
            look_up: Returns what the ledger knows about files.
            limit: Largest number of sources, of those that are not done; those that could not be read before come last.
                None for all sources, done or not.
            on_more: Called with the sources that have been added to the list, in order.
            save_extras: Saves what lists say besides of sources, as JSON objects by their paths; None to save nothing.

        Raises:
            OutputError: The ledger cannot be read.
        """
        self._tracks = tracks
        while (candidates := await asyncio.to_thread(self._find_page)) is not None:
            known = await look_up([each.asked for each in candidates])
            added, extras = await asyncio.to_thread(self._add, candidates, known)
            if extras and save_extras:
                await save_extras(extras)
            if limit is None:
                on_more(added)
                self._found = self._last
        if limit is not None:
            await asyncio.to_thread(self._limit, limit)
            for page in self._pages():
                on_more(page)
            self._found = self._last
        self._contents.clear()
        self.is_complete = True

    def take(self, most: int) -> list[ListedSource]:
        """Return up to so many sources that were not taken yet; none if more are still to be found, or all are."""
        sources = [source for source in self._page(self._taken, most) if source.number <= self._found]
        if sources:
            self._taken = sources[-1].number
        return sources

    def has_taken(self, source: ListedSource) -> bool:
        """Return whether `take` has returned a source."""
        return source.number <= self._taken

    @property
    def is_used_up(self) -> bool:
        """True if all sources have been taken."""
        return self.is_complete and self._taken >= self._last

    @property
    def replaced(self) -> tuple[int, tuple[str, ...]]:
        """Number of sources whose records will show other results, and the names of the settings that differ."""
        rows = self._select(_CHANGED)
        names = {name for changed, _ in rows for name in json.loads(changed)}
        return sum(count for _, count in rows), tuple(sorted(names))

    def count_records(self) -> int:
        """Return the number of sources that had a record when they were listed."""
        return int(self._select("SELECT total(has_record) FROM sources")[0][0])

    def count_others(self, keys: Iterable[bytes]) -> int:
        """Return how many of some keys (`path_key`) are not on the list."""
        others, left = 0, iter(keys)
        while page := list(islice(left, NAMES_AT_ONCE)):
            others += len(page) - len(self._holds(page))
        return others

    def learn_header(self, path: str, header: Header) -> None:
        """Keep the duration and the frame rate of a source; what is None in `header` does not change what is known."""
        with self._lock:
            self._database.execute(_LEARN, (header.seconds, header.frames_per_second, path_key(path)))

    async def read_headers(
        self, on_duration: Callable[[ListedSource, float], None], ledger: Ledger | None = None, processes: int = 1
    ) -> None:
        """Find out the durations and frame rates of sources that nobody has told, in decode processes of their own.

        Args:
            on_duration: Called with each source whose header states its duration, as it was listed, and the duration in
                seconds.
            ledger: Where headers are kept for later runs; then only some of many small files are read. None to keep
                nothing and to read all of them.
            processes: Number of processes.
        """
        # The unknown ones come first: a source that a node opens meanwhile is then in both selections, not in none.
        small = await asyncio.to_thread(self._numbers, f"{_UNKNOWN} AND bytes <= {SMALL_BYTES}")
        large = await asyncio.to_thread(self._numbers, f"{_UNKNOWN} AND bytes > {SMALL_BYTES}")
        if ledger:
            for source in map(self._source, await asyncio.to_thread(self._numbers, _TOLD)):
                await ledger.save_header(source.path, source.stat, source.header or Header(None, None))
            small = small[:: -(-len(small) // SMALL_FILES) or 1]  # evenly spread
        listed = map(self._source, sorted(small + large, reverse=True))
        chosen = (source for source in listed if not is_stored(source.path))  # objects are read once, for a track
        if (first := next(chosen, None)) is None:
            return

        async def read(source: ListedSource | None) -> None:
            while source:
                header = await _read_header(pool, source.path)
                self.learn_header(source.path, header)
                if header.seconds is not None:
                    on_duration(source, header.seconds)
                if ledger:
                    await ledger.save_header(source.path, source.stat, header)
                source = next(chosen, None)

        # Nothing is written to its slots.
        async with DecodePool(processes, 1, 0) as pool:
            begun = [first, *(next(chosen, None) for _ in range(processes - 1))]
            await asyncio.gather(*(read(source) for source in begun))

    def plan(self, left: TimeLeft | None) -> Plan:
        """Return what the run has before it, by what is known now.

        Args:
            left: Likely duration of the run; None if there is none.
        """
        rates = {
            (kind, bool(small)): seconds / size if size else None
            for kind, small, size, seconds in self._select(_LENGTHS, SMALL_BYTES)
        }
        ((usual_rate,),) = self._select("SELECT avg(nullif(rate, 0)) FROM sources")
        total, unknown, estimated = 0.0, 0, False
        items: list[float | None] = [0.0] * len(self._tracks)
        for source in (source for page in self._pages() for source in page):
            seconds = source.size.seconds
            if seconds is None and not source.header and source.stat:
                rate = rates[source.size.kind, source.size.bytes <= SMALL_BYTES]
                seconds = None if rate is None else rate * source.size.bytes
                estimated = estimated or seconds is not None
            total += seconds or 0.0
            unknown += seconds is None
            frame_rate = source.header.frames_per_second if source.header else None
            if frame_rate is None:
                frame_rate = usual_rate or USUAL_FRAMES_PER_SECOND
            for number, track in enumerate(for_source(self._tracks, source.options)):
                items[number] = _with_items(items[number], source, number, track, seconds or 0.0, frame_rate)
        replaced, changed_settings = self.replaced
        return Plan(
            sources=self.count,
            before=self.before,
            excluded=self.excluded,
            replaced=replaced,
            changed_settings=changed_settings,
            media_seconds=total,
            estimated=estimated,
            unknown=unknown,
            choices=tuple(
                Choice(
                    track.medium.choice,
                    track.medium.item,
                    None if count is None else math.ceil(count),
                    UNITS[track.medium.counts].track,
                    track.workers,
                )
                for track, count in zip(self._tracks, items, strict=True)
            ),
            left=left,
            left_out=dict(self.left_out),
            why_processes=next((why for track in self._tracks if (why := track.why_workers)), ""),
        )

    def _kept(self, sources: Iterable[Found], selection: Selection) -> Iterator[Found]:
        for source in sources:
            if selection.takes(source):
                yield source
            else:
                self.excluded += 1

    def _holds(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        """Return those of at most NAMES_AT_ONCE keys that are on the list, with the options of these sources."""
        places = ", ".join("?" * len(keys))
        return dict(self._select(f"SELECT key, options FROM sources WHERE key IN ({places})", *keys))  # noqa: S608

    def _find_page(self) -> list[_Candidate] | None:
        """Return the next sources that are not on the list yet, with what tells their versions; None at the end."""
        if not (page := with_stats(list(islice(self._sources, NAMES_AT_ONCE)), self._stores)):
            return None
        candidates = [self._candidate(found) for found in page]
        listed = self._holds([each.key for each in candidates])
        new: list[_Candidate] = []
        for each in candidates:
            if each.found.row and listed.get(each.key, each.options) != each.options:
                each = each.refused()
                listed |= self._holds([each.key])
            if each.key not in listed:
                listed[each.key] = each.options
                new.append(each)
        return new

    def _candidate(self, found: Found) -> _Candidate:
        """Return a source with the tracks as they are for it. One whose options cannot be used has a problem."""
        key = path_key(found.path)
        if is_member(os.fsdecode(key)) != is_member(found.path):  # a folder above the current one has such a name
            found = found._replace(problem=NO_MEMBER, stat="")
        try:
            options = options_in(found.extra, self._tracks)
            tracks = for_source(self._tracks, options)
            return _Candidate(key, found, options, tracks, {track.kind: track.settings_text for track in tracks})
        except UsageError as error:
            problem = f"{found.row}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the other rows are used
            problem = reason_of(error, found.row or found.path)
        return _Candidate(key, found._replace(problem=problem, stat=""), "", self._tracks, {})

    def _add(
        self, candidates: Sequence[_Candidate], known: Sequence[KnownFile]
    ) -> tuple[list[ListedSource], dict[str, str]]:
        """Add sources to the list; returns them, and what lists say of them besides."""
        pairs = enumerate(zip(candidates, known, strict=True), self._last + 1)
        rows = [self._row(number, candidate, file) for number, (candidate, file) in pairs]
        extras = {found.path: found.extra for _, found, *_ in candidates if found.extra is not None}
        with self._lock:
            self._database.execute("BEGIN")
            self._database.executemany(_ADD, rows)
            self._database.execute("COMMIT")
        added = self._page(self._last, len(rows))
        self._last += len(rows)
        self.count += len(rows)
        self.before += sum(source.is_done for source in added)
        return added, extras

    def _row(self, number: int, candidate: _Candidate, file: KnownFile) -> tuple[Any, ...]:
        """Return the row of a file: what is known about it, and how much of it is done."""
        key, found, options, tracks, _ = candidate
        jobs: dict[Kind, KnownJob] = dict(file.jobs)
        changed: set[str] = set()
        needed: set[Kind] = set()
        # Those that need others come first.
        for track in sorted(tracks, key=lambda track: len(track.options.needs), reverse=True):
            if shown := file.shown.get(track.kind):
                if track.keeps(shown.settings, shown.job.error_type, is_needed=track.kind in needed):
                    jobs[track.kind] = shown.job
                elif not track.retries(shown.job.error_type):
                    changed.update(track.differences(shown.settings))
            if not _is_done(jobs.get(track.kind), track):
                needed |= track.options.needs
        header, stat = file.header or Header(None, None), found.stat or ""
        shares = [_share(jobs.get(track.kind), track, header.seconds) for track in tracks]
        is_done = bool(file.sha256) and all(_is_done(jobs.get(track.kind), track) for track in tracks)
        if file.sha256:
            content = hash((file.sha256, options))
            if content in self._contents:  # its results count once, and nothing is left to do for it
                shares = [share._replace(share=1.0, amount=0.0) for share in shares]
            self._contents.add(content)
        return (
            number,
            key,
            os.fsencode(found.path),
            stat,
            "audio" if suffix(found.path) in AUDIO_SUFFIXES else "video",  # as far as a name tells
            size_in(stat) if stat else 0,
            _FROM_LEDGER if file.header else 0,
            header.seconds,
            header.frames_per_second,
            file.sha256,
            is_done,
            json.dumps(shares) if any(shares) and file.sha256 else None,
            json.dumps({kind: [job.id, job.total, job.error] for kind, job in jobs.items()}) if is_done else None,
            file.has_record,
            file.was_unreadable,
            json.dumps(sorted(changed)) if changed else None,
            found.problem,
            options,
        )

    def _limit(self, most: int) -> None:
        with self._lock:
            self._database.execute("DELETE FROM sources WHERE is_done")
            self._database.execute(_LIMIT, (most,))
            self._database.execute(_UNREADABLE_LAST)
        ((kept, last),) = self._select("SELECT count(*), max(number) FROM sources")
        self.excluded += self.count - self.before - kept
        self.count, self.before, self._last = kept, 0, last or 0

    def _numbers(self, condition: str) -> list[int]:
        """Return the numbers of the sources that meet a condition, the last one first."""
        return [number for (number,) in self._select(_NUMBERS.format(condition))]

    def _source(self, number: int) -> ListedSource:
        return self._listed(self._select(_ONE, number)[0])

    def _pages(self) -> Iterator[list[ListedSource]]:
        """Yield all sources, a page at a time."""
        last = 0
        while page := self._page(last, NAMES_AT_ONCE):
            yield page
            last = page[-1].number

    def _page(self, after: int, most: int) -> list[ListedSource]:
        return [self._listed(row) for row in self._select(_PAGE, after, most)]

    def _select(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()

    def _listed(self, row: tuple[Any, ...]) -> ListedSource:
        number, name, stat, kind, size, header, seconds, rate, sha256, is_done, shares, jobs, problem, options = row
        return ListedSource(
            number,
            os.fsdecode(name),
            stat,
            SourceSize(kind, size, seconds),
            Header(seconds, rate) if header else None,
            sha256,
            bool(is_done),
            tuple(Share(*each) for each in json.loads(shares)) if shares else (Share(),) * len(self._tracks),
            {each: _settled(*job) for each, job in json.loads(jobs).items()} if jobs else {},
            problem,
            options,
        )


def _share(job: KnownJob | None, track: PlannedTrack, seconds: float | None) -> Share:
    if job is None:
        return Share()
    amount = job.searched if track.medium.item is None else job.saved / track.medium.items_per_count
    total = amount if job.total is None else job.total / track.medium.items_per_count
    if job.total is None and seconds:
        total = seconds
    if job.done and track.retries(job.error_type):
        return Share(0.0, 0.0 if track.medium.item is None else amount, job.total)
    share = 1.0 if job.done else min(1.0, amount / total) if total else 0.0
    return Share(share, amount, job.total)


def _is_done(job: KnownJob | None, track: PlannedTrack) -> bool:
    return job is not None and job.done and not track.retries(job.error_type)


def _settled(number: int, total: int | None, error: tuple[str, str] | None) -> Job:
    """Return a job that is done, as `Ledger.save_source` takes it."""
    return Job(number, None, total, done=True, error=SourceError(*error) if error else None, missing=())


def _with_items(
    count: float | None, source: ListedSource, number: int, track: PlannedTrack, seconds: float, frame_rate: float
) -> float | None:
    """Return a count of items to come with those of a source; None if nobody can tell."""
    done = source.shares[number]
    if done.share == 1 or count is None or (source.size.kind == "audio" and UNITS[track.medium.counts].pictures):
        return count
    items = track.medium.likely_items(seconds, frame_rate)
    if done.total is not None and track.medium.item == "frame":
        items = done.total
    return None if items is None else count + (1 - done.share) * items


async def _read_header(pool: DecodePool, path: str) -> Header:
    try:
        return await pool.read_header(path)
    except Exception as error:
        if not is_of_one_source(error):
            raise
        return Header(None, None)  # the track that opens it says what is wrong
