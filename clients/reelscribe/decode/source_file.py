"""Open a source file so that FFmpeg reads only this file, and read its packets.

Times are those of the file, with one exception: where the clock of a recording jumps back, as it does where transport
streams or Ogg files were joined, what follows is moved to the end of what came before. So times never go back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import av
from av.bitstream import BitStreamFilterContext
from av.format import Flags
from av.stream import Stream
from av.video.stream import VideoStream

from reelscribe.errors import MediaError

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

MISSING_SECONDS = 1.0
"""A file is incomplete if it ends more than this many seconds before the end that its header states. Inexact headers of
complete files differ by less."""

JUMP_BACK_SECONDS = 0.5
"""A clock has jumped back if decoding times decrease by more than this. FFmpeg's guesses of missing times differ by
less."""

JUMP_AHEAD_SECONDS = 40_000.0
"""A clock has jumped back, too, if it seems to jump ahead by more than this: FFmpeg takes some jumps for a wrap of the
clock of 33 bits, which counts 95,444 s, and adds those."""

DURATION_FROM_ZERO = {"asf", "matroska,webm", "nut", "ogg"}
"""Formats in which some programs state the time at which a file ends, and others how long it is, as its duration. In
Matroska, FFmpeg states the end, and mkvmerge, whose library is libebml, the length."""

_VP8_SHOW_FRAME = 0x10
"""Bit of the first byte of a VP8 frame (RFC 6386, section 9.1)."""

_NOT_CODED_BYTES = 8
"""Largest size of an MPEG-4 frame that is not coded: players go on showing the one before it. Coded ones are larger."""


@contextmanager
def open_for_ffmpeg(path: str) -> Iterator[str]:
    """Open a file and yield a name under which FFmpeg reads it.

    FFmpeg would take the beginning of some paths for a protocol, and paths must be UTF-8 for it. The name that this
    yields, "/dev/fd/<number>", avoids both.

    Args:
        path: Path of the file.

    Yields:
        The name, which is valid inside the context.

    Raises:
        MediaError: The file does not exist, cannot be read, or is empty.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise MediaError(error.strerror or str(error)) from None
        if os.fstat(file.fileno()).st_size == 0:
            raise MediaError("the file is empty")
        yield f"/dev/fd/{file.fileno()}"


def open_undecoded(name: str, **options: str) -> av.container.InputContainer:
    """Open a media file with FFmpeg, and decode nothing of it where its header tells enough.

    When FFmpeg opens a file, it decodes the beginning of each video stream, which takes as long as all else for a short
    clip. Decoders find out by themselves what it learns from that, except for the order in which they return frames.
    The header of an MP4 or QuickTime file tells it, unless the file is fragmented.

    Args:
        name: The name that `open_for_ffmpeg` yields.
        options: Further options of FFmpeg.

    Raises:
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    has_full_header = False
    with suppress(OSError), open(name, "rb", buffering=0) as file:  # FFmpeg tells why a file cannot be read
        has_full_header = file.read(8)[4:] == b"ftyp"
    if has_full_header:
        container = av.open(name, options={"skip_frame": "all", **options})
        if all(video.frames for video in container.streams.video):  # a fragmented file states no number of frames
            return container
        container.close()
    return av.open(name, options=options)


def has_flag(container_format: av.ContainerFormat, flag: Flags) -> bool:
    """Return whether FFmpeg gives a container format a flag."""
    mask: Any = flag.value  # PyAV annotates it wrongly
    return bool(container_format.flags & mask)


class Timeline:
    """Places the packets of a file on one timeline, even if the clock of the file jumps back.

    Args:
        container: The open file.
        offsets: `offsets` of a timeline that has seen all streams of the file, if this one sees only some of them.
    """

    offsets: list[float]
    """Seconds that are added to the times of each part of the file, from one jump of the clock to the next."""
    end_seconds: float = 0.0
    """Latest time so far at which a packet ends; 0.0 if no packet has a time."""

    def __init__(self, container: av.container.InputContainer, offsets: Sequence[float] = ()) -> None:
        self.offsets = list(offsets) or [0.0]
        self._may_jump = has_flag(container.format, Flags.ts_discont)
        self._ticks: dict[int, float] = {}  # seconds, for each stream
        # For each stream, the number of its part and its last decoding time. Near a jump, packets of one part may lie
        # behind packets of the next part in other streams.
        self._parts: dict[int, tuple[int, float]] = {}

    def place(self, packet: av.Packet[Any]) -> None:
        """Move a packet to its time on the timeline. Packets must come in the order of the file."""
        stream, pts = packet.stream_index, packet.pts
        tick = self._ticks.get(stream) or self._ticks.setdefault(stream, float(packet.time_base or 0))
        if self._may_jump and packet.dts is not None:
            ticks = round(self._offset(stream, packet.dts * tick) / tick)
            if ticks:
                packet.dts += ticks
                packet.pts = pts = None if pts is None else pts + ticks
        if pts is not None:
            end = (pts + (packet.duration or 0)) * tick
            if end > self.end_seconds:
                self.end_seconds = end

    def _offset(self, stream_index: int, seconds: float) -> float:
        """Return the offset of a packet of a stream with the decoding time `seconds`."""
        part, last = self._parts.get(stream_index, (0, seconds))
        if not -JUMP_BACK_SECONDS <= seconds - last <= JUMP_AHEAD_SECONDS:
            part += 1
            if part == len(self.offsets):
                self.offsets.append(self.end_seconds - seconds)
        self._parts[stream_index] = part, seconds
        return self.offsets[part]


def demux(
    container: av.container.InputContainer, heartbeat: Callable[[], None], timeline: Timeline | None = None
) -> Iterator[av.Packet[Stream]]:
    """Read the packets of all streams of an open file, in the order of the file.

    Args:
        container: The open file.
        heartbeat: Called before the first packet and again after every `PACKETS_PER_HEARTBEAT` packets.
        timeline: The timeline on which packets are placed; by default a new one.

    Yields:
        Each packet that has content. The empty ones, which mark the ends of the streams, are left out: a decoder would
        take one for the end of the file.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    timeline = timeline or Timeline(container)
    for count, packet in enumerate(container.demux()):
        if count % PACKETS_PER_HEARTBEAT == 0:
            heartbeat()
        if packet.size:
            timeline.place(packet)
            yield packet


def missing_seconds(container: av.container.InputContainer, end_seconds: float) -> float:
    """Return how much earlier a file ends than its header states.

    Args:
        container: The open file.
        end_seconds: Time at which its last packet ends, in seconds.

    Returns:
        Seconds; 0 or less if nothing is missing.
    """
    start, duration = (container.start_time or 0) / av.time_base, (container.duration or 0) / av.time_base
    stated_end = start + duration
    if may_state_end(container):
        stated_end = min(stated_end, duration)
    return stated_end - end_seconds


def may_state_end(container: av.container.InputContainer) -> bool:
    """Return whether the duration that a file states may be the time at which it ends."""
    muxer = {name.lower(): value for name, value in container.metadata.items()}.get("encoder", "")
    return container.format.name in DURATION_FROM_ZERO and not muxer.startswith("libebml")


def why_cut_short(container: av.container.InputContainer, error: Exception) -> str:
    """Return why a file cannot be read to its end, from the error with which FFmpeg stopped."""
    if container.format.name == "ogg" and isinstance(error, (av.error.PatchWelcomeError, av.error.ArgumentError)):
        return (
            "cut short: it is a chain of several recordings, of which FFmpeg reads only the first; "
            "split it into its recordings"
        )
    return f"cut short: it cannot be read any further: {ffmpeg_reason(error)}"


def ffmpeg_reason(error: Exception) -> str:
    """Return the first line of an error's message, up to 200 characters, or the name of its class if it has none."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


class PacketFilter:
    """Prepares the packets of a video stream for decoding, so that each holds one frame.

    Programs that wrote MPEG-4 to AVI packed a B-frame into the packet of the frame before it.

    Args:
        stream: The video stream.
    """

    packed: bool = False
    """Whether a packet held more than one frame."""

    def __init__(self, stream: VideoStream) -> None:
        self._codec = stream.codec_context.name
        self._unpack = BitStreamFilterContext("mpeg4_unpack_bframes", stream) if self._codec == "mpeg4" else None

    def frames(self, packet: av.Packet[VideoStream]) -> list[av.Packet[VideoStream]]:
        """Return the packets with one frame each that are in a packet."""
        if self._unpack is None or packet.is_corrupt:
            return [packet]
        size = packet.size  # the filter empties the packet
        frames = self._unpack.filter(packet)
        self.packed = self.packed or any(frame.size != size for frame in frames)
        return frames

    def is_shown(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame holds a frame that players show.

        Players do not show frames outside the edit list, nor VP8 frames that only serve as references, nor MPEG-4
        frames that are not coded.
        """
        if packet.is_discard:
            return False
        if self._codec == "vp8":
            return bool(memoryview(packet)[0] & _VP8_SHOW_FRAME)
        return self._codec != "mpeg4" or packet.size > _NOT_CODED_BYTES
