"""Finds the sources of a run by the files, folders, globs and addresses that the user names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from typing import NamedTuple

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.errors import MediaError, NoSuchObject, UsageError
from reelscribe.storage.address import (
    SCHEMES,
    check_address,
    is_address,
    is_web_address,
    looks_like_address,
    split_object,
    suffix,
)
from reelscribe.storage.stores import Stores


class Found(NamedTuple):
    """A source that a name stands for."""

    path: str
    """Its path or address."""
    stat: str | None = None
    """The size and version that the list of a store tells; None if they are not known yet."""


def find_sources(
    names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES, stores: Stores | None = None
) -> Iterator[Found]:
    """Yield the sources that names stand for, as they are found.

    Only the names in one folder, the matches of one glob, or one page of a store's list are in memory at a time. A
    source that several names stand for comes several times.

    Args:
        names: Files, folders, globs and addresses. A folder stands for all files below it whose names end in one of
            `suffixes`, sorted; a glob for its matches, sorted; folders that it matches are searched, too. In a store,
            what comes before a slash is a folder.
        suffixes: Endings of media files in lower case, such as ".mp4".
        stores: Those in which addresses are looked for; needed if there are any.

    Raises:
        UsageError: An address cannot be used, or needs a package that is not installed.
        MediaError: A store cannot be listed.
    """
    for name in names:
        yield from _find(name, suffixes, sorted, stores)


def check_names(names: Sequence[str], suffixes: Collection[str], exclude: Sequence[str], stores: Stores) -> None:
    """Check that each name stands for a source, and that not all are left out. Few files are looked at for that.

    Args:
        names: Files, folders, globs and addresses, as for `find_sources`.
        suffixes: Endings of media files in lower case.
        exclude: Globs; sources that fit one of them are left out.
        stores: Those in which addresses are looked for.

    Raises:
        UsageError: A name stands for no source, or no source is left.
    """
    for name in names:
        try:
            if next(_find(name, suffixes, iter, stores), None) is None:
                raise UsageError(f"{name!r}: {_why_nothing(name, suffixes)}")
        except MediaError as error:
            raise UsageError(f"{name!r}: {error}") from None
    left_out = 0
    for found in (found for name in names for found in _find(name, suffixes, iter, stores)):
        if not fits_any(found.path, exclude):
            return
        left_out += 1
    raise UsageError(f"--exclude: expected globs that leave a source, but {', '.join(exclude)} fits all {left_out}")


def fits_any(path: str, globs: Iterable[str]) -> bool:
    """Return whether a path fits one of some globs, as a whole or by the name of the file."""
    return any(fnmatchcase(path, glob) or fnmatchcase(os.path.basename(path), glob) for glob in globs)


def _find(
    name: str, suffixes: Collection[str], order: Callable[[Iterable[str]], Iterable[str]], stores: Stores | None
) -> Iterator[Found]:
    """Yield what a name stands for; `order` puts the matches of a glob into their order."""
    if is_address(name):
        check_address(name)
        yield from _find_stored(name, suffixes, stores or Stores())
    elif os.path.isdir(name):
        yield from map(Found, _media_below(name, suffixes))
    elif os.path.lexists(name):
        yield Found(name)
    else:
        for match in order(glob.iglob(name, recursive=True)):
            if os.path.isdir(match):
                yield from map(Found, _media_below(match, suffixes))
            else:
                yield Found(match)


def _find_stored(address: str, suffixes: Collection[str], stores: Stores) -> Iterator[Found]:
    """Yield the sources that an address stands for: an object, or all media below a folder of a store or in a glob."""
    if is_web_address(address):
        yield Found(address)
        return
    store, key = stores.of(address), split_object(address).key
    if key and not key.endswith("/"):
        try:
            yield Found(address, store.info(address).stat)
        except NoSuchObject:
            pass
        else:
            return
    magic = re.search(r"[*?\[]", key)
    if magic:
        begin, fits = address[: len(address) - len(key) + magic.start()], _pattern_of(key).fullmatch
    else:
        begin, fits = address if not key or key.endswith("/") else f"{address}/", re.compile(".*", re.DOTALL).fullmatch
    for each in store.list(begin):
        base = each.address.rpartition("/")[2]
        if suffix(base) in suffixes and not base.startswith(".") and fits(split_object(each.address).key):
            yield Found(each.address, each.stat)


def _pattern_of(glob: str) -> re.Pattern[str]:
    """Return the pattern of the keys that a glob stands for, and of those below the folders that it stands for."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", glob)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(known.get(part) or translate(part)[4:-3] for part in parts)  # without its "(?s:" and ")\\Z"
    return re.compile(f"{pattern}(?:/.*)?", re.DOTALL)


def _why_nothing(name: str, suffixes: Collection[str]) -> str:
    """Return why a name stands for no file, and what to do."""
    if name == "-":
        return "expected files, folders or globs, as media cannot be read from standard input; write it to a file first"
    if is_address(name):
        return (
            "expected an object, a folder or a glob with media files in the store, found none; media files end in"
            f" {' '.join(sorted(suffixes))} and are not hidden"
        )
    if looks_like_address(name):
        return f"expected files, folders, globs, or addresses with {', '.join(SCHEMES)}; download it first"
    if os.path.isdir(name):
        endings = " ".join(sorted(suffixes))
        return f"expected media files in this folder, found none; media files end in {endings} and are not hidden"
    if glob.has_magic(name):
        return "expected a glob that matches a file, but it matches nothing; check it, and quote it for the shell"
    return "no such file or folder; check the path, or whether its disk is mounted"


def _media_below(folder: str, suffixes: Collection[str]) -> Iterator[str]:
    """Yield media files except hidden ones, and folders that cannot be read, so that their records hold an error.

    The order is that of the paths, as a folder is sorted by the path of what it holds.
    """
    try:
        with os.scandir(folder) as found:
            entries = [(f"{entry.name}/" if _is_folder(entry) else entry.name, entry.is_symlink()) for entry in found]
    except OSError:
        yield folder
        return
    for name, is_link in sorted(entries):
        if not name.endswith("/"):
            if os.path.splitext(name)[1].lower() in suffixes and not name.startswith("."):
                yield os.path.join(folder, name)
        elif not is_link:  # a link may lead into a circle
            yield from _media_below(os.path.join(folder, name[:-1]), suffixes)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
