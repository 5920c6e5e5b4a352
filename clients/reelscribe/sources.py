"""What people name on the command line -> the files that are meant."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from reelscribe.errors import MediaError
from reelscribe.media import Source

MEDIA_SUFFIXES = frozenset(
    [
        ".3gp",
        ".asf",
        ".avi",
        ".flv",
        ".m2ts",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".mxf",
        ".ogv",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
    ]
)


def find_sources(names: Iterable[str]) -> list[str]:
    """The paths that `names` stand for, each once, in order.

    A folder stands for the media files below it, sorted; a glob for what it matches; anything else for itself, whether
    or not it exists. A folder or a glob without media stands for itself too, so that its record can say so.
    """
    paths: dict[str, None] = {}
    for name in names:
        if os.path.isdir(name):
            found = sorted(str(path) for path in Path(name).rglob("*") if _is_media(path))
        elif os.path.exists(name):
            found = [name]
        else:
            found = sorted(glob.glob(name, recursive=True))
        paths.update(dict.fromkeys(found or [name]))
    return list(paths)


def _is_media(path: Path) -> bool:
    """Also what cannot be read, such as a broken link, so that it is told of; hidden files are other programs' own."""
    return path.suffix.lower() in MEDIA_SUFFIXES and not path.name.startswith(".") and not path.is_dir()


def identify(path: str, beat: Callable[[], None] = lambda: None) -> Source:
    """Size and SHA-256 of a file; `beat` is called as it goes forward.

    Raises MediaError, without the path, if there is no such file or it cannot be read.
    """
    if os.path.isdir(path):
        raise MediaError(f"a folder without media; expected files that end in {', '.join(sorted(MEDIA_SUFFIXES))}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise MediaError("expected a regular file")
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                beat()
            return Source(path, file.tell(), digest.hexdigest())
    except OSError as error:
        raise MediaError(f"it cannot be read: {error.strerror or error}") from None
