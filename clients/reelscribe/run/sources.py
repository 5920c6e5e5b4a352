"""What people name on the command line -> the source files that are meant."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator

from reelscribe.decode.source_file import VIDEO_SUFFIXES


def find_sources(names: Iterable[str], suffixes: Collection[str] = VIDEO_SUFFIXES) -> list[str]:
    """The paths that `names` stand for, each once, in order.

    A folder stands for the files below it whose names end in one of `suffixes`, sorted; a glob for what it matches;
    anything else for itself, whether or not it exists. A folder or a glob without media stands for itself too, so that
    its record can say so.
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
    """Also folders and links that cannot be read, so that it is told of them; hidden files are other programs' own."""
    unreadable: list[str] = []
    for parent, _, names in os.walk(folder, onerror=lambda error: unreadable.append(error.filename)):
        for name in names:
            if os.path.splitext(name)[1].lower() in suffixes and not name.startswith("."):
                yield os.path.join(parent, name)
    yield from unreadable
