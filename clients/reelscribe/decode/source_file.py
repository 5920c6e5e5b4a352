"""Opening a source file so that FFmpeg reads that file and nothing else, and its digest."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import av

from reelscribe.contract.source import Source
from reelscribe.errors import MediaError

# Damage is reported as MediaError; what the codecs say about every broken packet helps nobody.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Whoever reads a file says that it gets on once in so many packets."""

MISSING_SECONDS = 1.0
"""A file that ends so much before it says it does was cut. Headers are wrong by less."""


@contextmanager
def open_file(path: str) -> Iterator[str]:
    """The name that FFmpeg can open the file at `path` by, as long as the context lasts.

    Raises MediaError if there is no such file, or it is empty or cannot be read.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise MediaError(error.strerror or str(error)) from None
        if os.fstat(file.fileno()).st_size == 0:
            raise MediaError("the file is empty")
        # FFmpeg takes names apart (protocols, encodings); this one is only a number.
        yield f"/dev/fd/{file.fileno()}"


def first_line(error: Exception) -> str:
    """The one line of a library's message that is for people."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


_VIDEO = ".3gp .asf .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv"
_SOUND = ".aac .ac3 .aif .aiff .amr .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus .wav .wma"
VIDEO_SUFFIXES = frozenset(_VIDEO.split())
MEDIA_SUFFIXES = VIDEO_SUFFIXES | frozenset(_SOUND.split())


def digest_file(path: str, heartbeat: Callable[[], None] = lambda: None) -> Source:
    """Size and SHA-256 of a file; `heartbeat` is called as it goes forward.

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
                heartbeat()
            return Source(path, file.tell(), digest.hexdigest())
    except FileNotFoundError as error:
        nothing = "nothing matches this pattern" if glob.has_magic(path) else f"it cannot be read: {error.strerror}"
        raise MediaError(nothing) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
