"""Finds the sources of a run by the files, folders, globs, addresses and lists that the user names."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from reelscribe._files import file_stat
from reelscribe.errors import MediaError, UsageError, printable, reason_of
from reelscribe.reporting.plan import other_files
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.run.source_list import SourceList
from reelscribe.storage.address import (
    SCHEMES,
    check_address,
    file_name,
    file_of,
    is_address,
    is_archive,
    is_member,
    is_stored,
    is_web_address,
    looks_like_address,
)
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.search import MAGIC, find_members, find_objects, leave_out
from reelscribe.storage.stores import Stores


class Found(NamedTuple):
    """A source that a name stands for."""

    path: str
    """Its path or address."""
    stat: str | None = None
    """The size and version that the list of a store tells; None if they are not known yet."""
    modified: float | None = None
    """When it was written, in seconds since 1970, where the list of a store tells it."""
    extra: str | None = None
    """What a list says of it besides, as a JSON object; None if it says nothing."""
    problem: str = ""
    """Why it cannot be a source; empty if it can."""
    row: str = ""
    """The list and the number of its row in a table, such as ``films.csv:17``; empty if it is in none."""


NO_MEMBER = (
    "expected a name without .tar::, which is how a member of an archive is named, and this is none; rename it, or name"
    " its archive"
)
"""Why something that was found cannot be a source."""

Names = Sequence[str | SourceList]
"""Files, folders, globs, addresses and lists of sources."""


@dataclass(frozen=True)
class Selection:
    """Which of the sources that are found belong to a run. All conditions must be met."""

    include: Sequence[str] = ()
    """Globs, one of which must fit the path or the file name of a source; none for all sources."""
    exclude: Sequence[str] = ()
    """Globs, none of which may fit."""
    shard: tuple[int, int] | None = None
    """The number of the part that belongs to the run, from 1 on, and the number of parts; None for all parts. The part
    of a source depends on its name alone."""
    newer_than: float | None = None
    """When a source must have been written at the earliest, in seconds since 1970; None for any time. One of which
    nobody can tell the time belongs to the run."""
    rest_seconds: float = 0.0
    """For how long nobody must have written to a file, in seconds. What is in a store is taken at once."""

    def takes(self, found: Found) -> bool:
        """Return whether a source belongs to the run. What cannot be one always does, so that its record says so."""
        if found.problem:
            return True
        if not self.fits(found) or (self.rest_seconds and not self._has_rested(found.path)):
            return False
        if self.shard:
            number, parts = self.shard
            digest = hashlib.sha256(os.fsencode(found.path)).digest()
            if int.from_bytes(digest[:8], "big") % parts != number - 1:
                return False
        return self.newer_than is None or (written := _modified(found)) is None or written >= self.newer_than

    def fits(self, found: Found) -> bool:
        """Return whether the globs let in a source; they cannot leave out what cannot be one."""
        is_included = not self.include or fits_any(found.path, self.include)
        return bool(found.problem) or (is_included and not fits_any(found.path, self.exclude))

    def _has_rested(self, path: str) -> bool:
        if (file := file_of(path)) is None:
            return True
        try:  # the time of the last change, which programs that copy files cannot set back, but whoever sets the clock
            return abs(time.time() - os.stat(file).st_ctime) >= self.rest_seconds
        except (OSError, ValueError):
            return True  # its record tells why it cannot be read


def _modified(found: Found) -> float | None:
    if found.modified is not None or is_stored(found.path):
        return found.modified
    try:
        return os.stat(found.path).st_mtime
    except (OSError, ValueError):
        return None


def find_sources(
    names: Names, suffixes: Collection[str], stores: Stores, left_out: Counter[str] | None = None
) -> Iterator[Found]:
    """Yield the sources that names stand for, as they are found.

    Only the names in one folder, the matches of one glob, or one page of a store's list are in memory at a time. A
    source that several names stand for comes several times.

    Args:
        names: Files, folders, globs, addresses and lists. A folder stands for all files below it whose names end in
            one of `suffixes`, sorted; a glob for its matches, sorted; folders that it matches are searched, too. In a
            store, what comes before a slash is a folder. What is there under a name that looks like a glob is meant.
        suffixes: Endings of media files in lower case, such as ".mp4".
        stores: Those in which addresses are looked for.
        left_out: Where other files in folders and archives are counted, as `storage.search.leave_out` does; None for
            nowhere.

    Raises:
        UsageError: An address cannot be used, or needs a package that is not installed.
        MediaError: A store cannot be listed.
    """
    search = _Search(suffixes, stores, left_out)
    for name in names:
        yield from search.find(name)


def check_names(names: Names, suffixes: Collection[str], selection: Selection, stores: Stores) -> None:
    """Check that each name stands for a source, and that the globs leave one. Few files are looked at for that.

    Args:
        names: Files, folders, globs, addresses and lists, as for `find_sources`.
        suffixes: Endings of media files in lower case.
        selection: Which sources belong to the run.
        stores: Those in which addresses are looked for.

    Raises:
        UsageError: A name stands for no source, or no source is left.
    """
    if not names:
        raise UsageError("sources: expected files, folders, globs, addresses, or a list by --from; got none")
    search = _Search(suffixes, stores, glance=True)
    firsts = [_first(name, search) for name in names]
    if any(map(selection.fits, firsts)):
        return
    left_out = 0
    for found in (found for name in names for found in search.find(name)):
        if selection.fits(found):
            return
        left_out += 1
    raise UsageError(
        f"--include, --exclude: expected globs that leave a source, but none of {left_out} sources is left by"
        f" {', '.join([*selection.include, *selection.exclude])}"
    )


def _first(name: str | SourceList, search: _Search) -> Found:
    """Return a source that a name stands for. Raises UsageError if there is none."""
    left_out = Counter[str]()
    try:
        first = next(replace(search, left_out=left_out).find(name), None)
    except MediaError as error:
        raise UsageError(f"{name!r}: {error}") from None
    if first is None:
        others = (
            f", but {other_files(left_out)}; video or audio that is named is read whatever its suffix"
            if left_out
            else ""
        )
        raise UsageError(f"{name!r}: {_why_nothing(name)}{others}")
    return first


def with_stats(page: Sequence[Found], stores: Stores) -> list[Found]:
    """Return sources with what tells their versions now; empty for what cannot be read.

    Args:
        page: Some hundred sources; stores are asked about many at a time.
        stores: Those in which they are.
    """
    asked = [found.path for found in page if found.stat is None and not found.problem and is_stored(found.path)]
    stats = dict(zip(asked, stores.stats(asked), strict=True))

    def stat_of(found: Found) -> str:
        return "" if found.problem else stats[found.path] if found.path in stats else file_stat(found.path)

    return [found if found.stat is not None else found._replace(stat=stat_of(found)) for found in page]


def fits_any(path: str, globs: Iterable[str]) -> bool:
    """Return whether a path fits one of some globs, as a whole or by the name of the file.

    Brackets in a glob stand for one of the characters between them, and for themselves, as in ``films [2020]/*``.
    """
    readings = {reading for glob in globs for reading in (glob, glob.replace("[", "[[]"))}
    return any(fnmatchcase(path, glob) or fnmatchcase(file_name(path), glob) for glob in readings)


@dataclass(frozen=True)
class _Search:
    """What finds the sources for which names stand."""

    suffixes: Collection[str]
    """Endings of media files in lower case."""
    stores: Stores
    """Those in which addresses are looked for."""
    left_out: Counter[str] | None = None
    """Where other files in folders and archives are counted; None for nowhere."""
    glance: bool = False
    """Whether what is found comes at once, in any order, and maybe without what lies beside it."""

    def find(self, name: str | SourceList) -> Iterator[Found]:
        """Yield what a name stands for."""
        if isinstance(name, SourceList):
            named: Iterable[Found] = (
                Found(row.name, extra=row.extra, problem=row.problem, row=row.place if row.extra else "")
                for row in name.rows()
            )
        else:
            named = self._named(name)
        for found in map(_with_usable_name, named):
            if is_archive(found.path) and not found.problem:
                yield from map(_with_usable_name, self._members(found))
            else:
                yield found

    def _named(self, name: str) -> Iterator[Found]:
        """Yield the sources and archives that a file, a folder, a glob or an address stands for."""
        if is_address(name):
            check_address(name)
        if is_member(name) or is_web_address(name):
            yield Found(name)
            return
        for found in self._listed(name):
            yield found._replace(problem=NO_MEMBER) if is_member(found.path) else found

    def _listed(self, name: str) -> Iterator[Found]:
        """Yield what a store or a file system has by a name."""
        if is_address(name):
            yield from map(_found, find_objects(name, self.suffixes, self.stores, self.left_out))
            return
        matches = glob.iglob(_glob_of(name), recursive=True) if MAGIC.search(name) else filter(os.path.lexists, [name])
        # The folders that two stars match hold each other, and their files would be counted several times.
        search = replace(self, left_out=None) if "**" in name else self
        for match in matches if self.glance else sorted(matches):
            yield from map(Found, search._below(match) if os.path.isdir(match) else [match])

    def _below(self, folder: str) -> Iterator[str]:
        """Yield media files except hidden ones, and folders that cannot be read, so that their records hold an error.

        The order is that of the paths, as a folder is sorted by the path of what it holds.
        """
        try:
            with os.scandir(folder) as found:
                entries = [
                    (f"{entry.name}/" if _is_folder(entry) else entry.name, entry.is_symlink()) for entry in found
                ]
        except OSError:
            yield folder
            return
        is_of_results = any(name == LEDGER for name, _ in entries)
        search = replace(self, left_out=None) if is_of_results else self
        for name, is_link in sorted(entries):
            path = os.path.join(folder, name)
            if not name.endswith("/"):
                if os.path.splitext(name)[1].lower() in self.suffixes and not name.startswith("."):
                    yield path
                else:
                    leave_out(path, search.left_out)
            elif not is_link:
                yield from search._below(path[:-1])
            elif search.left_out is not None:  # it may lead into a circle
                search.left_out["links to folders"] += 1

    def _members(self, archive: Found) -> Iterator[Found]:
        """Yield the media in an archive, or the archive with the reason why they cannot be found."""
        row = json.loads(archive.extra or "{}")
        members = find_members(archive.path, self.suffixes, self.stores, self.left_out, glance=self.glance)
        while True:
            try:
                each = next(members, None)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other names are looked for
                yield archive._replace(problem=reason_of(error, archive.path))
                return
            if each is None:
                return
            found = _found(each)._replace(row=archive.row)
            yield found._replace(extra=json.dumps(row | json.loads(found.extra or "{}"))) if row else found


def _glob_of(name: str) -> str:
    """Return a glob in which the folders and files that are there have no special characters."""
    known = name
    while known and not os.path.lexists(known):
        known = os.path.dirname(known.rstrip("/"))
    return glob.escape(known) + name[len(known) :]


def _with_usable_name(found: Found) -> Found:
    """Return a source, or why it cannot be one, under a name that can be written."""
    try:
        os.fsencode(found.path)
    except UnicodeError:
        return Found(printable(found.path), problem="expected a name in UTF-8, got half a surrogate pair; rename it")
    return found


def _found(stored: StoredObject) -> Found:
    stat = "" if stored.problem else stored.stat
    return Found(stored.address, stat, stored.modified, stored.extra, stored.problem)


def _why_nothing(name: str | SourceList) -> str:
    """Return why a name stands for no file, and what to do."""
    if isinstance(name, SourceList):
        return "expected a source, found none"
    if name == "-":
        return (
            "expected files, folders or globs, as media cannot be read from standard input; write it to a file first,"
            " or use --from - for a list of names"
        )
    if is_address(name):
        return "expected an object, a folder or a glob with media files in the store, found none"
    if looks_like_address(name):
        return f"expected files, folders, globs, or addresses with {', '.join(SCHEMES)}; download it first"
    if os.path.isdir(name):
        return "expected media files in this folder, found none"
    if glob.has_magic(name):
        return "expected a glob that matches a file, but it matches nothing; check it, and quote it for the shell"
    try:
        os.lstat(name)
    except PermissionError:
        return "you may not look into its folder; expected a file or folder that you may read"
    except (OSError, ValueError):  # ValueError: no file can have this name
        return "no such file or folder; check the path, or whether its disk is mounted"
    return "expected media files in this archive, found none"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
