"""Read the packets of an open media file, place them on one timeline, and find out what is missing or encrypted.

Times are those of the file, with one exception: where the clock of a recording jumps back, as it does where transport
streams or Ogg files were joined, what follows is moved to the end of what came before. So times never go back. One or
two frames before such a joint of transport streams may count as undecodable.

FFmpeg searches behind damage for something that it can read, and says so at most in its log. It makes pictures of what
is encrypted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
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
    streams_of,
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

PADDING_BYTES = 4096
"""Most bytes that fill the last sectors of a recording."""

ZERO_BYTES = 4096
"""FFmpeg has skipped a part of a file that it searches in silence if so many bytes of it are zeros."""

SILENT_FORMATS = {"mpeg", "mxf", "nut"}
"""Formats in which FFmpeg searches for the next packet without an error in its log."""

_NOT_SEARCHED = ("mov,", "avi")
"""Beginnings of the names of formats in which FFmpeg does not search, as an index tells where packets are."""

_PROTECTED_TAGS = {"drms", "drmi", "adrm", "aavd", "enca", "encv"}
"""Types of samples of MP4 files that are encrypted as a whole, by iTunes or Audible, or in a way that nobody states."""

_PROTECTED_METADATA = ("enc_key_id", "ASF_Protection_Type")
"""Metadata that FFmpeg gives to encrypted streams of WebM and files of Windows Media."""

_PES_HEADER = re.compile(
    rb"\x00\x00\x01\xba[\x40-\x7f].{8}[\xf8-\xff]\xff{0,7}\x00\x00\x01[\xbd\xc0-\xef]..([\x80-\xbf])", re.DOTALL
)
"""Beginning of a pack of a program stream and of the packet in it. PES_scrambling_control is 0x30 of its last byte
(ISO/IEC 13818-1, sections 2.4.3.6 and 2.5.3.3)."""

_LEAST_SHARE = 0.02
"""Least share of packets with a mark of scrambling: packets that are no more than damaged may have one, too."""

_TRANSPORT_PACKET_BYTES = (188, 192, 204)
"""Sizes of the packets of transport streams: plain, with times in front, and with check sums."""

_NULL_PID = 0x1FFF
"""PID of the packets that fill a transport stream."""

_SYNC_BYTE = 0x47
"""First byte of each packet of a transport stream."""

_SAMPLES, _SAMPLE_BYTES = 64, 48_000
"""Number and size of the samples of a file in which marks of scrambling are looked for."""


_SHORT_BYTES = 20 * 188
"""Distance between packets of known streams in which there is no other stream worth mentioning."""

_OVERHEAD = 1.11
"""Size of a packet in a transport stream, with all headers, per byte of it, at most."""

_PACKET_START = re.compile(
    rb"\x47(?![\x40\x60][\x00-\x1f])([\x40-\x7f].)[\x10-\x3f].{0,183}?\x00\x00\x01[\xbd\xc0-\xef]", re.DOTALL
)
"""What a packet of video or audio begins with in a transport stream: ISO/IEC 13818-1, sections 2.4.3.2 and 2.4.3.6."""

_SEARCHED_BYTES = 2**20
"""How much of a stretch without packets of known streams is searched for those of others."""


@dataclass(slots=True)
class _Stream:
    """What is known of a stream up to its last packet."""

    tick: float
    """Time base, in seconds."""
    part: int
    """Number of its part of the file. Near a jump, packets of one part may lie behind those of the next in others."""
    decoding_seconds: float
    """Its last decoding time, without an offset."""
    end: float | None = None
    """Latest time at which a packet ends, in seconds; None at the beginning of a part."""
    corrupt: int = 0
    """Number of corrupt packets."""
    evidence: tuple[int, int] = (0, 0)
    """Numbers of errors and of corrupt packets before the last packet with a time."""
    earlier_evidence: tuple[int, int] = (0, 0)
    """The same of the packet before. FFmpeg reads ahead, so what it logs may lie behind the next packet."""
    position: int = 0
    """Position of the last packet with a time, in bytes."""
    gaps: list[Gap] = field(default_factory=list)
    """Where packets are missing."""


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
        self._container, self._name, self._size = container, name, container.size
        self._wraps = container.format.name in ("mpeg", "mpegts")
        self._is_silent = container.format.name in SILENT_FORMATS
        self._has_index = container.format.name.startswith(_NOT_SEARCHED)
        self._streams: dict[int, _Stream] = {}
        self._begin: float | None = None
        self._read_to = self._errors = 0

    def place(self, packet: av.Packet[Any], errors: int = 0) -> None:
        """Move a packet to its time on the timeline.

        Args:
            packet: The next packet of the file, of any stream.
            errors: Number of errors that FFmpeg has logged while it read this packet.
        """
        pts, dts, position = packet.pts, packet.dts, packet.pos
        stream = self._streams.get(packet.stream_index)
        if stream is None:
            tick = float(packet.time_base or 0)
            stream = self._streams[packet.stream_index] = _Stream(tick, len(self.offsets) - 1, (dts or 0) * tick)
        tick = stream.tick
        if self._may_jump and dts is not None and (ticks := round(self._offset(stream, dts * tick) / tick)):
            packet.dts = dts = dts + ticks
            packet.pts = pts = None if pts is None else pts + ticks
        self._errors += errors
        if self._wraps and position is not None and position + packet.size > self._read_to:
            self._read_to = position + packet.size
        evidence = self._errors - errors, stream.corrupt
        stream.corrupt += packet.is_corrupt
        if (time := dts if pts is None else pts) is None:
            return
        seconds, duration = time * tick, (packet.duration or 0) * tick
        if pts is not None and seconds + duration > self.end_seconds:
            self.end_seconds = seconds + duration
        if self._begin is None:
            self._begin = seconds
        if stream.end is not None and seconds - stream.end > GAP_SECONDS:
            if position is None and self._wraps:  # in program streams, only some packets tell where they are
                return
            if self._has_lost(stream, seconds, position or 0):
                stream.gaps.append(Gap(stream.end, seconds))
        stream.end = max(seconds + duration, stream.end or 0.0)
        stream.earlier_evidence, stream.evidence, stream.position = stream.evidence, evidence, position or 0

    def why_damaged(self, gaps: Sequence[Gap]) -> str | None:
        """Return the reason why packets of a stream with these gaps are missing; None if none are, or few."""
        if (seconds := sum(gap.end - gap.start for gap in gaps)) > MISSING_SECONDS:
            return f"damaged: {seconds:.1f} s are missing, the first of them at {gaps[0].start:.1f} s"
        # These formats state no length, and little but packets may be at their end.
        unread, seconds = self._size - self._read_to, self.end_seconds - (self._begin or 0)
        is_long = unread > PADDING_BYTES + MISSING_SHARE * self._size
        is_long = is_long and 0 < self._read_to * MISSING_SECONDS < unread * seconds
        if self._wraps and is_long and not self._ends_padded():
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
        are missing if FFmpeg has logged an error while it read them, or marked one as corrupt, or searched in zeros, or
        if the numbers of fragments have gaps.
        """
        return self._streams[stream.index].gaps if stream.index in self._streams else ()

    @cached_property
    def _lacks_fragments(self) -> bool:
        return lacks_fragments(self._container, self._name)

    def _has_lost(self, stream: _Stream, seconds: float, position: int) -> bool:
        """Return whether something is missing between the last packet of a stream and the next one, at `position`."""
        if self._has_index:
            return self._lacks_fragments
        errors, corrupt = stream.earlier_evidence
        if self._errors > errors or (stream.corrupt > corrupt and seconds - (stream.end or 0) < PAUSE_SECONDS):
            return True
        return self._is_silent and self._has_zeros(stream.position, position)

    def _has_zeros(self, start: int, stop: int) -> bool:
        """Return whether a hole is between two positions of the file, which is looked for in blocks."""
        with opened(self._name) as file:
            for at in range(start, stop - ZERO_BYTES, max(ZERO_BYTES, (stop - start) // _SAMPLES)):
                file.seek(at)
                if not any(file.read(ZERO_BYTES) or b"\1"):
                    return True
        return False

    def _offset(self, stream: _Stream, seconds: float) -> float:
        """Return the offset of a packet of a stream with the decoding time `seconds`."""
        last = stream.decoding_seconds
        if not -JUMP_BACK_SECONDS <= seconds - last <= JUMP_AHEAD_SECONDS:
            stream.part += 1
            if stream.part == len(self.offsets):
                is_wrap = self._wraps and abs(seconds + WRAP_SECONDS - last) < PAUSE_SECONDS
                self.offsets.append(self.offsets[-1] + WRAP_SECONDS if is_wrap else self.end_seconds - seconds)
            stream.end = None  # what was joined may begin later than the other stream has ended
        stream.decoding_seconds = seconds
        return self.offsets[stream.part]


class Continuation:
    """Finds out whether what a stream shows or plays goes on, or began, in others, where the stream itself does not.

    In recordings, for example, the identifiers of streams change where programmes or advertisements begin.

    Args:
        container: The open file.
        stream: The stream that is read.
    """

    successor: int | None = None
    """Number of the stream of the same kind in which it goes on; None if there is none."""

    def __init__(self, container: InputContainer, stream: VideoStream | AudioStream) -> None:
        self._stream, self._container = stream, container
        ticks = {each.index: float(each.time_base or 0) for each in streams_of(stream.type, container)}
        self._index, self._tick = stream.index, ticks.pop(stream.index)
        self._others = ticks  # seconds, of each other stream of the kind
        self._is_recording = has_format_flag(container.format, Flags.ts_discont)
        self._is_transport_stream = container.format.name == "mpegts"
        self._identifiers = {each.id for each in container.streams}
        self._is_needed = bool(self._others) or self._is_transport_stream
        self._start: int | None = None  # of the first packet, in ticks, as the next one
        self._end = 0
        self._began: dict[int, float | None] = {}  # times at which other streams began, since the last packet
        self._ended: dict[int, tuple[float, float]] = {}  # from when to when others lasted before the first packet
        self._position = 0  # in the file, behind all packets so far
        self._unlisted: tuple[int, float] | None = None

    def add(self, packet: av.Packet[Any]) -> None:
        """Take the next packet of the file, of any stream."""
        if not self._is_needed:
            return
        index, pts = packet.stream_index, packet.pts
        if self._is_transport_stream and (position := packet.pos) is not None:
            if position > self._position + _SHORT_BYTES:
                self._search(position)
            if (behind := position + int(_OVERHEAD * packet.size)) > self._position:
                self._position = behind
        if pts is None or (self.successor is not None and not self._returns(index, pts)):
            return
        self.successor = None
        if index == self._index:
            self._start = pts if self._start is None else self._start
            if (end := pts + (packet.duration or 0)) > self._end:
                self._end = end
            if self._began:
                self._began = dict.fromkeys(self._began)
        elif tick := self._others.get(index):
            self._add_other(index, pts * tick)

    def _add_other(self, index: int, seconds: float) -> None:
        first, last = self._ended.get(index, (seconds, seconds))
        if self._start is None:
            self._ended[index] = first, max(last, seconds)
        elif seconds > last + MISSING_SECONDS:
            self._ended.pop(index, None)  # it goes on beside this one
        # Streams of a recording may have different clocks.
        follows = self._is_recording or seconds > self._end * self._tick - MISSING_SECONDS
        began = self._began.setdefault(index, seconds if follows and self._start is not None else None)
        if began is not None and seconds - began > MISSING_SECONDS:
            self.successor = index

    def _returns(self, index: int, pts: int) -> bool:
        """Return whether the stream only paused while its successor began, as that of a participant of a meeting."""
        began = self._began.get(self.successor or 0) or 0.0
        # In a recording, the identifiers have changed back, and what was in the successor is not read.
        return index == self._index and not self._is_recording and pts * self._tick > began + MISSING_SECONDS

    @property
    def _predecessor(self) -> int | None:
        """Number of the stream in which it began; None if there is none."""
        long = (index for index, (first, last) in self._ended.items() if last - first > MISSING_SECONDS)
        return next(long, None)

    @property
    def can_be_followed(self) -> bool:
        """True if the file may be opened with `FOLLOW` to read the other stream as part of this one."""
        index = self._predecessor if self.successor is None else self.successor
        if index is None or not self._is_transport_stream or is_followed(self._container):
            return False
        other = self._container.streams[index].codec_context
        return self._stream.type == "audio" or bool(other and other.name == self._stream.codec_context.name)

    @property
    def why_incomplete(self) -> str | None:
        """What is not read, after the last packet of the file; None if nothing goes on elsewhere."""
        if self.successor is not None:
            return (
                f"cut short: after {self._end * self._tick:.1f} s it goes on in another stream, number {self.successor}"
                " of the file, which is not read; split the file there"
            )
        if (index := self._predecessor) is not None and self._start is not None:
            return (
                f"cut short: what is before {self._start * self._tick:.1f} s is in another stream, number {index} of"
                " the file, which is not read; split the file there"
            )
        if self._is_transport_stream:
            self._search(self._container.size)
        if self._unlisted:
            unread, seconds = self._unlisted
            return (
                f"cut short: {unread} of its bytes, after {seconds:.1f} s, belong to streams that it does not list at"
                " its beginning; split the file there"
            )
        return None

    def _search(self, position: int) -> None:
        """Look for packets of other streams between those of known ones, if these lie far apart."""
        unread, seconds = position - self._position, (self._end - (self._start or 0)) * self._tick
        is_long = seconds > MISSING_SECONDS and unread * seconds > MISSING_SECONDS * self._position
        if is_long and not self._unlisted:
            with suppress(OSError), open(self._container.name, "rb") as file:  # a fetched copy has no name
                file.seek(self._position)
                starts = _PACKET_START.finditer(file.read(min(unread, _SEARCHED_BYTES)))
                # There may be padding, or a hole with packets of known streams behind it.
                if {int.from_bytes(start[1]) & 0x1FFF for start in starts} - self._identifiers:
                    self._unlisted = unread, self._end * self._tick


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
    packets = read_packets(container, heartbeat)
    for count in itertools.count():
        if count % PACKETS_PER_HEARTBEAT == 0:
            heartbeat()
        logged = logged_errors()  # decoders log errors, too, between packets
        if (packet := next(packets, None)) is None:
            return
        timeline.place(packet, logged_errors() - logged)
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
    share = sum(map(bool, marks)) / max(1, len(marks))
    return share if share > _LEAST_SHARE else 0.0


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
