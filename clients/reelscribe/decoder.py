"""One process that decodes, seen from its parent: orders, answers, a deadline for each step, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, StartupError
from reelscribe.media import FrameArray, FrameSize, Source, Span, VideoInfo
from reelscribe.slots import Slots
from reelscribe.video import VideoTask

FILES_PER_PROCESS = 200
"""Then it is replaced: decoders leak, and starting anew takes less than decoding a second of video."""

END_SECONDS = 5.0
"""A process that was killed and waits for a dead disk ends when the disk answers, which may be never."""

ANSWER_BYTES = 2**20
"""The longest line that a decode process writes is a part of 1,024 frames."""


@dataclass(frozen=True)
class OpenedVideo:
    """What is known of a video before any frame is decoded."""

    info: VideoInfo
    frame: FrameSize
    """As its frames are sent."""
    chosen: int
    """How many frames."""
    end_seconds: float
    """When the last of them has been shown."""
    cut: str | None
    """Why the file is not whole."""


@dataclass(frozen=True)
class DecodedPart:
    """The chosen frames of a video from ordinal `first` to before `stop`."""

    first: int
    stop: int
    frames: FrameArray
    """Those to be captioned, (N, H, W, 3); they are gone after `release`. N may be 0."""
    frame_indices: list[int]
    pts_seconds: list[float]
    reused: list[tuple[int, float, int]]
    """Frame index and presentation time of those that are nearly equal to a captioned one, and that one's index."""
    undecodable: list[tuple[int, float]]
    """Frame index and presentation time."""
    anchor: int | None
    """Index of the last captioned frame up to its end."""
    slot: int | None
    slots: Slots

    def release(self) -> None:
        """Let a process write over the frames."""
        if self.slot is not None:
            self.slots.give_back(self.slot)


class Decoder:
    """One decode process."""

    def __init__(
        self, process: asyncio.subprocess.Process, slots: Slots, stall_seconds: float, complaints: IO[bytes]
    ) -> None:
        self._process, self._slots, self._stall_seconds, self._complaints = process, slots, stall_seconds, complaints
        self.busy_seconds = 0.0
        """That it was waited for."""
        self.decoded_frames = 0
        """Of files that it read to the end, also those that it decoded only on its way."""
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
                *(sys.executable, "-m", "reelscribe.decode_process", *arguments),
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

    async def identify(self, path: str) -> Source:
        """Size and digest of a file. Raises MediaError."""
        self._order(identify=path)
        answer = await self._answer()
        self._working = False
        if "error" in answer:
            raise MediaError(answer["error"])
        return Source(**answer["source"])

    async def decode(
        self, task: VideoTask, spans: Sequence[Span], frames_per_part: int, *, reuse: bool
    ) -> AsyncGenerator[OpenedVideo | DecodedPart, None]:
        """What the video is, then its parts, each to be released. Raises MediaError."""
        self._files += 1
        if self._granted is None:
            await self._grant()
        self._order(
            decode={
                "task": task.to_json(),
                "spans": [asdict(span) for span in spans],
                "frames_per_part": frames_per_part,
                "reuse": reuse,
            }
        )
        while "end" not in (answer := await self._answer()):
            if "video" in answer:
                video = answer["video"]
                frame = FrameSize(**video.pop("frame"))
                yield OpenedVideo(VideoInfo(**video.pop("info")), frame, **video)
            elif "part" in answer:
                part = self._part(frame, **answer["part"])
                if part.slot is not None:
                    await self._grant()  # it goes on while the part is being looked after
                yield part
            else:
                self._working = False
                raise MediaError(answer["error"])
        self._working = False
        self.decoded_frames += answer["end"]["decoded_frames"]

    def end(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process.returncode is None:
            self._process.kill()

    async def kill(self) -> None:
        """End it, and wait until it has."""
        self.end()
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except asyncio.TimeoutError:
            return  # it will never run again, but cannot end yet; its memory is its own until then
        if self._granted is not None:
            self._slots.give_back(self._granted)
            self._granted = None
        self._complaints.close()

    def _part(
        self, frame: FrameSize, slot: int | None, reused: list[Any], undecodable: list[Any], **rest: Any
    ) -> DecodedPart:
        shape = (len(rest["frame_indices"]), frame.height, frame.width, 3)
        return DecodedPart(
            frames=self._slots.frames(slot or 0, shape),
            reused=[tuple(row) for row in reused],
            undecodable=[tuple(row) for row in undecodable],
            slot=slot,
            slots=self._slots,
            **rest,
        )

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
        while "beat" in (answer := json.loads(await self._line())):
            pass
        return answer

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        began = time.monotonic()
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), self._stall_seconds)
        except asyncio.TimeoutError:  # on Python 3.10 another class than the builtin
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
