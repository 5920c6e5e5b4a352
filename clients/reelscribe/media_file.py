"""Opening a media file, so that FFmpeg takes its name for that file and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import av

from reelscribe.errors import MediaError

# Damage is reported as MediaError; what the codecs say about every broken packet helps nobody.
av.logging.set_level(av.logging.PANIC)

PACKETS_A_BEAT = 100
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
