"""Frames by their numbers, decoded by PyAV; those that nobody wants are not decoded where a keyframe allows it.

Frames are told apart by their presentation times, so a packet that cannot be decoded costs its own frame and moves no
other. Where times are missing or come twice, frames are counted from the beginning instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe.contract.frames import FrameArray
from reelscribe.decode.packets import Packets, is_shown
from reelscribe.decode.source_file import PACKETS_PER_HEARTBEAT
from reelscribe.errors import MediaError

SEEK_PACKETS = 100
"""Fewer are read and thrown away: that is quick, and right in every container."""

EARLY_SECONDS = 1.0
"""Seeking aims so much before a keyframe, as containers without an index are searched by times of decoding."""


class Run(NamedTuple):
    """Wanted frames that are decoded in one go."""

    key: int
    """Index of the keyframe to begin with; -1: the beginning of the file."""
    first: int
    stop: int
    """Which of the wanted ones: from `first` to before `stop`."""
    last: int
    """Index of the one that comes last in the file: what is behind it is not needed."""


def runs(wanted: Sequence[int], keys: NDArray[np.bool_], order: NDArray[np.int64]) -> Iterator[Run]:
    """`wanted` (ascending indices, at least one) as runs, each behind the one before it in the file.

    `keys` and `order` are those of `Packets`.
    """
    starts = np.append(-1, np.flatnonzero(keys))
    starts = starts[np.searchsorted(starts, np.asarray(wanted), "right") - 1]
    first, last = 0, wanted[0]
    for at in range(1, len(wanted)):
        index, start = wanted[at], int(starts[at])
        if start > wanted[at - 1] + 1 and order[start] > order[last]:
            yield Run(int(starts[first]), first, at, last)
            first, last = at, index
        elif order[index] > order[last]:
            last = index
    yield Run(int(starts[first]), first, len(wanted), last)


class _Missed(Exception):
    """The keyframe of a run was not found where it should be, or its frames did not come out."""


class FrameReader:
    """Reads frames of the file `name`, whose packets are `packets`; calls `heartbeat` whenever it gets on."""

    def __init__(self, name: str, packets: Packets, heartbeat: Callable[[], None]) -> None:
        self._name, self._packets, self._beat = name, packets, heartbeat
        self.decoded = 0
        """Frames that came out of the decoder, wanted or not."""
        self._may_skip = self._may_seek = bool(len(packets.stamps))

    def read(self, wanted: Sequence[int]) -> Iterator[tuple[int, av.VideoFrame]]:
        """(index, frame) of those of `wanted`, ascending indices, that can be decoded, in this order."""
        done = 0
        while done < len(wanted):
            left = wanted[done:]
            try:
                with av.open(self._name) as container:
                    demuxer = _Demuxer(container, self._packets, self._beat, may_seek=self._may_seek)
                    try:
                        for at, frame in self._read_once(left, demuxer):
                            done = len(wanted) - len(left) + at + 1
                            yield left[at], frame
                    finally:
                        self.decoded += demuxer.decoded
            except av.FFmpegError as error:
                raise MediaError(f"it could be read once but not again: {error.strerror}") from None
            except _Missed:
                # Once more from the beginning, first without seeking, and then without leaving anything out.
                self._may_seek, self._may_skip = False, self._may_seek
            else:
                return

    def _read_once(self, wanted: Sequence[int], demuxer: _Demuxer) -> Iterator[tuple[int, av.VideoFrame]]:
        """(position in `wanted`, frame). Raises _Missed where a keyframe does not lead to what is wanted."""
        for run in self._runs(wanted):
            at, reached = run.first, run.key < 0
            for index, frame in demuxer.frames_of(run):
                reached = reached or index <= wanted[run.first]
                if not reached:
                    break
                while at < run.stop and wanted[at] < index:
                    at += 1
                if at == run.stop:
                    break
                if wanted[at] == index:
                    yield at, frame
                    at += 1
            if not reached:
                raise _Missed

    def _runs(self, wanted: Sequence[int]) -> Iterator[Run]:
        keys, order = self._packets.keys, self._packets.order
        if self._may_skip:
            return runs(wanted, keys, order)
        last = max(wanted, key=order.__getitem__) if len(self._packets.stamps) else -1
        return iter([Run(-1, 0, len(wanted), last)])


class _Demuxer:
    """One way through an open file, from its beginning to its end."""

    def __init__(
        self,
        container: av.container.InputContainer,
        packets: Packets,
        heartbeat: Callable[[], None],
        *,
        may_seek: bool,
    ) -> None:
        stream = container.streams[packets.stream_index]
        assert isinstance(stream, VideoStream)
        self._container, self._stream, self._decoder = container, stream, stream.codec_context
        self._decoder.thread_count = 1  # processes are what runs in parallel here
        self._packets, self._beat, self._may_seek = packets, heartbeat, may_seek
        self._demuxed = self._demux()
        self._stamped = bool(len(packets.stamps))
        self._at = self.decoded = self._thrown_away = 0

    def frames_of(self, run: Run) -> Iterator[tuple[int, av.VideoFrame]]:
        """(index, frame) of all that comes out of the decoder. Raises _Missed if the keyframe is not there."""
        self._decoder.flush_buffers()
        for packet in chain(self._packets_of(run), [None]):
            try:
                frames = self._decoder.decode(packet)
            except av.FFmpegError:
                continue  # what is damaged costs its own frame
            for frame in frames:
                self._beat()
                index = self._index_of(frame.pts) if self._stamped else self.decoded
                self.decoded += 1
                if index >= 0:
                    yield index, frame

    def _packets_of(self, run: Run) -> Iterator[av.Packet[VideoStream]]:
        """Those to decode, from the keyframe of `run` to its last frame."""
        started = run.key < 0
        if not started and self._may_seek and self._packets.order[run.key] - self._at > SEEK_PACKETS:
            self._seek(run.key)
        for packet in self._demuxed:
            index = self._index_of(packet.pts) if is_shown(packet) else -1
            if index >= 0:
                self._at = int(self._packets.order[index])
            if not started:
                if packet.is_keyframe and index > run.key:
                    raise _Missed
                started = index == run.key
                self._count_thrown_away()
            if started and not packet.is_corrupt:
                yield packet
            if started and index == run.last >= 0:
                return

    def _demux(self) -> Iterator[av.Packet[VideoStream]]:
        with suppress(av.FFmpegError):  # what cannot be read any further has no more frames
            for packet in self._container.demux(self._stream):
                if packet.size:
                    yield packet

    def _seek(self, key: int) -> None:
        try:
            early = round(EARLY_SECONDS / (self._stream.time_base or 1))
            self._container.seek(int(self._packets.stamps[key]) - early, stream=self._stream)
        except av.FFmpegError:
            raise _Missed from None
        self._demuxed = self._demux()

    def _index_of(self, stamp: int | None) -> int:
        """Of the frame with that presentation time; -1 if there is none."""
        if stamp is None or not self._stamped:
            return -1
        index = int(np.searchsorted(self._packets.stamps, stamp))
        return index if index < len(self._packets.stamps) and self._packets.stamps[index] == stamp else -1

    def _count_thrown_away(self) -> None:
        self._thrown_away += 1
        if self._thrown_away % PACKETS_PER_HEARTBEAT == 0:
            self._beat()


FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi"}
"""FFmpeg's names of the containers with an index that decord reads rightly."""

SAME_SECONDS = 1e-3


def read_with_decord(name: str, packets: Packets, heartbeat: Callable[[], None]) -> Iterator[tuple[int, FrameArray]]:
    """(index, (height, width, 3) uint8 RGB) of every frame of the file `name`, from the first on, as stored.

    Gives none at all if decord would give others than `packets` says, and stops early at a frame that it cannot decode.
    """
    if packets.format not in FORMATS or packets.video_streams > 1 or packets.damaged or packets.info.rotation:
        return
    import decord  # here, as it takes longer than all the rest

    decord.logging.set_level(decord.logging.QUIET)
    try:
        # One thread: processes are what runs in parallel here.
        reader = decord.VideoReader(name, num_threads=1)
        if not _agrees(reader, packets):
            return
        # Not skip_frames, which lands on other frames in files without an index.
        for index in range(len(packets.times)):
            frame = reader.next().asnumpy()
            if frame.shape != (packets.info.height, packets.info.width, 3):
                return  # it takes the padding of small frames for more channels
            heartbeat()
            yield index, frame
    except (decord.DECORDError, StopIteration):
        return


def _agrees(reader: Any, packets: Packets) -> bool:
    starts = reader.get_frame_timestamp(range(len(reader)))[:, 0].astype(np.float64)
    times = packets.times
    return len(starts) == len(times) and bool(np.abs((starts - starts[0]) - (times - times[0])).max() <= SAME_SECONDS)
