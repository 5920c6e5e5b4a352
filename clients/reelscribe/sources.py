"""What people name on the command line -> the files that are meant."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from reelscribe.errors import MediaError
from reelscribe.media import Source

_VIDEO = ".3gp .asf .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv"
_SOUND = ".aac .ac3 .aif .aiff .amr .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus .wav .wma"
VIDEO_SUFFIXES = frozenset(_VIDEO.split())
MEDIA_SUFFIXES = VIDEO_SUFFIXES | frozenset(_SOUND.split())


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


def identify(path: str, beat: Callable[[], None] = lambda: None) -> Source:
    """Size and SHA-256 of a file; `beat` is called as it goes forward.

    Raises MediaError, without the path, if there is no such file or it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        if os.path.isdir(path):
            os.listdir(path)  # or it says why not
            video, sound = (", ".join(sorted(names)) for names in (VIDEO_SUFFIXES, MEDIA_SUFFIXES - VIDEO_SUFFIXES))
            raise MediaError(
                f"a folder without media; expected files that end in {video}, or, if what is said in them is wanted,"
                f" {sound}"
            )
        if os.path.exists(path) and not os.path.isfile(path):
            raise MediaError("expected a regular file")
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                beat()
            return Source(path, file.tell(), digest.hexdigest())
    except FileNotFoundError as error:
        nothing = "nothing matches this pattern" if glob.has_magic(path) else f"it cannot be read: {error.strerror}"
        raise MediaError(nothing) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
