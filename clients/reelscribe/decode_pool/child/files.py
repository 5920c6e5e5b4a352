"""Files in a decode process: the digest of one, the header of one, and the one that is kept open between commands.

A run recognises a file by its digest, wherever it is, and forecasts from headers how long its sources are. A long video
is kept open, so that a process reads its packets only once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar

from reelscribe._files import OpenSource, size_in
from reelscribe.contract.source import Header, Source
from reelscribe.errors import MediaError

OpenFile = TypeVar("OpenFile")


def digest_file(path: str, heartbeat: Callable[[], None] = lambda: None) -> Source:
    """Read a whole file and compute its SHA-256.

    Args:
        path: Path of the file.
        heartbeat: Called after each mebibyte.

    Returns:
        The path, the size, the digest, and the `file_stat` of the file.

    Raises:
        MediaError: The file does not exist, is not a regular file, or cannot be read. The message has no path.
        SourceChanged: The file was written to meanwhile.
    """
    digest = hashlib.sha256()
    try:
        if os.path.isdir(path):  # a run replaces folders by the media files in them, unless it cannot read a folder
            os.listdir(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise MediaError("expected a regular file")
        with OpenSource(path) as file:
            while block := file.read(2**20):
                digest.update(block)
                heartbeat()
            file.check()
            return Source(path, size_in(file.stat), digest.hexdigest(), file.stat)
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_header(path: str) -> Header:
    """Read the header of a media file.

    Args:
        path: Path of the file.

    Returns:
        What it says.

    Raises:
        MediaError: The file cannot be read, or is no media file. The message has no path.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait for its other end
        raise MediaError("expected a regular file")
    # Imported here, because processes that only compute digests start faster without FFmpeg.
    import av

    from reelscribe.decode.container import (
        choose_video_stream,
        ffmpeg_reason,
        open_for_ffmpeg,
        open_without_probing,
        stated_seconds,
    )

    with open_for_ffmpeg(path) as file:
        try:
            with open_without_probing(file.name, analyzeduration="1") as container:
                video = choose_video_stream(container)
                rate = video.average_rate or video.guessed_rate if video else 0
                seconds = stated_seconds(container)
                return Header(seconds if seconds > 0 else None, None if rate is None else float(rate))
        except (av.FFmpegError, UnicodeError, ValueError) as error:
            raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None


class KeptFile(Generic[OpenFile]):
    """Holds at most one open file, by the command that it was opened for."""

    def __init__(self) -> None:
        """Begin without a file."""
        self._stack = ExitStack()
        self._key: Any = None
        self._file: OpenFile | None = None

    @property
    def is_open(self) -> bool:
        """True if a file is open."""
        return self._file is not None

    def get(self, key: Any) -> OpenFile | None:
        """Return the file that was opened for this key; None if it is not open."""
        return self._file if key == self._key else None

    def open(self, key: Any, file: AbstractContextManager[OpenFile]) -> OpenFile:
        """Enter a file and keep it, after the one that is open has been closed.

        Args:
            key: What `get` is called with to get it again.
            file: The file, as a context manager that closes it.
        """
        self.close()
        self._file, self._key = self._stack.enter_context(file), key
        return self._file

    def close(self) -> None:
        """Close the file that is open, if there is one."""
        self._stack.close()
        self._file = self._key = None
