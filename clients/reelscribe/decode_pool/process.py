"""One process that decodes, seen from its parent: orders, answers, a deadline for each step, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from typing import IO, Any, Protocol, TypeVar

from reelscribe.contract.source import Source, Span
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, NoPictures, NoSound, StartupError

FILES_PER_PROCESS = 200
"""Then it is replaced: decoders leak, and starting anew takes less than decoding a second of video."""

END_SECONDS = 5.0
"""A process that was killed and waits for a dead disk ends when the disk answers, which may be never."""

ANSWER_BYTES = 2**20
"""The longest line that a decode process writes is a part of 1,024 frames or silent chunks."""


Opened = TypeVar("Opened")
Batch = TypeVar("Batch", bound=DecodedBatch)


class Reading(Protocol[Opened, Batch]):
    """What is to be read of a source, and what a process's answers mean."""

    def attempts(self) -> Sequence[Reading[Opened, Batch]]:
        """How it is tried, one way after the other, while processes die or hang over it."""

    def order(self, spans: Sequence[Span]) -> dict[str, Any]:
        """What the process is told, for these stretches."""

    def opened(self, answer: dict[str, Any]) -> Opened:
        """What is known of the source."""

    def part(self, answer: dict[str, Any], opened: Opened, slots: Slots) -> Batch:
        """One of its parts."""


class Decoder:
    """One decode process."""

    def __init__(
        self, process: asyncio.subprocess.Process, slots: Slots, stall_seconds: float, complaints: IO[bytes]
    ) -> None:
        self._process, self._slots, self._stall_seconds, self._complaints = process, slots, stall_seconds, complaints
        self.busy_seconds = 0.0
        """That it was waited for."""
        self.decoded = 0.0
        """Frames or seconds of sound, of files that it read to the end, also what it decoded only on its way."""
        self._granted: int | None = None
        self._files = 0
        self._working = False

    @classmethod
    async def start(cls, slots: Slots, stall_seconds: float) -> Decoder:
        """Start a process that fills `slots`."""
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        arguments = [str(n) for n in (slots.fd, slots.slot_bytes, slots.count)]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "reelscribe.decode_pool.worker", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
                pass_fds=[slots.fd],
                start_new_session=True,  # Ctrl-C is for the parent to handle
                limit=ANSWER_BYTES,
            )
        except OSError as error:
            complaints.close()
            raise StartupError(f"a decode process cannot be started: {error}") from None
        except BaseException:
            complaints.close()
            raise
        return cls(process, slots, stall_seconds, complaints)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it can be given another file."""
        return self._process.returncode is None and not self._working and self._files < FILES_PER_PROCESS

    async def digest_file(self, path: str) -> Source:
        """Size and digest of a file. Raises MediaError."""
        self._order(digest_file=path)
        answer = await self._answer()
        self._working = False
        if "error" in answer:
            raise _error(**answer["error"])
        return Source(**answer["source"])

    async def read(
        self, reading: Reading[Opened, Batch], spans: Sequence[Span]
    ) -> AsyncGenerator[Opened | Batch, None]:
        """What the source is, and its parts, each to be released. Raises MediaError."""
        self._files += 1
        if self._granted is None:
            await self._grant()
        self._order(**reading.order(spans))
        while "end" not in (answer := await self._answer()):
            if "opened" in answer:
                yield (opened := reading.opened(answer["opened"]))
            elif "part" in answer:
                part = reading.part(answer["part"], opened, self._slots)
                if part.slot is not None:
                    await self._grant()  # it goes on while the part is being looked after
                yield part
            else:
                self._working = False
                raise _error(**answer["error"])
        self._working = False
        self.decoded += answer["end"]["decoded"]

    def end(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process.returncode is None:
            self._process.kill()

    async def kill(self) -> None:
        """End it, and wait until it has."""
        self.end()
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            return  # it will never run again, but cannot end yet; its memory is its own until then
        if self._granted is not None:
            self._slots.give_back(self._granted)
            self._granted = None
        self._complaints.close()

    async def _grant(self) -> None:
        """Give it a slot to fill. Whoever gives up waiting for one leaves the last one to `kill`."""
        self._granted = await self._slots.take()
        self._write(slot=self._granted)

    def _order(self, **order: Any) -> None:
        self._working = True
        self._write(**order)

    def _write(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _answer(self) -> Any:
        """The next answer that is more than a sign of life."""
        while "heartbeat" in (answer := json.loads(await self._line())):
            pass
        return answer

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        began = time.monotonic()
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), self._stall_seconds)
        except TimeoutError:  # on Python 3.10 another class than the builtin
            self._process.kill()
            raise DecoderStalled(
                f"the process that was decoding it did not get on for {self._stall_seconds:.0f} s and was ended"
            ) from None
        finally:
            self.busy_seconds += time.monotonic() - began
        if line.endswith(b"\n"):
            return line
        code = await self._process.wait()
        if code < 0:
            raise DecoderDied(f"the process that was decoding it ended: {signal.Signals(-code).name}")
        self._complaints.seek(0)
        *_, last_line = ["", *self._complaints.read().decode(errors="replace").splitlines()]
        raise DecoderDied(f"the process that was decoding it ended: exit status {code} {last_line[-200:]}".rstrip())


def _error(type: str, message: str) -> MediaError:  # noqa: A002 - the answer's field
    """What a process could not read, and why."""
    return {"NoPictures": NoPictures, "NoSound": NoSound}.get(type, MediaError)(message)
