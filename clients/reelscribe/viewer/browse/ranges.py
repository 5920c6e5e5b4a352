"""Sends the bytes of an open file, or the range of them that a player asks for."""

from __future__ import annotations

import asyncio
import os
import re
from concurrent.futures import Executor

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reelscribe.viewer.media.media_files import OpenMedia

_CHUNK_BYTES = 2**18
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one after the last of a header `Range`; None if it asks for the whole file.

    Several ranges in one header, and what is no range, count as the whole file, as HTTP allows.

    Args:
        header: The value of the header; empty for none.
        size: Size of the file in bytes.

    Raises:
        ValueError: No byte of the file is in the range.
    """
    match = _RANGE.fullmatch(header.strip())
    if not match or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise ValueError(f"bytes={first}-{last} of {size}")
    return start, stop


class MediaResponse(Response):
    """Answers with the bytes of an open file, which it closes. A slow client costs a chunk of memory, and no thread."""

    def __init__(self, media: OpenMedia, wanted: str, threads: Executor) -> None:
        """Prepare the answer.

        Args:
            media: The open file.
            wanted: The value of the header `Range`; empty for none.
            threads: Where the file is read.
        """
        self._media, self._threads = media, threads
        headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
        self._start, self._stop, status = 0, media.size, 200
        try:
            if found := byte_range(wanted, media.size):
                (self._start, self._stop), status = found, 206
                headers["Content-Range"] = f"bytes {self._start}-{self._stop - 1}/{media.size}"
        except ValueError:
            self._stop, status = 0, 416
            headers["Content-Range"] = f"bytes */{media.size}"
        headers["Content-Length"] = str(self._stop - self._start)
        super().__init__(None, status, headers, media.type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        # A server takes what is sent to a client that is gone, too; without this, the whole file would be read for it.
        gone = asyncio.create_task(wait_for_end(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            at = self._stop if scope["method"] == "HEAD" else self._start
            while at < self._stop and not gone.done():
                count = min(_CHUNK_BYTES, self._stop - at)
                loop = asyncio.get_running_loop()
                chunk = await loop.run_in_executor(self._threads, os.pread, self._media.descriptor, count, at)
                if not chunk:  # the file was cut meanwhile; the connection ends early, so that the player knows
                    raise OSError("the file has become shorter")
                at += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            os.close(self._media.descriptor)


async def wait_for_end(receive: Receive) -> None:
    """Wait until the client of a request has left.

    Args:
        receive: What ASGI has given for the request.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
