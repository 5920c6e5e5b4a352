"""Open a source file so that FFmpeg reads only this file, and compute the digest of a file."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import av
from av.stream import Stream

from reelscribe.contract.source import Source
from reelscribe.errors import MediaError

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""

_VIDEO = ".3gp .asf .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .mxf .ogv .ts .vob .webm .wmv"
_AUDIO = ".aac .ac3 .aif .aiff .amr .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus .wav .wma"

VIDEO_SUFFIXES = frozenset(_VIDEO.split())
"""Suffixes of video files, with the dot, in lower case."""

MEDIA_SUFFIXES = VIDEO_SUFFIXES | frozenset(_AUDIO.split())
"""Suffixes of video and audio files, with the dot, in lower case."""


@contextmanager
def open_for_ffmpeg(path: str) -> Iterator[str]:
    """Open a file and yield a name under which FFmpeg reads it.

    FFmpeg would take the beginning of some paths for a protocol, and paths must be UTF-8 for it. The name that this
    yields, "/dev/fd/<number>", avoids both.

    Args:
        path: Path of the file.

    Yields:
        The name, which is valid inside the context.

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


def demux(container: av.container.InputContainer, heartbeat: Callable[[], None]) -> Iterator[av.Packet[Stream]]:
    """Read the packets of all streams of an open file, in the order of the file.

    Args:
        container: The open file.
        heartbeat: Called before the first packet and again after every `PACKETS_PER_HEARTBEAT` packets.

    Yields:
        Each packet that has content. The empty ones, which mark the ends of the streams, are left out: a decoder would
        take one for the end of the file.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    for count, packet in enumerate(container.demux()):
        if count % PACKETS_PER_HEARTBEAT == 0:
            heartbeat()
        if packet.size:
            yield packet


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
        if os.path.isdir(path):  # a run replaces folders by the media files in them, so this one has none
            os.listdir(path)  # raises an error that says more, if the folder cannot be read
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
        if glob.has_magic(path):  # a run replaces patterns by the files that match, so no file matches this one
            raise MediaError("nothing matches this pattern") from None
        raise MediaError(f"it cannot be read: {error.strerror}") from None
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
