"""Files, folders and globs as people name them -> the source files of a run."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator

from reelscribe.decode.source_file import VIDEO_SUFFIXES


def find_sources(names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES) -> list[str]:
    """Find the source files that names stand for.

    Args:
        names: Files, folders and globs. A folder stands for the files at any depth below it that end in one of
            `suffixes`, sorted; a glob for what it matches; anything else for itself, whether or not it exists. A folder
            or a glob without media stands for itself too, so that its record says so.
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
    """Yield media files, and folders that cannot be read, so that their records say so. Hidden files are left out."""
    unreadable: list[str] = []
    for parent, _, names in os.walk(folder, onerror=lambda error: unreadable.append(error.filename)):
        for name in names:
            if os.path.splitext(name)[1].lower() in suffixes and not name.startswith("."):
                yield os.path.join(parent, name)
    yield from unreadable
