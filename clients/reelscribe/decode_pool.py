"""Processes that decode, and the memory that their frames arrive in.

A process of its own for each file being read keeps the event loop free, uses every core, and lets a decoder crash
without hurting the run. Frames are not copied: the process writes them into shared memory (`memfd_create`, so nothing
is left behind by any death) and what is sent over HTTP is a view on it.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np

from reelscribe.errors import DecoderDied, MediaError
from reelscribe.media import FrameArray, Source, VideoInfo
from reelscribe.video import VideoTask

SLOTS = 3
"""Per process: one being filled, and two that are on their way or being captioned."""


@dataclass(frozen=True)
class DecodedFrames:
    """Some frames of one video, (N, H, W, 3); they are gone after `release`."""

    frames: FrameArray
    frame_indices: list[int]
    pts_seconds: list[float]
    slot: int
    decoder: Decoder

    def release(self) -> None:
        """Let the process write over them."""
        self.decoder.free(self.slot)


class Decoder:
    """One decode process and its slots."""

    def __init__(
        self, process: asyncio.subprocess.Process, memory: mmap.mmap, slot_bytes: int, complaints: IO[bytes]
    ) -> None:
        self._process, self._memory, self._slot_bytes, self._complaints = process, memory, slot_bytes, complaints
        self._reading = False

    @classmethod
    async def start(cls, slot_bytes: int) -> Decoder:
        """Start a process whose slots hold `slot_bytes` bytes each."""
        fd = os.memfd_create("reelscribe-frames")
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            os.ftruncate(fd, slot_bytes * SLOTS)
            memory = mmap.mmap(fd, slot_bytes * SLOTS)
            arguments = [str(n) for n in (fd, slot_bytes, SLOTS)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "reelscribe.decode_process", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
                pass_fds=[fd],
                start_new_session=True,  # Ctrl-C is for the parent to handle
            )
        except BaseException:
            complaints.close()
            raise
        finally:
            os.close(fd)
        return cls(process, memory, slot_bytes, complaints)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it can be given another file."""
        return self._process.returncode is None and not self._reading

    async def decode(self, task: VideoTask) -> AsyncIterator[Source | VideoInfo | DecodedFrames]:
        """What the file is, what the video is, then its frames, each to be released. Raises MediaError."""
        self._reading = True
        self._order(decode=asdict(task))
        while self._reading:
            answer = await self._answer(task)
            if "source" in answer:
                yield Source(**answer["source"])
            elif "info" in answer:
                yield VideoInfo(**answer["info"])
            elif "frames" in answer:
                yield self._frames(task, **answer["frames"])
            else:
                self._reading = False
                if "error" in answer:
                    raise MediaError(answer["error"])

    def free(self, slot: int) -> None:
        """Tell the process that a slot may be used again."""
        if self._process.returncode is None:
            self._order(free=slot)

    async def wait(self) -> None:
        """Until it has ended."""
        await self._process.wait()

    async def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process.returncode is None:
            self._process.kill()
        await self.wait()
        self._complaints.close()

    def _frames(self, task: VideoTask, slot: int, frame_indices: list[int], pts_seconds: list[float]) -> DecodedFrames:
        shape = (len(frame_indices), task.frame.height, task.frame.width, 3)
        frames: FrameArray = np.ndarray(shape, np.uint8, self._memory, offset=slot * self._slot_bytes)
        return DecodedFrames(frames, frame_indices, pts_seconds, slot, self)

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _answer(self, task: VideoTask) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = await self._process.wait()
        reason = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self._complaints.seek(0)
        *_, last_line = ["", *self._complaints.read().decode(errors="replace").splitlines()]
        raise DecoderDied(f"{task.path}: the process that was decoding it ended: {reason} {last_line[-200:]}".rstrip())


class DecodePool:
    """Up to `workers` decoders, started when first needed and replaced when one dies."""

    def __init__(self, workers: int, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._seats = asyncio.Semaphore(workers)
        self._idle: list[Decoder] = []
        self._all: set[Decoder] = set()

    async def __aenter__(self) -> DecodePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(decoder.kill() for decoder in self._all))

    @asynccontextmanager
    async def decoder(self) -> AsyncIterator[Decoder]:
        """A decoder of one's own for one file."""
        async with self._seats:
            decoder = await self._next()
            try:
                yield decoder
            finally:
                if decoder.ready:
                    self._idle.append(decoder)
                else:  # dead, or in the middle of a file that nobody wants any more
                    await self._discard(decoder)

    async def _next(self) -> Decoder:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.ready:
                return decoder
            await self._discard(decoder)  # it died while nobody looked
        decoder = await Decoder.start(self._slot_bytes)
        self._all.add(decoder)
        return decoder

    async def _discard(self, decoder: Decoder) -> None:
        self._all.discard(decoder)
        await decoder.kill()
