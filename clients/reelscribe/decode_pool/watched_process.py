"""One decode process as its parent sees it: started, given commands, and killed when it hangs.

A process that neither replies nor sends a heartbeat for `stall_seconds` hangs: `DecodeProcess` notices it while it
waits for the next line of replies, kills the process, and raises DecoderStalled. `child_main.py` is the other side.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import IO, Any, Self

from reelscribe.contract.source import Header, Source, Span
from reelscribe.decode_pool.commands import BatchT, OpenedT, ReadCommand, Slots
from reelscribe.errors import (
    DecoderDied,
    DecoderStalled,
    MediaError,
    NoAudio,
    NoPictures,
    SourceChanged,
    StartupError,
)

FILES_PER_PROCESS = 200
"""Number of files, or of portions of files, after which a process is replaced, because codecs leak memory."""

SECONDS_PER_PROCESS = 60.0
"""A process is not replaced before it has worked for so many seconds. A new one takes a third of a second of CPU time
to start, as much as a hundred short files."""

ATTEMPTS = 2
"""Number of times that a source is tried; a process may die or hang for reasons other than the source."""

EXIT_SECONDS = 5.0
"""Seconds to wait for the exit of a killed process, which never comes if it hangs on a disk that does not answer."""

REPLY_BYTES = 2**28
"""Longest line of replies that is accepted, in bytes. The longest replies have the shots of a video: there may be as
many as frames, and each takes about 50 bytes."""


class DecodeProcess:
    """One decode process, which runs `child_main.py`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        slots: Slots,
        stall_seconds: float,
        stderr: IO[bytes],
        warn: Callable[[str], None],
    ) -> None:
        """Wrap a process that `start` has started."""
        self._process, self._slots, self._stall_seconds, self._stderr = process, slots, stall_seconds, stderr
        self._warn = warn
        self.busy_seconds = 0.0
        """Time spent waiting for its replies, in seconds."""
        self.decoded = 0.0
        """Number of frames, or seconds of audio, decoded from files that were read to their ends, wanted or not."""
        self.keeps: object = None
        """The source whose file it has kept open, as the pool sets it; None if there is none."""
        self._replies: deque[dict[str, Any]] = deque()
        self._granted_slot: int | None = None
        self._files = 0
        self._working = False

    @classmethod
    async def start(
        cls,
        slots: Slots,
        stall_seconds: float,
        warn: Callable[[str], None],
        memory_bytes: int | None = None,
    ) -> Self:
        """Start a process.

        Args:
            slots: Shared memory to which it writes frames or samples.
            stall_seconds: Timeout for each reply or heartbeat, after which the process is killed.
            warn: Called with each warning of the process.
            memory_bytes: Limit for its address space; None for none.

        Returns:
            The process, which is ready for commands.

        Raises:
            StartupError: The operating system cannot start it.
        """
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        arguments = [str(n) for n in (slots.memory.fd, slots.slot_bytes, slots.count, os.getpid())]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "reelscribe.decode_pool.child_main",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                # numpy would start a thread for each core, which takes longer than all else of its import.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[slots.memory.fd],
                start_new_session=True,  # Ctrl-C is for the parent to handle
                limit=REPLY_BYTES,
            )
        except OSError as error:
            stderr.close()
            raise StartupError(f"a decode process cannot be started: {error}") from None
        except BaseException:
            stderr.close()
            raise
        if memory_bytes is not None:
            with suppress(ProcessLookupError):  # it has died already, which its first command shows
                resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        return cls(process, slots, stall_seconds, stderr, warn)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """True if it is running and idle, and may read another file."""
        is_worn = self._files >= FILES_PER_PROCESS and self.busy_seconds >= SECONDS_PER_PROCESS
        return self._process.returncode is None and not self._working and not is_worn

    async def digest_files(self, paths: Sequence[str]) -> list[Source | MediaError]:
        """Compute the sizes and SHA-256 of files.

        Args:
            paths: Paths of the files.

        Returns:
            For each file, the path, the size and the digest, or why it cannot be read.

        Raises:
            DecoderDied: The process died. DecoderStalled says that it hung.
        """
        reply = await self._ask(digest_files=paths)
        return [
            Source(**digest["source"]) if "source" in digest else _media_error(**digest["error"])
            for digest in reply["digests"]
        ]

    async def read_header(self, path: str) -> Header:
        """Read the header of a media file.

        Args:
            path: Path of the file.

        Returns:
            What it says.

        Raises:
            MediaError: The file cannot be read; DecoderDied or DecoderStalled if the process died or hung.
        """
        self._files += 1
        return Header(**(await self._ask(read_header=path))["header"])

    async def read(
        self, command: ReadCommand[OpenedT, BatchT], spans: Sequence[Span]
    ) -> AsyncGenerator[OpenedT | BatchT, None]:
        """Read spans of a source.

        Args:
            command: What to read, and how.
            spans: The spans of chosen frames or of samples, in ascending order.

        Yields:
            Facts about the source, at least once, and the batches of the spans in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if the process died or hung.
        """
        self._files += 1
        # In one write: the process wakes up for each.
        slot = {} if self._granted_slot is not None else await self._take_slot()
        self._send(**command.to_json(spans), **slot)
        while "end" not in (reply := await self._next_reply()):
            if "opened" in reply:
                yield (opened := command.parse_opened(reply["opened"]))
            elif "batch" in reply:
                batch = command.parse_batch(reply["batch"], opened, self._slots)
                if batch.slot is not None:
                    self._write(**await self._take_slot())  # so that it keeps decoding while the batch is in use
                yield batch
            elif "fetch" in reply and command.ranges:
                await command.ranges.fetch(*reply["fetch"])
                self._write(fetched=reply["fetch"])
            elif "warning" in reply:
                self._warn(reply["warning"])
            else:
                self._working = False
                raise _media_error(**reply["error"])
        self._working = False
        self.decoded += reply["end"]["decoded"]

    def close_file(self) -> None:
        """Let the process, which is idle, close the file that it has kept open."""
        self._write(close_file={})
        self.keeps = None

    def kill(self) -> None:
        """Kill the process without waiting for its exit."""
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Kill the process, wait for its exit, and give back its slot."""
        self.kill()
        try:
            await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        except TimeoutError:
            return  # the kernel still holds the process, which may write to its slot, so the slot stays taken
        finally:  # also if this is cancelled
            self._stderr.close()
            # What asyncio keeps of the process has no public way to be closed, and would outlive the event loop.
            self._process._transport.close()  # type: ignore[attr-defined]
        if self._granted_slot is not None:
            self._slots.give_back(self._granted_slot)
            self._granted_slot = None

    async def _take_slot(self) -> dict[str, int]:
        """Take another slot for the process to fill, and return the command that grants it.

        If this is cancelled, `_granted_slot` remains the slot that was granted before. That slot may belong to a batch
        that was not yielded and cannot be released, so `close` gives it back.
        """
        self._granted_slot = await self._slots.take()
        return {"slot": self._granted_slot}

    async def _ask(self, **command: Any) -> dict[str, Any]:
        """Send a command that has a single reply, and return the reply. Raises the error that it may be."""
        self._send(**command)
        reply: dict[str, Any] = await self._next_reply()
        self._working = False
        if "error" in reply:
            raise _media_error(**reply["error"])
        return reply

    def _send(self, **command: Any) -> None:
        self._working = True
        self._write(**command)

    def _write(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def _next_reply(self) -> Any:
        """Wait for the next reply that is not a heartbeat."""
        while True:
            while self._replies:
                reply = self._replies.popleft()
                if "heartbeat" not in reply:
                    return reply
            self._replies.extend(json.loads(await self._next_line()))

    async def _next_line(self) -> bytes:
        assert self._process.stdout is not None
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._stall_seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._process.kill()
            raise DecoderStalled(
                f"the process that was decoding it did not get on for {self._stall_seconds:.0f} s and was ended"
            ) from None
        finally:
            self.busy_seconds += time.monotonic() - began
        if not line.endswith(b"\n"):
            raise await self._died()
        return line

    async def _died(self) -> DecoderDied:
        """Make the error for a process that ended: its signal, or its exit status and last line on standard error."""
        code = await self._process.wait()
        if code < 0:
            return DecoderDied(f"the process that was decoding it ended: {signal.Signals(-code).name}")
        self._stderr.seek(0)
        *_, last_line = ["", *self._stderr.read().decode(errors="replace").splitlines()]
        return DecoderDied(f"the process that was decoding it ended: exit status {code} {last_line[-200:]}".rstrip())


def _media_error(type: str, message: str) -> MediaError:  # noqa: A002 - a field of the reply
    types = {"NoPictures": NoPictures, "NoAudio": NoAudio, "SourceChanged": SourceChanged}
    return types.get(type, MediaError)(message)
