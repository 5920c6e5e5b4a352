"""Open a source file so that FFmpeg reads that file and nothing else, and compute its digest."""

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

# Damage is reported as MediaError. FFmpeg's own messages, one for every broken packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Readers of packets call their heartbeat once in this many packets."""

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends earlier than it states by more than this, in seconds. Wrong headers of complete files
are off by less."""

_VIDEO = ".3gp .asf .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv"
_AUDIO = ".aac .ac3 .aif .aiff .amr .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus .wav .wma"

VIDEO_SUFFIXES = frozenset(_VIDEO.split())
"""Suffixes of video files, with the dot, in lower case."""

MEDIA_SUFFIXES = VIDEO_SUFFIXES | frozenset(_AUDIO.split())
"""Suffixes of video and audio files, with the dot, in lower case."""


@contextmanager
def open_for_ffmpeg(path: str) -> Iterator[str]:
    """Open a file and yield a name under which FFmpeg reads it.

    FFmpeg interprets names: they may start with a protocol, and must be UTF-8. The name that this yields is
    "/dev/fd/<number>" and is valid as long as the context lasts.

    Args:
        path: Path of the file.

    Raises:
        MediaError: The file does not exist, cannot be read, or is empty.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise MediaError(error.strerror or str(error)) from None
        if os.fstat(file.fileno()).st_size == 0:
            raise MediaError("the file is empty")
        yield f"/dev/fd/{file.fileno()}"


def ffmpeg_reason(error: Exception) -> str:
    """Return the first line of an error's message, up to 200 characters, or the name of its class if it has none."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def digest_file(path: str, heartbeat: Callable[[], None] = lambda: None) -> Source:
    """Read a whole file and compute its SHA-256.

    Args:
        path: Path of the file.
        heartbeat: Called after each mebibyte.

    Returns:
        The path, the size and the digest.

    Raises:
        MediaError: The file does not exist, is not a regular file, or cannot be read. The message has no path.
    """
    digest = hashlib.sha256()
    try:
        if os.path.isdir(path):
            os.listdir(path)  # raises the better error if the folder cannot be read
            video, audio = (", ".join(sorted(names)) for names in (VIDEO_SUFFIXES, MEDIA_SUFFIXES - VIDEO_SUFFIXES))
            raise MediaError(
                f"a folder without media; expected files that end in {video}, or, if what is said in them is wanted,"
                f" {audio}"
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
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
