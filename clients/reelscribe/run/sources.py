"""Finds the source files of a run by the files, folders and globs that the user names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.errors import UsageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)


def find_sources(names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES) -> list[str]:
    """Find the source files that names stand for.

    Args:
        names: Files, folders and globs. A folder stands for all files below it whose names end in one of `suffixes`,
            sorted; a glob for its matches, sorted; folders that it matches are searched, too.
        suffixes: Endings of media files in lower case, such as ".mp4".

    Returns:
        Paths in the order of the names, each file once, by the first of its paths.

    Raises:
        UsageError: A name stands for no file.
    """
    paths: dict[str, str] = {}
    for name in names:
        found = list(_find(name, suffixes, sorted))
        if not found:
            raise UsageError(f"{name!r}: {_why_nothing(name, suffixes)}")
        for path in found:
            paths.setdefault(os.path.abspath(path), path)
    return list(paths.values())


def iter_sources(names: Iterable[str], suffixes: Collection[str], exclude: Collection[str] = ()) -> Iterator[str]:
    """Yield the paths of the source files that names stand for, as they are found.

    What `find_sources` returns in order and once is here in the order of the folders, and may come more than once, so
    that nothing is kept in memory but the names in one folder.

    Args:
        names: Files, folders and globs, as for `find_sources`.
        suffixes: Endings of media files in lower case.
        exclude: Globs; files whose path or name fits one of them are left out.

    Raises:
        UsageError: A name stands for no file; it is found out when the name is reached.
    """
    for name in names:
        found = False
        for path in _find(name, suffixes, iter):
            found = True
            if not any(_fits(path, pattern) for pattern in exclude):
                yield path
        if not found:
            raise UsageError(f"{name!r}: {_why_nothing(name, suffixes)}")


def leave_out(paths: Collection[str], globs: Collection[str]) -> list[str]:
    """Return the paths that fit none of some globs, neither as a whole nor by the name of the file.

    Raises:
        UsageError: No path is left.
    """
    kept = [path for path in paths if not any(_fits(path, glob) for glob in globs)]
    if paths and not kept:
        raise UsageError(f"--exclude: expected globs that leave a source, but {', '.join(globs)} fits all {len(paths)}")
    return kept


def _fits(path: str, glob: str) -> bool:
    return fnmatchcase(path, glob) or fnmatchcase(os.path.basename(path), glob)


def _find(name: str, suffixes: Collection[str], order: Callable[[Iterator[str]], Iterable[str]]) -> Iterator[str]:
    """Yield what a name stands for; `order` puts the files of a folder and the matches of a glob into their order."""
    if os.path.isdir(name):
        yield from order(_media_below(name, suffixes))
    elif os.path.lexists(name):
        yield name
    else:
        for match in order(glob.iglob(name, recursive=True)):
            yield from order(_media_below(match, suffixes)) if os.path.isdir(match) else [match]


def _why_nothing(name: str, suffixes: Collection[str]) -> str:
    """Return why a name stands for no file, and what to do."""
    if name == "-":
        return "expected files, folders or globs, as media cannot be read from standard input; write it to a file first"
    if _ADDRESS.match(name):
        return "expected files, folders or globs on this machine, got an address; download it first"
    if os.path.isdir(name):
        endings = " ".join(sorted(suffixes))
        return f"expected media files in this folder, found none; media files end in {endings} and are not hidden"
    if glob.has_magic(name):
        return "expected a glob that matches a file, but it matches nothing; check it, and quote it for the shell"
    return "no such file or folder; check the path, or whether its disk is mounted"


def _media_below(folder: str, suffixes: Collection[str]) -> Iterator[str]:
    """Yield media files except hidden ones, and folders that cannot be read, so that their records hold an error."""
    unreadable: list[str] = []
    for parent, _, names in os.walk(folder, onerror=lambda error: unreadable.append(error.filename)):
        for name in names:
            if os.path.splitext(name)[1].lower() in suffixes and not name.startswith("."):
                yield os.path.join(parent, name)
    yield from unreadable
