"""Open a source file so that FFmpeg reads only this file, and read its packets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import av
from av.stream import Stream

from reelscribe.errors import MediaError

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""


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
