"""A child process that reads one file of unknown content, so that a hostile one costs no more than the child.

The child runs a module of reelscribe with ``python -m``. It reads one line of JSON from standard input, the request,
and writes messages to standard output: a line of JSON, and after it the bytes whose number is its "bytes". A message
with "error" is the last one. The child is killed when it is silent or works for too long, and it ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from reelscribe.errors import DecoderDied, MediaError

SILENT_SECONDS = 20.0
"""Longest time without a message by default, in seconds; starting the child takes a second of it on a busy machine."""

MOST_SECONDS = 7200.0
"""Longest time that a child works, in seconds."""

MEMORY_BYTES = 4 * 2**30
"""Most address space of a child, in bytes. A file can claim pictures of any size."""

LONGEST_LINE = 2**16
"""Longest line of JSON in a message, in bytes."""

MOST_BYTES = 2**20
"""Most bytes after a line."""

POLL_SECONDS = 0.2
"""Time after which a parent that waits looks whether it shall cancel, in seconds."""

_PR_SET_PDEATHSIG = 1


def messages(
    module: str,
    request: dict[str, Any],
    *,
    files: Sequence[int] = (),
    cancelled: threading.Event | None = None,
    seconds: float = MOST_SECONDS,
    silent_seconds: float = SILENT_SECONDS,
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Run a module in a child, and kill the child when the iterator ends, however it ends.

    Args:
        module: Name of a module that calls `serve`.
        request: What it is asked, as JSON.
        files: Descriptors of open files that the child gets, under the same numbers.
        cancelled: Set by another thread to give up; None if nobody does.
        seconds: Longest time that the child works, in seconds.
        silent_seconds: Longest time without a message, in seconds.

    Yields:
        Each message: its JSON, and the bytes after it.

    Raises:
        DecoderDied: The child was killed, or crashed.
        MediaError: The child reports an error, or took too long, or this was cancelled.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=files,
        start_new_session=True,  # Ctrl-C is for the parent to handle
    ) as child:
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(json.dumps(request).encode() + b"\n")
            yield from _read(_Pipe(child, cancelled, time.monotonic() + seconds, silent_seconds))
        finally:
            child.kill()


def _read(pipe: _Pipe) -> Iterator[tuple[dict[str, Any], bytes]]:
    while line := pipe.line():
        message = json.loads(line)
        if "error" in message:
            raise MediaError(message["error"])
        yield message, pipe.exactly(min(message.get("bytes", 0), MOST_BYTES))
    code = pipe.child.wait(SILENT_SECONDS)
    if code:
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise DecoderDied(f"the process that was reading it ended: {how}")


class _Pipe:
    """Reads from a child, with limits."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        cancelled: threading.Event | None,
        deadline: float,
        silent_seconds: float,
    ) -> None:
        self.child, self._cancelled, self._deadline, self._silent_seconds = child, cancelled, deadline, silent_seconds
        self._buffer = b""

    def line(self) -> bytes:
        """Return the next line; b"" at the end."""
        while b"\n" not in self._buffer and len(self._buffer) < LONGEST_LINE and self._fill():
            pass
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def exactly(self, size: int) -> bytes:
        """Return so many bytes."""
        while len(self._buffer) < size:
            if not self._fill():
                raise DecoderDied("the process that was reading it ended early")
        content, self._buffer = self._buffer[:size], self._buffer[size:]
        return content

    def _fill(self) -> bool:
        """Wait for more bytes; return False at the end."""
        assert self.child.stdout is not None
        silent_until = time.monotonic() + self._silent_seconds
        while not select.select([self.child.stdout], [], [], POLL_SECONDS)[0]:
            if self._cancelled and self._cancelled.is_set():
                raise MediaError("it was cancelled")
            if time.monotonic() > min(silent_until, self._deadline):
                raise MediaError("the process that was reading it did not get on and was ended")
        more = os.read(self.child.stdout.fileno(), 2**16)
        self._buffer += more
        return bool(more)


Send = Callable[..., None]
"""Sends a message: its bytes, and the JSON of its keywords."""


def serve(work: Callable[[dict[str, Any], Send], None]) -> None:
    """Run in the child: do what the parent asks, and end.

    Args:
        work: Called with the request and with a function that sends messages. A MediaError of it is sent.
    """
    # A child that hangs in a codec would not notice that its parent is gone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before it could be watched
        sys.exit()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.loads(sys.stdin.buffer.readline())
    # Some codecs print to standard output, so it becomes standard error, and messages go to a copy of the original one.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        try:
            work(request, _sender(replies))
        except MediaError as error:
            _sender(replies)(error=str(error)[:1000])


def _sender(replies: IO[bytes]) -> Send:
    def send(content: bytes = b"", **message: Any) -> None:
        replies.write(json.dumps({**message, "bytes": len(content)}).encode() + b"\n" + content)
        replies.flush()

    return send
