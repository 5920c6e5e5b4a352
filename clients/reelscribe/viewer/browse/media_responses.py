"""Answers that carry media, an open file or a source in a store, in the ranges that players ask for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Generator, Mapping
from concurrent.futures import Executor, Future

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from reelscribe.viewer.media.media_files import MediaRefused, OpenMedia, StoredMedia
from reelscribe.viewer.media.store_reader import StoreReader

_CACHE = {"Cache-Control": "private, no-cache"}
_RANGE = re.compile("bytes=([0-9]{1,18})-([0-9]{0,18})|bytes=-([0-9]{1,18})")


class OpenFileResponse(FileResponse):
    """The bytes of an open file, or the range of them that a player asks for. It closes the file."""

    chunk_size = 2**18

    def __init__(self, media: OpenMedia, filename: str | None = None) -> None:
        """Prepare the answer.

        Args:
            media: The open file.
            filename: The name under which a browser saves it; None for media, which it plays.
        """
        self._descriptor = media.descriptor
        super().__init__(
            f"/proc/self/fd/{media.descriptor}",  # the very file that is open, whatever its name leads to by now
            headers=None if filename else _CACHE,
            media_type=media.type,
            filename=filename,
            stat_result=os.fstat(media.descriptor),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        if _one_range(Headers(scope=scope).get("range", "")) is None:
            # HTTP lets a server ignore other ranges; Starlette would send several of them, and refuse odd ones.
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"range"]}
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


async def stored_response(request: Request, media: StoredMedia, reader: StoreReader, threads: Executor) -> Response:
    """Return the answer to a request for a source in a store, whose first bytes have come.

    Args:
        request: The request, with the range that it asks for.
        media: The source as the run has read it.
        reader: Reads it.
        threads: Threads that wait for the store.

    Raises:
        MediaRefused: It cannot be read, or not now, or has changed since.
    """
    stored = media.stored
    etag = f'"{hashlib.sha256(stored.stat.encode()).hexdigest()[:32]}"'
    asked = _asked(request.headers, stored.size, etag)
    if asked is not None and not asked:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{stored.size}"})
    wanted = range(stored.size) if asked is None else asked
    headers = {**_CACHE, "Accept-Ranges": "bytes", "Content-Length": str(len(wanted)), "ETag": etag}
    if asked is not None:
        headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{stored.size}"
    status = 200 if asked is None else 206
    if request.method == "HEAD" or not wanted:
        await asyncio.get_running_loop().run_in_executor(threads, reader.check, stored)
        return Response(None, status, headers, media.type)
    reading = _Reading(reader.read(stored, wanted.start), threads)
    try:
        first = await reading.next()
    except BaseException:
        reading.close()
        raise
    return _ReadingResponse(reading, first, len(wanted), status, headers, media.type)


class _Reading:
    """What is being read from a store, in threads. Nothing is read ahead."""

    def __init__(self, pieces: Generator[bytes, None, None], threads: Executor) -> None:
        self._pieces, self._threads = pieces, threads
        self._last: Future[bytes]

    async def next(self) -> bytes:
        """Return the next piece; empty at the end."""
        self._last = self._threads.submit(next, self._pieces, b"")
        return await asyncio.wrap_future(self._last)

    def close(self) -> None:
        """Close the connection, as soon as no thread waits for it any more."""
        self._last.add_done_callback(lambda _: self._pieces.close())


class _ReadingResponse(StreamingResponse):
    """So many bytes of what is being read, as fast as a browser takes them, and until it leaves."""

    def __init__(
        self, reading: _Reading, first: bytes, size: int, status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(self._content(first, size), status, headers, media_type)
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading.close()

    async def _content(self, piece: bytes, size: int) -> AsyncIterator[bytes]:
        try:
            while piece and size > len(piece):
                yield piece
                size -= len(piece)
                piece = await self._reading.next()
            yield piece[:size]
        except MediaRefused:
            return  # the answer breaks off, and the browser asks for the rest


def _one_range(header: str) -> re.Match[str] | None:
    """Return the match of a header `Range` that asks for one range of bytes; None for any other one."""
    match = _RANGE.fullmatch(header.strip())
    return match if match and (not match[2] or int(match[1]) <= int(match[2])) else None


def _asked(headers: Headers, size: int, etag: str) -> range | None:
    """Return which bytes a request asks for: None for all, and an empty range for such as there are not."""
    match = _one_range(headers.get("range", ""))
    if match is None or headers.get("if-range", etag) != etag:
        return None
    if match[3]:
        return range(max(0, size - int(match[3])), size)
    return range(int(match[1]), min(size, int(match[2]) + 1) if match[2] else size)
