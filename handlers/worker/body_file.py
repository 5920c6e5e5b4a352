"""The body of a request as a file, for libraries that read files, and the limits for reading it.

A few hostile megabytes can keep a library busy for minutes: a long fill that it skips byte by byte, a million empty
chunks, a decoder that begins again and again. So reading a body may take so much processor time, and a library may not
take a file apart into very many very small parts, whatever the format. The processor time is that of the thread, which
does not depend on how busy the machine is. A process that could be killed is no choice for stills: a still would take
longer on its way there than to be decoded.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reelscribe.errors import LimitExceeded

MAX_SECONDS = 10.0
"""The most processor time for reading a body. The largest stills take 1 to 2 s."""

FREE_READS = 10_000
"""Number of reads of a body that may be of any size."""

LEAST_BYTES = 256
"""Bytes that each read after the free ones must have on average. Pillow reads up to three times for a part of a file,
such as a marker of JPEG or a chunk of PNG, of which encoders write one for some kilobytes. It does this in Python, 1 to
4 microseconds for each."""

_limits = threading.local()


@contextmanager
def limited_time() -> Iterator[None]:
    """Limit the processor time for what this thread reads of body files meanwhile."""
    _limits.end = time.thread_time() + MAX_SECONDS
    try:
        yield
    finally:
        _limits.end = math.inf


def _check_time() -> None:
    """Raise LimitExceeded if this thread has read for too long."""
    if time.thread_time() > getattr(_limits, "end", math.inf):
        raise LimitExceeded(
            f"body: at most {MAX_SECONDS:g} s of processor time to read it, got more; save it again with another"
            " program, or send arrays"
        )


class BodyFile(io.RawIOBase):
    """A body as a file, without a copy: all files of a call are open at once."""

    def __init__(self, body: bytes | bytearray) -> None:
        """Open a body at its beginning."""
        self._view = memoryview(body)
        self._position = 0
        self._reads = self._bytes_read = 0

    def readable(self) -> bool:
        """A body can be read."""
        return True

    def seekable(self) -> bool:
        """A body can be sought."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes, by default all.

        Raises:
            LimitExceeded: This took too long, or too many reads.
        """
        _check_time()
        end = len(self._view) if size is None or size < 0 else self._position + size
        piece = bytes(self._view[self._position : end])
        self._position += len(piece)
        self._reads += 1
        self._bytes_read += len(piece)
        if self._reads > FREE_READS + self._bytes_read // LEAST_BYTES:
            raise LimitExceeded(
                f"body: at most {FREE_READS:,} parts (fill bytes, markers, chunks) and one for each {LEAST_BYTES}"
                " bytes, got more; save it again with another program"
            )
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset in bytes, and return the new position."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        if origin + offset < 0:
            raise ValueError(f"expected a position of 0 or more, got {origin + offset}")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position
