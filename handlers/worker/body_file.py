"""The body of a request as a file, for libraries that read files."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

_BUFFER_BYTES = 2**16
"""Libraries read a few bytes at a time, and each read beyond this buffer runs Python code."""


def body_file(body: bytes | bytearray) -> BinaryIO:
    """Open a body as a file without copying it, as BytesIO would: all files of a call are open at once.

    Args:
        body: The bytes of the file.

    Returns:
        A file that can be read and sought.
    """
    return io.BufferedReader(_Body(body), _BUFFER_BYTES)


class _Body(io.RawIOBase):
    """A view of the bytes, with a position."""

    def __init__(self, body: bytes | bytearray) -> None:
        self._view = memoryview(body)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._view[self._position : self._position + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        if origin + offset < 0:
            raise ValueError(f"expected a position of 0 or more, got {origin + offset}")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position
