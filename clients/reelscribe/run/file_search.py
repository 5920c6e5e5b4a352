"""Finds the source files of a run by the files, folders and globs that the user names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.errors import UsageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)


def find_sources(names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES) -> Iterator[str]:
    """Yield the paths of the source files that names stand for, as they are found.

    Only the names in one folder, or the matches of one glob, are in memory at a time. A file that several names stand
    for comes several times.

    Args:
        names: Files, folders and globs. A folder stands for all files below it whose names end in one of `suffixes`,
            sorted; a glob for its matches, sorted; folders that it matches are searched, too.
        suffixes: Endings of media files in lower case, such as ".mp4".
    """
    for name in names:
        yield from _find(name, suffixes, sorted)


def check_names(names: Sequence[str], suffixes: Collection[str], exclude: Sequence[str] = ()) -> None:
    """Check that each name stands for a file, and that not all files are left out. Few files are looked at for that.

    Args:
        names: Files, folders and globs, as for `find_sources`.
        suffixes: Endings of media files in lower case.
        exclude: Globs; files that fit one of them are left out.

    Raises:
        UsageError: A name stands for no file, or no file is left.
    """
    for name in names:
        if next(_find(name, suffixes, iter), None) is None:
            raise UsageError(f"{name!r}: {_why_nothing(name, suffixes)}")
    left_out = 0
    for path in (path for name in names for path in _find(name, suffixes, iter)):
        if not fits_any(path, exclude):
            return
        left_out += 1
    raise UsageError(f"--exclude: expected globs that leave a source, but {', '.join(exclude)} fits all {left_out}")


def fits_any(path: str, globs: Iterable[str]) -> bool:
    """Return whether a path fits one of some globs, as a whole or by the name of the file."""
    return any(fnmatchcase(path, glob) or fnmatchcase(os.path.basename(path), glob) for glob in globs)


def _find(name: str, suffixes: Collection[str], order: Callable[[Iterable[str]], Iterable[str]]) -> Iterator[str]:
    """Yield what a name stands for; `order` puts the matches of a glob into their order."""
    if os.path.isdir(name):
        yield from _media_below(name, suffixes)
    elif os.path.lexists(name):
        yield name
    else:
        for match in order(glob.iglob(name, recursive=True)):
            if os.path.isdir(match):
                yield from _media_below(match, suffixes)
            else:
                yield match


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
