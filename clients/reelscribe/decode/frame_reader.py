"""Decode frames by their index.

Frames that are not wanted are skipped where keyframes allow it, or because no other frame needs them. Frames are
identified by their presentation times, so that a packet that cannot be decoded only costs its own frame and does not
change the index of another one. If presentation times are missing or not unique, frames are counted from the beginning
of the file instead.

decord is the other reader, which decodes and scales at once. It finds frames by the table of the file that its own
FFmpeg, of 2018, makes, so it gets the files whose table has the frames of the packet index at the same times, of
containers that have an index: in MPEG transport streams, for example, its first frame may be the twenty-first. It reads
frame by frame from the beginning, because it seeks by the average frame rate: it returns other frames than it says
behind open GOPs, and where the frame rate varies.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe._files import SparseFile
from reelscribe.contract.frames import FrameArray
from reelscribe.decode.bitstream import DISPOSABLE_CODECS, DisposableFrameDetector, PacketFilter
from reelscribe.decode.container import INDEXED_FORMATS, may_be_transparent, open_without_probing
from reelscribe.decode.packet_index import PacketIndex
from reelscribe.decode.packets import (
    PACKETS_PER_HEARTBEAT,
    Timeline,
    belongs_to,
    is_usable,
    logged_errors,
    read_packets,
)
from reelscribe.decode.random_access import (
    MAX_REORDER,
    DecodeRun,
    count_decoded_before,
    highest_decoded,
    max_decode_ahead,
    plan_runs,
)
from reelscribe.errors import MediaError, UsageError, missing_package

Decoder = Literal["pyav", "decord"]
"""What decodes and scales frames."""

TIME_TOLERANCE = 1e-4
"""Largest difference between presentation times of decord and of the index that are the same, in seconds."""

FLOAT32 = 1e-6
"""Relative precision of decord's times."""


class Seeking(NamedTuple):
    """How the keyframe of a run is found."""

    packets: int
    """Largest number of packets that are dropped instead of seeking."""
    margin_seconds: float
    """A seek goes to this many seconds before the keyframe."""


IN_FILES = Seeking(packets=100, margin_seconds=1.0)
"""Dropping is fast, and correct for all containers; those without an index are searched by decoding times."""

IN_SPARSE_FILES = Seeking(packets=1, margin_seconds=0.0)
"""Everything that is read, and then dropped, would be fetched first."""


class FrameReader:
    """Decode frames of a video file with PyAV.

    Args:
        name: Name under which FFmpeg opens the file, or a copy that has only what was fetched.
        packets: The index of the file.
        heartbeat: Called regularly while reading makes progress.
    """

    decoded: int = 0
    """Number of frames that were decoded, wanted or not."""

    def __init__(self, name: str | SparseFile, packets: PacketIndex, heartbeat: Callable[[], None]) -> None:
        self._name, self._packets, self._heartbeat = name, packets, heartbeat
        self._seeking = IN_SPARSE_FILES if isinstance(name, SparseFile) else IN_FILES
        # `read` gives up seeking first, and then skipping, if keyframes are not where the index says.
        # A palette comes with the first packet and is that of all frames.
        has_palette = packets.first_frame is not None and packets.first_frame.format.has_palette
        self._can_skip = bool(len(packets.pts)) and not has_palette
        self._can_seek = self._can_skip and len(packets.clock_offsets) == 1
        marks_disposable = packets.info.video_codec in DISPOSABLE_CODECS
        self._gops, self._highest_decoded = packets.gops, highest_decoded(packets.file_order)
        is_usual = not packets.corrupt_packets and max_decode_ahead(packets.file_order) <= MAX_REORDER
        self._can_drop_disposable = self._can_skip and marks_disposable and is_usual

    @property
    def can_seek(self) -> bool:
        """True if frames can be decoded from the keyframe before them, which a seek finds."""
        return self._can_skip and self._can_seek

    def is_dropping_worthwhile(self, wanted: Sequence[int]) -> bool:
        """Return whether disposable frames may be dropped, and most frames on the way to the wanted ones are others.

        Otherwise it would gain little, and damage would be met with a second decoding.
        """
        if not self._can_drop_disposable:
            return False
        return 2 * len(wanted) < int(count_decoded_before(wanted, self._packets.keyframes)[-1])

    def read(self, wanted: Sequence[int], *, drop_disposable: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode the wanted frames.

        FFmpeg shows something in place of damage that depends on what it has decoded before, also before the GOP, and
        what is left of a damaged macroblock shows in the next intact pictures. So a GOP with damage is decoded by a
        decoder that begins with it and drops nothing. Then its frames depend on the GOP alone.

        Args:
            wanted: Indices of frames, ascending.
            drop_disposable: Whether to drop disposable frames, until damage is met.

        Yields:
            (index, frame) for each wanted frame that can be decoded, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        done = 0
        first_frame = self._packets.first_frame
        if wanted and first_frame is not None and self._packets.index_of(first_frame.pts) == wanted[0]:
            done = 1
            self.decoded += len(wanted) == 1  # with others, it is decoded again on the way to them
            yield wanted[0], first_frame
        # Before this position, damage is expected. Where GOPs are unknown and nothing is dropped, it changes nothing.
        damaged_until = 0 if drop_disposable or self._gops is not None else len(wanted)
        while done < len(wanted):
            first, is_damaged = done, done < damaged_until
            stop = damaged_until if is_damaged else len(wanted)
            only = wanted[first:stop] if drop_disposable and not is_damaged else None
            try:
                with self._decoder(only, None if is_damaged else self._highest_decoded) as decoder:
                    for position, frame in self._read_once(wanted[first:stop], decoder):
                        done = first + position + 1
                        yield wanted[done - 1], frame
            except av.FFmpegError as error:
                raise MediaError(f"it could be read once but not again: {error.strerror}") from None
            except _DamageFound:
                damaged_until = self._end_of_gop(wanted, done)
            except _KeyframeMissing:
                self._fall_back()
                damaged_until = len(wanted)
            else:
                done = stop

    def _fall_back(self) -> None:
        """Read the rest from the beginning of the file, without seeking or else without skipping."""
        self._gops = None
        if self._can_seek:
            self._can_seek = False
        else:
            self._can_skip = False

    @contextmanager
    def _decoder(self, only: Sequence[int] | None, highest: NDArray[np.int64] | None) -> Iterator[_Decoder]:
        with open_without_probing(self._name, **self._packets.options) as container:
            seeking = self._seeking if self._can_seek else None
            decoder = _Decoder(container, self._packets, self._heartbeat, seeking, only, highest)
            try:
                yield decoder
            finally:
                self.decoded += decoder.decoded

    def _end_of_gop(self, wanted: Sequence[int], position: int) -> int:
        """Return the position behind the last wanted frame of a GOP; behind all, if GOPs are unknown."""
        if self._gops is None:
            return len(wanted)
        next_gop = int(np.searchsorted(self._gops, self._gops[wanted[position]], "right"))
        return bisect_left(wanted, next_gop)

    def _read_once(self, wanted: Sequence[int], decoder: _Decoder) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (position in `wanted`, frame).

        Raises _KeyframeMissing if decoding from a keyframe does not give the first frame that is wanted after it, and
        _DamageFound if the decoder ends at damage and a wanted frame cannot be decoded.
        """
        for run in self._plan(wanted):
            position = run.first
            # Decoding from a keyframe must first return a frame up to the first wanted one, unless it may be damaged.
            reached = run.keyframe < 0 or self._gops is not None
            for index, frame in decoder.decode(run):
                reached = reached or index <= wanted[run.first]
                if not reached:
                    break
                while position < run.stop and wanted[position] < index:
                    decoder.on_damage()
                    position += 1
                if position < run.stop and wanted[position] == index:
                    if not decoder.has_invented(frame):
                        yield position, frame
                    position += 1
                if position == run.stop:
                    break
            if position < run.stop:
                decoder.on_damage()
            if not reached:
                raise _KeyframeMissing

    def _plan(self, wanted: Sequence[int]) -> Iterator[DecodeRun]:
        if self._can_skip:
            return plan_runs(wanted, self._packets.keyframes, self._packets.file_order)
        last = max(wanted, key=self._packets.file_order.__getitem__) if len(self._packets.pts) else -1
        return iter([DecodeRun(-1, 0, len(wanted), last)])


class _KeyframeMissing(Exception):
    """The keyframe of a run is not where the index says, or decoding from it does not return the wanted frames."""


class _DamageFound(Exception):
    """A packet or a frame is damaged, or a wanted frame is missing."""


class _Decoder:
    """Decode runs of frames in one pass through an open file, from its beginning to its end.

    Args:
        container: The open file.
        packets: Its index.
        heartbeat: Called regularly while decoding makes progress.
        seeking: How to seek in the file; None not to seek.
        only: Indices of frames, ascending, besides which disposable frames are dropped; None to drop nothing.
        highest: Result of `highest_decoded`, with which decoding ends at damage; None to go on at damage.
    """

    def __init__(
        self,
        container: av.container.InputContainer,
        packets: PacketIndex,
        heartbeat: Callable[[], None],
        seeking: Seeking | None,
        only: Sequence[int] | None,
        highest: NDArray[np.int64] | None,
    ) -> None:
        stream = container.streams[packets.stream_index]
        assert isinstance(stream, VideoStream)
        self._container, self._stream, self._codec = container, stream, stream.codec_context
        self._codec.thread_count = 1  # the machine's cores are used by several decode processes
        self._packets, self._heartbeat, self._seeking = packets, heartbeat, seeking
        self._has_pts = bool(len(packets.pts))
        self._filter = PacketFilter(stream)
        self._timeline = Timeline(container, container.name) if len(packets.clock_offsets) > 1 else None
        self._demuxed = self._demux()
        self._file_position = 0
        self._dropped_packets = 0
        self._disposable = DisposableFrameDetector(self._codec)
        # Whether each frame is wanted; None if disposable ones are decoded, too.
        self._is_wanted: NDArray[np.bool_] | None = None
        if only is not None:
            self._is_wanted = np.zeros(len(packets.times), bool)
            self._is_wanted[np.asarray(only)] = True
        self._highest_decoded = highest
        self.decoded = 0
        """Number of frames that the codec returned."""

    def decode(self, run: DecodeRun) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (index, frame) for every frame that the codec returns.

        Raises _KeyframeMissing if the keyframe of the run is not where the index says, and _DamageFound if damage ends
        decoding, before any frame comes that may show it.
        """
        self._codec.flush_buffers()
        # A damaged frame may be noticed only when it comes, after the frames that are shown before it and refer to it.
        waiting = deque[tuple[int, av.VideoFrame]]()
        for packet in chain(self._packets_of(run), [None]):
            for frame in self._decode_packet(packet):
                self._heartbeat()
                index = self._packets.index_of(frame.pts) if self._has_pts else self.decoded
                self.decoded += 1
                if index >= 0:
                    waiting.append((index, frame))
                    while waiting and (self._highest_decoded is None or index >= self._highest_decoded[waiting[0][0]]):
                        yield waiting.popleft()
        yield from waiting

    def _decode_packet(self, packet: av.Packet[VideoStream] | None) -> list[av.VideoFrame]:
        errors = logged_errors()
        try:
            frames = self._codec.decode(packet)
        except av.FFmpegError:
            self.on_damage()
            return []  # a damaged packet only costs its own frame
        if logged_errors() > errors or any(frame.is_corrupt for frame in frames):
            self.on_damage()
        return frames

    def has_invented(self, frame: av.VideoFrame) -> bool:
        """Return whether a part of a frame is invented, as its decoder says. That of MPEG-4 also says so by chance."""
        return frame.is_corrupt and self._codec.name == "h264"

    def on_damage(self) -> None:
        """Raise _DamageFound if damage ends decoding."""
        if self._highest_decoded is not None:
            raise _DamageFound

    def _packets_of(self, run: DecodeRun) -> Iterator[av.Packet[VideoStream]]:
        """Yield the packets to decode, from the keyframe of the run to the packet of its last frame."""
        started = run.keyframe < 0
        leading = self._packets.leading_packets if started else 0
        if not started and self._seeking:
            distance = self._packets.file_order[run.keyframe] - self._file_position
            if distance > self._seeking.packets:
                self._seek(run.keyframe, self._seeking.margin_seconds)
        for packet in islice(self._demuxed, leading, None):
            index = self._packets.index_of(packet.pts) if self._filter.is_shown(packet) else -1
            if index >= 0:
                self._file_position = int(self._packets.file_order[index])
            if not started:
                if packet.is_keyframe and index > run.keyframe:
                    raise _KeyframeMissing
                started = index == run.keyframe
                self._count_dropped_packet()
            if started and self._can_drop(packet, index):
                self._count_dropped_packet()
            elif started and is_usable(packet):
                yield packet
            if started and index == run.last >= 0:
                return

    def _can_drop(self, packet: av.Packet[VideoStream], index: int) -> bool:
        """Return whether a packet holds a frame that is disposable and not wanted."""
        if self._is_wanted is None or not self._disposable.is_disposable(packet):
            return False
        return index < 0 or not self._is_wanted[index]

    def _demux(self) -> Iterator[av.Packet[VideoStream]]:
        with suppress(av.FFmpegError):  # the frames after a read error are lost
            # All streams tell together where the clock jumps.
            streams = () if self._timeline else (self._stream,)
            for packet in read_packets(self._container, self._heartbeat, *streams):
                if self._timeline:
                    self._timeline.place(packet)
                if belongs_to(packet, self._stream):
                    yield self._filter.unpack(packet)

    def _seek(self, keyframe: int, seconds_before: float) -> None:
        try:
            margin = round(seconds_before / (self._stream.time_base or 1))
            self._container.seek(int(self._packets.pts[keyframe]) - margin, stream=self._stream)
        except av.FFmpegError:
            raise _KeyframeMissing from None
        self._demuxed = self._demux()

    def _count_dropped_packet(self) -> None:
        self._dropped_packets += 1
        if self._dropped_packets % PACKETS_PER_HEARTBEAT == 0:
            self._heartbeat()


def check_decord(*, scales: bool) -> None:
    """Check that decord can decode as options say.

    Args:
        scales: Whether frames are scaled as FFmpeg does it, and nothing else is done with them.

    Raises:
        UsageError: They are not, or decord is not installed.
    """
    if not scales:
        raise UsageError(
            "decoder: expected --resize fast and no --deinterlace with decord, which scales frames by itself; leave"
            " these options out, or choose pyav"
        )
    if find_spec("decord") is None:
        raise UsageError(f"decoder: {missing_package('decord', 'decord')}")


class DecordReader:
    """Frames of a video file, decoded and scaled by decord.

    Args:
        name: Name under which FFmpeg opens the file.
        size: Width and height to which frames are scaled.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        Exception: decord cannot read the file. Its errors have no class in common.
    """

    decoded: int = 0
    """Number of frames that were decoded, wanted or not."""

    def __init__(self, name: str, size: tuple[int, int], heartbeat: Callable[[], None]) -> None:
        self._reader: Any = _decord().VideoReader(name, width=size[0], height=size[1], num_threads=1)
        self._heartbeat, self._size, self._position = heartbeat, size, 0

    def agrees_with(self, times: NDArray[np.float64]) -> bool:
        """Return whether it has frames at these presentation times, in seconds, and no others."""
        if len(self._reader) != len(times):
            return False
        own = self._reader.get_frame_timestamp(range(len(times)))[:, 0]
        return np.allclose(own, times, rtol=FLOAT32, atol=TIME_TOLERANCE)

    def read(self, wanted: Sequence[int]) -> Iterator[tuple[int, FrameArray]]:
        """Decode the wanted frames.

        Args:
            wanted: Indices of frames, ascending.

        Yields:
            (index, frame) for each of them, in order; the frame is (height, width, 3) uint8 RGB.

        Raises:
            Exception: decord cannot decode a frame.
        """
        for index in wanted:
            if index < self._position:
                self._reader.seek(0)
                self._position = 0
            while self._position <= index:
                frame = self._reader.next()
                self._position += 1
                self.decoded += 1
                self._heartbeat()
            # Rows of less than some 50 pixels end with bytes that are none, which decord counts as more channels.
            rows = frame.asnumpy().reshape(self._size[1], -1)[:, : 3 * self._size[0]]
            yield index, rows.reshape(*reversed(self._size), 3)


def open_with_decord(
    name: str, packets: PacketIndex, size: tuple[int, int], heartbeat: Callable[[], None]
) -> DecordReader | None:
    """Open a file with decord.

    Args:
        name: Name under which FFmpeg opens the file.
        packets: Its index.
        size: Width and height to which frames are scaled.
        heartbeat: Called regularly while reading makes progress.

    Returns:
        The reader; None if decord cannot read the file as players show it, or has other frames than the index.
    """
    info, first = packets.info, packets.first_frame
    is_odd = packets.why_incomplete or packets.corrupt_packets or info.skipped_frames
    if first is None or may_be_transparent(first.format.name) or packets.stated.margins:
        return None
    if info.mirrored or info.rotation % 90:
        return None
    if is_odd or packets.container_format not in INDEXED_FORMATS or info.dynamic_range != "sdr":
        return None
    if packets.video_streams > 1:  # decord would take the one that FFmpeg finds the best, and not that of the index
        return None
    try:
        reader = DecordReader(name, size, heartbeat)
        return reader if reader.agrees_with(packets.times) else None
    except Exception:  # noqa: BLE001 - whatever it is, PyAV has read the file so far, and goes on
        return None


def _decord() -> Any:
    """Import decord, whose libraries PyAV must not use.

    It makes the symbols of its libraries global, and PyAV would then call its libvpx, for example, which is older.
    """
    mode, vars(ctypes)["RTLD_GLOBAL"] = ctypes.RTLD_GLOBAL, ctypes.RTLD_LOCAL
    try:
        import decord
    finally:
        vars(ctypes)["RTLD_GLOBAL"] = mode
    decord.logging.set_level(decord.logging.QUIET)
    return decord
