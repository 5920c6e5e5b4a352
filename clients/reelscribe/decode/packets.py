"""Read the packets of an open media file, place them on one timeline, and find out what is missing or encrypted.

Times are those of the file, with one exception: where the clock of a recording jumps back, as it does where transport
streams or Ogg files were joined, what follows is moved to the end of what came before. So times never go back. One or
two frames before such a joint of transport streams may count as undecodable.

FFmpeg searches behind damage for something that it can read, and says so at most in its log. It makes pictures of what
is encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeGuard, TypeVar

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.format import Flags
from av.stream import Stream
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe._files import SparseFile
from reelscribe.contract.source import Gap
from reelscribe.decode.container import (
    MISSING_SECONDS,
    MISSING_SHARE,
    Readable,
    has_format_flag,
    is_followed,
    lacks_fragments,
    opened,
)

BYTES_PER_TRY = 1024
"""Least number of bytes of damage after which FFmpeg asks to be called again, or says that the data are invalid."""

PACKETS_PER_HEARTBEAT = 100
"""Number of packets after which a reader calls its heartbeat again."""

JUMP_BACK_SECONDS = 0.5
"""A clock has jumped back if decoding times decrease by more than this. FFmpeg's guesses of missing times differ by
less."""

JUMP_AHEAD_SECONDS = 40_000.0
"""A clock has jumped back, too, if it seems to jump ahead by more than this: FFmpeg takes some jumps for a wrap of the
clock, and adds `WRAP_SECONDS`."""

WRAP_SECONDS = 2**33 / 90_000
"""Time after which the clock of transport and program streams wraps: it has 33 bits (ISO/IEC 13818-1, 2.4.3.7). FFmpeg
adds it up to the next wrap alone."""

PAUSE_SECONDS = 60.0
"""Largest gap in one recording. Where the clock jumps by more, or does not wrap, another one was joined."""

GAP_SECONDS = 0.25
"""Shortest time between two packets of a stream for which packets may be missing."""

NEAR_PACKETS = 200
"""Number of packets, of all streams, after damage in which the gap that it has made may come to light: only one packet
in a page of Ogg states its time, and other streams may be far behind."""

GAP_SHARE = 0.2
"""FFmpeg has skipped what is between two packets if the file has at least this share of the bytes there that so much
time takes in it on average, and GAP_BYTES more. Container headers, indexes and padding are fewer."""

PADDING_BYTES = 4096
"""Most bytes that fill the last sectors of a recording."""

GAP_BYTES = 256
"""See GAP_SHARE."""

_PROTECTED_TAGS = {"drms", "drmi", "adrm", "aavd", "enca", "encv"}
"""Types of samples of MP4 files that are encrypted as a whole, by iTunes or Audible, or in a way that nobody states."""

_PROTECTED_METADATA = ("enc_key_id", "ASF_Protection_Type")
"""Metadata that FFmpeg gives to encrypted streams of WebM and files of Windows Media."""

_PES_HEADER = re.compile(rb"\x00\x00\x01[\xbd\xc0-\xef]..([\x80-\xbf])", re.DOTALL)
"""Beginning of a packet of a program stream. PES_scrambling_control is 0x30 of its last byte (ISO/IEC 13818-1, section
2.4.3.6)."""

_TRANSPORT_PACKET_BYTES = (188, 192, 204)
"""Sizes of the packets of transport streams: plain, with times in front, and with check sums."""

_NULL_PID = 0x1FFF
"""PID of the packets that fill a transport stream."""

_SYNC_BYTE = 0x47
"""First byte of each packet of a transport stream."""

_SAMPLES, _SAMPLE_BYTES = 64, 48_000
"""Number and size of the samples of a file in which marks of scrambling are looked for."""


class Timeline:
    """Places the packets of a file on one timeline, even if its clock jumps back, and finds where some are missing.

    Args:
        container: The open file.
        name: What was opened.
    """

    offsets: list[float]
    """Seconds that are added to the times of each part of the file, from one jump of the clock to the next."""
    end_seconds: float = 0.0
    """Latest time so far at which a packet ends; 0.0 if no packet has a time."""

    def __init__(self, container: InputContainer, name: str | SparseFile) -> None:
        self.offsets = [0.0]
        self._may_jump = has_format_flag(container.format, Flags.ts_discont)
        self._wraps = container.format.name in ("mpeg", "mpegts")
        self._lacks_fragments = lacks_fragments(container, name)
        self._has_index = container.format.name.startswith(("mov,", "avi"))  # FFmpeg does not search in such a file
        self._ticks: dict[int, float] = {}  # seconds, for each stream
        # For each stream, the number of its part and its last decoding time. Near a jump, packets of one part may lie
        # behind packets of the next part in other streams.
        self._parts: dict[int, tuple[int, float]] = {}
        self._name, self._size, self._begin = name, container.size, 0.0
        self._packets = self._read_to = self._position = 0
        self._errors = (logged_errors(),) * 2  # so many were logged NEAR_PACKETS before, about, and twice as many
        # The most bytes that were skipped at once, the packet before which they were, and the last corrupt packet:
        self._skipped_bytes, self._skipped_at, self._corrupt_at = 0, -NEAR_PACKETS - 1, -NEAR_PACKETS - 1
        self._ends: dict[int, float] = {}  # latest time at which a packet of each stream ends, in seconds
        self._gaps: dict[int, list[Gap]] = {}

    def place(self, packet: av.Packet[Any]) -> None:
        """Move a packet to its time on the timeline. Packets must come in the order of the file, of all streams."""
        stream, pts, dts = packet.stream_index, packet.pts, packet.dts
        tick = self._ticks.get(stream) or self._ticks.setdefault(stream, float(packet.time_base or 0))
        if self._may_jump and dts is not None:
            ticks = round(self._offset(stream, dts * tick) / tick)
            if ticks:
                packet.dts = dts = dts + ticks
                packet.pts = pts = None if pts is None else pts + ticks
        duration = (packet.duration or 0) * tick
        if not self._has_index:
            self._follow(packet)
        if (time := dts if pts is None else pts) is not None:
            seconds = time * tick
            if pts is not None and seconds + duration > self.end_seconds:
                self.end_seconds = seconds + duration
            if not self._ends:
                self._begin = seconds
            end = self._ends.get(stream, seconds)
            if seconds - end > GAP_SECONDS:
                if packet.pos is None and self._wraps:  # in program streams, only some packets tell where they are
                    return
                self._look_into_gap(stream, Gap(end, seconds))
            if seconds + duration > end:
                end = seconds + duration
            self._ends[stream] = end

    def why_damaged(self, gaps: Sequence[Gap]) -> str | None:
        """Return the reason why packets of a stream with these gaps are missing; None if none are, or few."""
        if (seconds := sum(gap.end - gap.start for gap in gaps)) > MISSING_SECONDS:
            return f"damaged: {seconds:.1f} s are missing, the first of them at {gaps[0].start:.1f} s"
        # These formats state no length, and little but packets may be at their end.
        unread, seconds = self._size - self._read_to, self.end_seconds - self._begin
        is_longer = 0 < self._read_to * MISSING_SECONDS < unread * seconds
        if (
            self._wraps
            and is_longer
            and unread > PADDING_BYTES + MISSING_SHARE * self._size
            and not self._ends_padded()
        ):
            return f"cut short: nothing can be read in the last {unread} of its {self._size} bytes"
        return None

    def _ends_padded(self) -> bool:
        """Return whether the packets at the end of a transport stream are there only to fill it."""
        with opened(self._name) as file:
            file.seek(max(0, self._size - _SAMPLE_BYTES))
            return bool(_transport_marks(np.frombuffer(file.read(_SAMPLE_BYTES) or b"", np.uint8), _NULL_PID))

    def gaps(self, stream: Stream) -> Sequence[Gap]:
        """Return the stretches in which packets of a stream are missing from the file.

        A stretch without packets is none by itself: a recording may have paused, and a picture may stand still. Packets
        are missing if FFmpeg has logged an error there, or marked a packet as corrupt, or skipped as many bytes of the
        file as so much time takes, or if the numbers of fragments have gaps.
        """
        return self._gaps.get(stream.index, ())

    def _follow(self, packet: av.Packet[Any]) -> None:
        """Look where a packet is in the file, and what came before it."""
        self._packets += 1
        if self._packets % NEAR_PACKETS == 0:
            self._errors = self._errors[1], logged_errors()
        if packet.is_corrupt:
            self._corrupt_at = self._packets
        position = packet.pos
        if position in (None, self._position):  # behind the packet before, or in the same page of Ogg
            self._read_to += packet.size
        else:
            skipped = position - self._read_to
            if skipped > self._skipped_bytes or (skipped > 0 and self._packets - self._skipped_at > NEAR_PACKETS):
                self._skipped_bytes, self._skipped_at = skipped, self._packets
            self._read_to, self._position = max(self._read_to, position + packet.size), position

    def _look_into_gap(self, stream_index: int, gap: Gap) -> None:
        """Add a gap between two packets to `gaps` if something is missing there."""
        has_complained = not self._has_index and logged_errors() > self._errors[0]
        has_lost = self._packets - self._corrupt_at <= NEAR_PACKETS and gap.end - gap.start < PAUSE_SECONDS
        usual_bytes = self._read_to * (gap.end - gap.start) / max(gap.end - self._begin, gap.end - gap.start)
        has_skipped = self._packets - self._skipped_at <= NEAR_PACKETS
        has_skipped = has_skipped and self._skipped_bytes > GAP_BYTES + GAP_SHARE * usual_bytes
        if has_complained or has_lost or has_skipped or self._lacks_fragments:
            self._gaps.setdefault(stream_index, []).append(gap)

    def _offset(self, stream_index: int, seconds: float) -> float:
        """Return the offset of a packet of a stream with the decoding time `seconds`."""
        part, last = self._parts.get(stream_index) or (len(self.offsets) - 1, seconds)
        if not -JUMP_BACK_SECONDS <= seconds - last <= JUMP_AHEAD_SECONDS:
            part += 1
            if part == len(self.offsets):
                is_wrap = self._wraps and abs(seconds + WRAP_SECONDS - last) < PAUSE_SECONDS
                self.offsets.append(self.offsets[-1] + WRAP_SECONDS if is_wrap else self.end_seconds - seconds)
        self._parts[stream_index] = part, seconds
        return self.offsets[part]


def demux(
    container: InputContainer, heartbeat: Callable[[], None], timeline: Timeline | None = None
) -> Iterator[av.Packet[Stream]]:
    """Read the packets of all streams of an open file, in the order of the file.

    Args:
        container: The open file.
        heartbeat: Called before the first packet and again after every `PACKETS_PER_HEARTBEAT` packets.
        timeline: The timeline on which packets are placed; by default a new one.

    Yields:
        Each packet that has content.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    timeline = timeline or Timeline(container, container.name)
    for count, packet in enumerate(read_packets(container, heartbeat)):
        if count % PACKETS_PER_HEARTBEAT == 0:
            heartbeat()
        timeline.place(packet)
        yield packet


def read_packets(
    container: InputContainer, heartbeat: Callable[[], None], *streams: Stream
) -> Iterator[av.Packet[Stream]]:
    """Read packets as they are in the file. Behind damage, this goes on with the next packet that FFmpeg finds.

    Args:
        container: The open file.
        heartbeat: Called whenever FFmpeg has searched for a while, in vain.
        streams: The streams that are read; by default all.

    Yields:
        Each packet that has content. The empty ones, which mark the ends of the streams, are left out: a decoder would
        take one for the end of the file.

    Raises:
        av.FFmpegError: The file cannot be read any further.
        UnicodeError: The same; FFmpeg's message is not UTF-8.
    """
    error: av.error.InvalidDataError | None = None
    merged, positions = is_followed(container), dict[int, int]()
    for _ in range(1 + container.size // BYTES_PER_TRY):
        try:
            for packet in container.demux(*streams):
                if not packet.size:
                    continue
                error = None
                if merged and packet.pos is not None:
                    # FFmpeg keeps the last packet before a change of identifiers until the file ends, out of its order.
                    if packet.pos < positions.get(packet.stream_index, 0):
                        continue
                    positions[packet.stream_index] = packet.pos
                yield packet
            break
        except BlockingIOError:  # FFmpeg wants to be called again
            error = None
        except av.error.InvalidDataError as caught:
            error = caught
        except IndexError:  # at the end, PyAV takes streams that it has not known at the beginning for others
            break
        heartbeat()
    if error:
        raise error


_S = TypeVar("_S", VideoStream, AudioStream)


def belongs_to(packet: av.Packet[Any], stream: _S) -> TypeGuard[av.Packet[_S]]:
    """Return whether a packet is one of a stream."""
    return packet.stream is stream


def is_encrypted(packet: av.Packet[Any]) -> bool:
    """Return whether the content of a packet is encrypted."""
    return packet.has_sidedata("encryption_info")


def is_usable(packet: av.Packet[Any]) -> bool:
    """Return whether a packet may be decoded: FFmpeg makes something of damaged and encrypted ones, too."""
    return not (packet.is_corrupt or is_encrypted(packet))


def logged_errors() -> int:
    """Return how many errors FFmpeg has logged in this process, also of what it shows or leaves out in silence."""
    return av.logging.get_last_error()[0]


def encrypted_share(
    container: InputContainer, name: str | SparseFile, stream: Stream, packets: int, encrypted: int, *, is_odd: bool
) -> float:
    """Return how much of a stream is encrypted.

    Args:
        container: The open file.
        name: What was opened.
        stream: The stream.
        packets: Number of its packets.
        encrypted: Number of those that are marked as encrypted. Only MP4 marks them.
        is_odd: Whether something is missing. Otherwise marks of transport streams count for nothing, as some receivers
            leave them behind when they decrypt.

    Returns:
        Share of the stream, from 0 to 1.
    """
    codec_tag = ""
    with suppress(UnicodeDecodeError):  # PyAV takes each tag for ASCII, and those of AVI are numbers
        codec_tag = stream.codec_context.codec_tag if stream.codec_context else ""
    metadata = container.metadata.keys() | stream.metadata.keys()
    if codec_tag in _PROTECTED_TAGS or any(key.startswith(_PROTECTED_METADATA) for key in metadata):
        return 1.0
    if container.format.name == "mpeg" or (container.format.name == "mpegts" and is_odd):
        with opened(name) as file:
            return _scrambled_share(file, container.size, stream.id if container.format.name == "mpegts" else None)
    return encrypted / max(1, packets)


def encryption_reason(stream: Stream, share: float) -> str:
    """Return the reason why a share of a stream, from `encrypted_share`, cannot be read."""
    return f"encrypted: {max(1, round(100 * share))} % of its {stream.type} cannot be read; decrypt the file first"


def _scrambled_share(file: Readable, size: int, pid: int | None) -> float:
    """Return the share of the packets that are marked as scrambled, in samples all over the file; 0 if there are none.

    Args:
        file: The open file.
        size: Its size in bytes.
        pid: The number of the stream in a transport stream; None for all streams of a program stream, such as a DVD.
    """
    marks = list[int]()
    for at in range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES)):
        file.seek(at)
        content = file.read(_SAMPLE_BYTES) or b""
        if pid is None:
            marks += [match[1][0] & 0x30 for match in _PES_HEADER.finditer(content)]
        else:
            marks += _transport_marks(np.frombuffer(content, np.uint8), pid)
    return sum(map(bool, marks)) / max(1, len(marks))


def _transport_marks(content: NDArray[np.uint8], pid: int) -> list[int]:
    """Return transport_scrambling_control of the packets with a PID (ISO/IEC 13818-1, section 2.4.3.2)."""
    for size in _TRANSPORT_PACKET_BYTES:
        for first in np.flatnonzero(content[: min(size, len(content) - 3)] == _SYNC_BYTE).tolist():
            headers = np.lib.stride_tricks.sliding_window_view(content, 4)[first::size]
            if (headers[:, 0] == _SYNC_BYTE).all():
                is_wanted = ((headers[:, 1].astype(int) & 0x1F) << 8 | headers[:, 2]) == pid
                marks: list[int] = (headers[is_wanted, 3] >> 7).tolist()
                return marks
    return []
