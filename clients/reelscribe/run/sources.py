"""Finds the source files of a run by the files, folders and globs that the user names."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator

from reelscribe.contract.source import VIDEO_SUFFIXES


def find_sources(names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES) -> list[str]:
    """Find the source files that names stand for.

    Args:
        names: Files, folders and globs. A folder stands for all files below it whose names end in one of `suffixes`,
            sorted; a glob for its matches, sorted. Any other name stands for itself even if there is no such file, and
            so does a folder or glob without media: its record then holds an error.
        suffixes: Endings of media files in lower case, such as ".mp4".

    Returns:
        Paths in the order of the names, each once.
    """
    paths: dict[str, None] = {}
    for name in names:
        if os.path.isdir(name):
            found = sorted(_media_below(name, suffixes))
        elif os.path.exists(name):
            found = [name]
        else:
            found = sorted(glob.glob(name, recursive=True))
        paths.update(dict.fromkeys(found or [name]))
    return list(paths)


def _media_below(folder: str, suffixes: Collection[str]) -> Iterator[str]:
    """Yield media files except hidden ones, and folders that cannot be read, so that their records hold an error."""
    unreadable: list[str] = []
    for parent, _, names in os.walk(folder, onerror=lambda error: unreadable.append(error.filename)):
        for name in names:
            if os.path.splitext(name)[1].lower() in suffixes and not name.startswith("."):
                yield os.path.join(parent, name)
    yield from unreadable
