"""Open a source file so that FFmpeg reads only this file, and read its packets.

Times are those of the file, with one exception: where the clock of a recording jumps back, as it does where transport
streams or Ogg files were joined, what follows is moved to the end of what came before. So times never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import av
from av.format import Flags
from av.stream import Stream
from av.video.stream import VideoStream

from reelscribe._files import OpenSource, size_in
from reelscribe.decode.containers.opening import open_container
from reelscribe.decode.random_access.mpeg4 import is_coded, split
from reelscribe.errors import MediaError

# Damage is reported as MediaError. FFmpeg's own messages, one for every damaged packet, would only flood the log.
av.logging.set_level(av.logging.PANIC)

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

JUMP_BACK_SECONDS = 0.5
"""A clock has jumped back if decoding times decrease by more than this. FFmpeg's guesses of missing times differ by
less."""

JUMP_AHEAD_SECONDS = 40_000.0
"""A clock has jumped back, too, if it seems to jump ahead by more than this: FFmpeg takes some jumps for a wrap of the
clock of 33 bits, which counts 95,444 s, and adds those."""

_VP8_SHOW_FRAME = 0x10
"""Bit of the first byte of a VP8 frame (RFC 6386, section 9.1)."""


@contextmanager
def open_for_ffmpeg(path: str, stat: str = "") -> Iterator[OpenSource]:
    """Open a file that FFmpeg reads by its `name`.

    FFmpeg would take the beginning of some paths for a protocol, and paths must be UTF-8 for it. The name of the open
    file avoids both, and all that FFmpeg reads is of one file.

    Args:
        path: Path of the file.
        stat: The `file_stat` that it must have; empty for the one that it has now.

    Yields:
        The open file.

    Raises:
        MediaError: The file does not exist, cannot be read, or is empty.
        SourceChanged: It has another `file_stat`, from the beginning or when the block ends with a MediaError, as a
            file that is being written to looks damaged.
    """
    try:
        file = OpenSource(path, stat)
    except (OSError, ValueError) as error:
        raise MediaError(getattr(error, "strerror", None) or str(error)) from None
    with file:
        if size_in(file.stat) == 0:
            raise MediaError("the file is empty")
        try:
            yield file
        except MediaError:
            file.check()
            raise


def open_undecoded(name: str, **options: str) -> av.container.InputContainer:
    """Open a media file with FFmpeg, and decode nothing of it where its header tells enough.

    When FFmpeg opens a file, it decodes the beginning of each video stream, which takes as long as all else for a short
    clip. Decoders find out by themselves what it learns from that, except for the order in which they return frames.
    The header of an MP4 or QuickTime file tells it, unless the file is fragmented.

    Args:
        name: The name of a file that `open_for_ffmpeg` yields.
        options: Further options of FFmpeg.

    Raises:
        MediaError: The file has a format that is not read.
        av.FFmpegError: The file is not a media file, or cannot be read.
    """
    has_full_header = False
    with suppress(OSError), open(name, "rb", buffering=0) as file:  # FFmpeg tells why a file cannot be read
        has_full_header = file.read(8)[4:] == b"ftyp"
    if has_full_header:
        container = open_container(name, skip_frame="all", **options)
        if all(video.frames for video in container.streams.video):  # a fragmented file states no number of frames
            return container
        container.close()
    return open_container(name, **options)


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
        self._waiting: list[bytes] = []

    def single(self, packet: av.Packet[VideoStream]) -> av.Packet[VideoStream]:
        """Return a packet with one frame, in place of the next packet of the stream.

        A frame that was packed with another one takes the place of a frame that is not coded, which follows for it.
        """
        if self._codec != "mpeg4" or packet.is_corrupt:
            return packet
        frames = split(bytes(packet))
        if len(frames) == 1 and not self._waiting:
            return packet
        self.packed = True
        first, *waiting = self._waiting + [frame for frame in frames if len(frames) > 1 or is_coded(frame)]
        self._waiting = waiting[:1]  # if more wait, placeholders are missing
        return _with_content(packet, first)

    def is_shown(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame holds a frame that players show.

        Players do not show frames outside the edit list, nor VP8 frames that only serve as references, nor MPEG-4
        frames that are not coded.
        """
        if packet.is_discard:
            return False
        if self._codec == "vp8":
            return bool(memoryview(packet)[0] & _VP8_SHOW_FRAME)
        return self._codec != "mpeg4" or is_coded(memoryview(packet))


def _with_content(packet: av.Packet[VideoStream], content: bytes) -> av.Packet[VideoStream]:
    """Return a packet with other content, and the times and marks of this one."""
    other: av.Packet[Any] = av.Packet(content)
    other.stream, other.time_base = packet.stream, packet.time_base
    other.pts, other.dts, other.duration = packet.pts, packet.dts, packet.duration
    other.is_keyframe = packet.is_keyframe
    return other
