"""Decode frames by their index, with PyAV or with decord.

With PyAV, frames that are not wanted are skipped where keyframes allow it, or because no other frame needs them. Frames
are identified by their presentation times, so that a packet that cannot be decoded only costs its own frame and does
not change the index of another one. If presentation times are missing or not unique, frames are counted from the
beginning of the file instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe.contract.frames import FrameArray
from reelscribe.decode.packets import PacketIndex
from reelscribe.decode.random_access.disposable import CODECS, DisposableFrames
from reelscribe.decode.random_access.entry_points import decoded_before
from reelscribe.decode.random_access.sequences import shown_last
from reelscribe.decode.source_file import PACKETS_PER_HEARTBEAT, PacketFilter, Timeline, open_undecoded
from reelscribe.errors import MediaError

SEEK_PACKETS = 100
"""Largest number of packets that are dropped instead of seeking. Dropping is fast, and correct for all containers."""

SEEK_MARGIN_SECONDS = 1.0
"""A seek goes to this many seconds before a keyframe, as containers without an index are searched by decoding times."""

DECORD_FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi"}
"""FFmpeg's names of the container formats that decord reads correctly; all of them have an index."""

DECORD_TOLERANCE_SECONDS = 1e-3
"""Largest difference between the presentation times of decord and of the packets, in seconds."""


class FrameReader:
    """Decode frames of a video file with PyAV.

    Args:
        name: Name under which FFmpeg opens the file.
        packets: The index of the file.
        heartbeat: Called regularly while reading makes progress.
    """

    decoded: int = 0
    """Number of frames that were decoded, wanted or not."""

    def __init__(self, name: str, packets: PacketIndex, heartbeat: Callable[[], None]) -> None:
        self._name, self._packets, self._heartbeat = name, packets, heartbeat
        # `read` gives up seeking first, and then skipping, if keyframes are not where the index says.
        self._may_skip = bool(len(packets.pts))
        self._may_seek = self._may_skip and len(packets.clock_offsets) == 1
        has_marks = packets.info.video_codec in CODECS
        self._may_drop = self._may_skip and has_marks and not packets.corrupt_packets
        self._sequences = packets.sequences
        self._shown_last = shown_last(packets.file_order)

    @property
    def may_seek(self) -> bool:
        """Whether frames can be decoded from the keyframe before them, which a seek finds."""
        return self._may_skip and self._may_seek

    def read(self, wanted: Sequence[int], positions: range) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode some of the wanted frames, as if all of them were decoded.

        Args:
            wanted: Indices of frames, ascending.
            positions: Which of them to return.

        Yields:
            (index, frame) for each frame to return that can be decoded, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        done = positions.start
        first_frame = self._packets.first_frame
        if positions and first_frame is not None and self._packets.index_of(first_frame.pts) == wanted[done]:
            yield wanted[done], first_frame
            done += 1
            self.decoded += not done < positions.stop  # with others, it is decoded again on the way to them
        # Where most frames on the way to the wanted ones are wanted, too, to drop others would gain little.
        may_drop = self._may_drop and 2 * len(wanted) < decoded_before(wanted, self._packets.keyframes)[-1]
        # Positions of the wanted frames of a damaged sequence. If it is unknown what to do about damage, all may be.
        damaged = range(0) if may_drop or self._sequences is not None else positions
        while done < positions.stop:
            is_damaged = done in damaged
            some = damaged if is_damaged else range(done, positions.stop)
            try:
                with open_undecoded(self._name) as container:
                    decoder = _Decoder(
                        container,
                        self._packets,
                        self._heartbeat,
                        may_seek=self._may_seek,
                        only=wanted[some.start : some.stop] if may_drop and not is_damaged else None,
                        shown_last=None if is_damaged else self._shown_last,
                    )
                    try:
                        for position, frame in self._read_once(wanted[some.start : some.stop], decoder):
                            if some.start + position >= done:
                                done = some.start + position + 1
                                yield wanted[done - 1], frame
                    finally:
                        self.decoded += decoder.decoded
            except av.FFmpegError as error:
                raise MediaError(f"it could be read once but not again: {error.strerror}") from None
            except _DamageMet:
                damaged = self._sequence_at(wanted, range(done, positions.stop))
            except _KeyframeMissed:
                # Read the rest from the beginning of the file, without seeking or else without skipping.
                if self._may_seek:
                    self._may_seek = False
                else:
                    self._may_skip = False
            else:
                done = some.stop

    def _sequence_at(self, wanted: Sequence[int], positions: range) -> range:
        """Return the positions of the wanted frames in the sequence of the first of some positions, until these end.

        Where sequences are unknown, these are all positions.
        """
        if self._sequences is None:
            return positions
        sequences = self._sequences[np.asarray(wanted)]
        here = sequences[positions.start]
        start, stop = np.searchsorted(sequences, (here, here + 1)).tolist()
        return range(start, min(stop, positions.stop))

    def _read_once(self, wanted: Sequence[int], decoder: _Decoder) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (position in `wanted`, frame).

        Raises _KeyframeMissed if decoding from a keyframe does not give the first frame that is wanted after it, and
        _DamageMet if the decoder ends at damage and a wanted frame cannot be decoded.
        """
        for run in self._plan(wanted):
            position = run.first
            reached = run.keyframe < 0  # decoding from a keyframe must first return a frame up to the first wanted one
            for index, frame in decoder.decode(run):
                reached = reached or index <= wanted[run.first]
                if not reached:
                    break
                while position < run.stop and wanted[position] < index:
                    decoder.meet_damage()
                    position += 1
                if position < run.stop and wanted[position] == index:
                    yield position, frame
                    position += 1
                if position == run.stop:
                    break
            if position < run.stop:
                decoder.meet_damage()
            if not reached:
                raise _KeyframeMissed

    def _plan(self, wanted: Sequence[int]) -> Iterator[DecodeRun]:
        if self._may_skip:
            return plan_runs(wanted, self._packets.keyframes, self._packets.file_order)
        last = max(wanted, key=self._packets.file_order.__getitem__) if len(self._packets.pts) else -1
        return iter([DecodeRun(-1, 0, len(wanted), last)])


class DecodeRun(NamedTuple):
    """Wanted frames, and the range of the file to decode for them."""

    keyframe: int
    """Index of the keyframe from which to decode; -1 for the beginning of the file."""
    first: int
    """Position of the run's first frame among the wanted frames."""
    stop: int
    """Position among the wanted frames after the run's last frame."""
    last: int
    """Index of the run's frame that is stored last in the file; -1 if unknown, so decode to the end of the file."""


def plan_runs(
    wanted: Sequence[int], keyframes: NDArray[np.bool_], file_order: NDArray[np.int64]
) -> Iterator[DecodeRun]:
    """Divide wanted frames into runs, so that frames between a run and the next keyframe are not decoded.

    Args:
        wanted: Indices of frames, ascending; at least one.
        keyframes: Whether each frame is a keyframe, as in `PacketIndex`.
        file_order: Position of each frame in the file, as in `PacketIndex`.

    Yields:
        The runs, each stored after the one before it in the file.
    """
    starts = np.append(-1, np.flatnonzero(keyframes))
    starts = starts[np.searchsorted(starts, np.asarray(wanted), "right") - 1]
    first, last = 0, wanted[0]
    for position in range(1, len(wanted)):
        index, start = wanted[position], int(starts[position])
        if start > wanted[position - 1] + 1 and file_order[start] > file_order[last]:
            yield DecodeRun(int(starts[first]), first, position, last)
            first, last = position, index
        elif file_order[index] > file_order[last]:
            last = index
    yield DecodeRun(int(starts[first]), first, len(wanted), last)


class _KeyframeMissed(Exception):
    """The keyframe of a run is not where the index says, or decoding from it does not return the wanted frames."""


class _DamageMet(Exception):
    """A packet or a frame is damaged, or a wanted frame is missing."""


class _Decoder:
    """Decode runs of frames in one pass through an open file, from its beginning to its end."""

    def __init__(
        self,
        container: av.container.InputContainer,
        packets: PacketIndex,
        heartbeat: Callable[[], None],
        *,
        may_seek: bool,
        only: Sequence[int] | None,
        shown_last: NDArray[np.int64] | None,
    ) -> None:
        """Begin at the beginning of the file.

        Args:
            container: The open file.
            packets: Its index.
            heartbeat: Called regularly while decoding makes progress.
            may_seek: Whether to seek in the file.
            only: Indices of frames, ascending, besides which disposable frames are dropped; None to drop nothing.
            shown_last: Result of the function `shown_last`, with which decoding ends at damage; None to go on then.
        """
        stream = container.streams[packets.stream_index]
        assert isinstance(stream, VideoStream)
        self._container, self._stream, self._codec = container, stream, stream.codec_context
        self._codec.thread_count = 1  # the machine's cores are used by several decode processes
        self._packets, self._heartbeat, self._may_seek = packets, heartbeat, may_seek
        self._has_pts = bool(len(packets.pts))
        self._filter = PacketFilter(stream)
        self._timeline = Timeline(container, packets.clock_offsets)
        self._demuxed = self._demux()
        self._file_position = 0
        self._dropped_packets = 0
        self._disposable = DisposableFrames(self._codec)
        # Whether each frame is wanted; None if disposable ones are decoded, too.
        self._is_wanted: NDArray[np.bool_] | None = None
        if only is not None:
            self._is_wanted = np.zeros(len(packets.times), bool)
            self._is_wanted[np.asarray(only)] = True
        self._shown_last = shown_last
        self.decoded = 0
        """Number of frames that the codec returned."""

    def decode(self, run: DecodeRun) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (index, frame) for every frame that the codec returns.

        Raises _KeyframeMissed if the keyframe of the run is not where the index says, and _DamageMet if damage ends
        decoding, before any frame comes that may show it.
        """
        self._codec.flush_buffers()
        # A damaged frame may be noticed only when it comes, after the frames that are shown before it and refer to it.
        held = deque[tuple[int, av.VideoFrame]]()
        for packet in chain(self._packets_of(run), [None]):
            for frame in self._decode_packet(packet):
                self._heartbeat()
                index = self._packets.index_of(frame.pts) if self._has_pts else self.decoded
                self.decoded += 1
                if index >= 0:
                    held.append((index, frame))
                    while held and (self._shown_last is None or index >= self._shown_last[held[0][0]]):
                        yield held.popleft()
        yield from held

    def _decode_packet(self, packet: av.Packet[VideoStream] | None) -> list[av.VideoFrame]:
        errors = _logged_errors()
        try:
            frames = self._codec.decode(packet)
        except av.FFmpegError:
            self.meet_damage()
            return []  # a damaged packet only costs its own frame
        if _logged_errors() > errors or any(frame.is_corrupt for frame in frames):
            self.meet_damage()
        return frames

    def meet_damage(self) -> None:
        """Raise _DamageMet if damage ends decoding."""
        if self._shown_last is not None:
            raise _DamageMet

    def _packets_of(self, run: DecodeRun) -> Iterator[av.Packet[VideoStream]]:
        """Yield the packets to decode, from the keyframe of the run to the packet of its last frame."""
        started = run.keyframe < 0
        leading = self._packets.leading_packets if started else 0
        if not started and self._may_seek:
            distance = self._packets.file_order[run.keyframe] - self._file_position
            if distance > SEEK_PACKETS:
                self._seek(run.keyframe)
        for packet in islice(self._demuxed, leading, None):
            index = self._packets.index_of(packet.pts) if self._filter.is_shown(packet) else -1
            if index >= 0:
                self._file_position = int(self._packets.file_order[index])
            if not started:
                if packet.is_keyframe and index > run.keyframe:
                    raise _KeyframeMissed
                started = index == run.keyframe
                self._count_dropped_packet()
            if started and self._is_superfluous(packet, index):
                self._count_dropped_packet()
            elif started and not packet.is_corrupt:
                yield packet
            if started and index == run.last >= 0:
                return

    def _is_superfluous(self, packet: av.Packet[VideoStream], index: int) -> bool:
        """Return whether a packet holds a frame that is disposable and not wanted."""
        if self._is_wanted is None or not self._disposable.has(packet):
            return False
        return index < 0 or not self._is_wanted[index]

    def _demux(self) -> Iterator[av.Packet[VideoStream]]:
        with suppress(av.FFmpegError):  # the frames after a read error are lost
            for packet in self._container.demux(self._stream):
                if packet.size:
                    if len(self._packets.clock_offsets) > 1:
                        self._timeline.place(packet)
                    yield from self._filter.frames(packet)

    def _seek(self, keyframe: int) -> None:
        try:
            margin = round(SEEK_MARGIN_SECONDS / (self._stream.time_base or 1))
            self._container.seek(int(self._packets.pts[keyframe]) - margin, stream=self._stream)
        except av.FFmpegError:
            raise _KeyframeMissed from None
        self._demuxed = self._demux()

    def _count_dropped_packet(self) -> None:
        self._dropped_packets += 1
        if self._dropped_packets % PACKETS_PER_HEARTBEAT == 0:
            self._heartbeat()


def _logged_errors() -> int:
    """Return how many errors FFmpeg has logged in this process, also of pictures that it shows with something else."""
    return av.logging.get_last_error()[0]


def read_with_decord(
    name: str, packets: PacketIndex, heartbeat: Callable[[], None]
) -> Iterator[tuple[int, FrameArray]]:
    """Decode all frames of a video file with decord.

    Its own build of FFmpeg reads some files on which that of PyAV hangs or crashes.

    Args:
        name: Name under which FFmpeg opens the file.
        packets: The index of the file.
        heartbeat: Called for each frame.

    Yields:
        (index, frame) from the first frame on; (height, width, 3) uint8 RGB, as stored. Nothing if decord would return
        other frames than those in `packets`, and nothing more after a frame that decord cannot decode.
    """
    if (
        packets.container_format not in DECORD_FORMATS
        or packets.video_streams > 1
        or packets.corrupt_packets
        or packets.info.rotation
    ):
        return
    import decord  # imported late, because it takes longer to import than everything else

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # One thread, because the machine's cores are used by several decode processes.
        reader = decord.VideoReader(name, num_threads=1)
        if not _has_same_times(reader, packets):
            return
        # decord's skip_frames returns the wrong frames of files without an index, so every frame is decoded.
        for index in range(len(packets.times)):
            frame = reader.next().asnumpy()
            if frame.shape != (packets.info.height, packets.info.width, 3):
                return  # decord takes the padding of small frames for more channels
            heartbeat()
            yield index, frame
    except (decord.DECORDError, StopIteration):
        return


def _has_same_times(reader: Any, packets: PacketIndex) -> bool:
    starts = reader.get_frame_timestamp(range(len(reader)))[:, 0].astype(np.float64)
    times = packets.times
    if len(starts) != len(times):
        return False
    return bool(np.abs((starts - starts[0]) - (times - times[0])).max() <= DECORD_TOLERANCE_SECONDS)
