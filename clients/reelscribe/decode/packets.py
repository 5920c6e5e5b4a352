"""What a pass over the packets of a video file tells: which frames there are, and when each is shown.

Nothing is decoded for that, except the first frame, which alone knows how far it is turned.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

import av
import numpy as np
from av.stream import Disposition, Stream
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe.contract.source import VideoInfo
from reelscribe.decode.source_file import MISSING_SECONDS, PACKETS_PER_HEARTBEAT, first_line
from reelscribe.errors import MediaError, NoPictures

MISSING_SHARE = 0.02
"""A file that has so many frames less than it says was cut. Headers are wrong by less."""

ROTATION_PACKETS = 100
"""So many are tried for a first frame; a file that cannot be decoded must not be decoded twice."""

_VP8_SHOW_FRAME = 0x10


@dataclass(frozen=True)
class Packets:
    """The frames of one video stream, in the order in which they are shown; each array has one item a frame."""

    format: str
    """FFmpeg's name of the container."""
    stream_index: int
    video_streams: int
    stamps: NDArray[np.int64]
    """Presentation times in ticks of the stream's time base; empty where they do not tell frames apart."""
    times: NDArray[np.float64]
    """Presentation times in seconds, ascending, as stamped."""
    keys: NDArray[np.bool_]
    """Whether decoding can begin there."""
    order: NDArray[np.int64]
    """Positions in the file, which is the order of decoding."""
    damaged: int
    """Packets that the container itself calls corrupt."""
    info: VideoInfo
    cut: str | None
    """Why the file is not whole, or None."""


def is_shown(packet: av.Packet[VideoStream]) -> bool:
    """Whether a packet of a video is a frame: not outside of an edit list, and not one that others only refer to."""
    if packet.is_discard:
        return False
    return packet.stream.codec_context.name != "vp8" or bool(memoryview(packet)[0] & _VP8_SHOW_FRAME)


def scan(name: str, heartbeat: Callable[[], None]) -> Packets:
    """Read all packets of the file once. Raises MediaError if it is not a video; calls `heartbeat` now and then."""
    try:
        with av.open(name) as container:
            return _Scan(container, heartbeat).result()
    except (av.FFmpegError, UnicodeError) as error:
        raise MediaError(f"not a media file that can be read: {first_line(error)}") from None


class _Scan:
    """The pass, and what it collects on its way."""

    def __init__(self, container: av.container.InputContainer, heartbeat: Callable[[], None]) -> None:
        self._container = container
        videos = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not videos:
            raise self._no_pictures()
        self._video, self._video_streams = videos[0], len(container.streams.video)
        if self._video.codec_context is None:
            raise MediaError("expected a video codec that FFmpeg can decode, got one that it does not know")
        self._video.codec_context.thread_count = 1
        self._stamps, self._keys, self._all_stamped = array("q"), array("b"), True
        self._stored, self._damaged, self._end_seconds = 0, 0, 0.0
        self._last_stamp, self._last_duration = 0, 0
        self._rotation: int | None = None
        self._stopped: str | None = None
        self._read(heartbeat)

    def _read(self, heartbeat: Callable[[], None]) -> None:
        packets = enumerate(self._container.demux())
        while True:
            try:
                count, packet = next(packets)
            except StopIteration:
                return
            except (av.FFmpegError, UnicodeError) as error:
                if not self._keys:
                    raise
                self._stopped = f"cut short: it cannot be read any further: {first_line(error)}"
                return
            if count % PACKETS_PER_HEARTBEAT == 0:
                heartbeat()
            if packet.size == 0:
                continue  # the end of a stream
            if packet.pts is not None and packet.time_base is not None:
                end = float((packet.pts + (packet.duration or 0)) * packet.time_base)
                self._end_seconds = max(self._end_seconds, end)
            if _is_of(packet, self._video):
                self._take(packet)

    def _take(self, packet: av.Packet[VideoStream]) -> None:
        self._stored += 1
        self._damaged += packet.is_corrupt
        if self._rotation is None and self._stored <= ROTATION_PACKETS and not packet.is_corrupt:
            self._rotation = _rotation(packet)
        if not is_shown(packet):
            return
        self._keys.append(packet.is_keyframe)
        if packet.pts is None:
            self._all_stamped = False
        else:
            self._stamps.append(packet.pts)
            if packet.pts >= self._last_stamp or len(self._stamps) == 1:
                self._last_stamp, self._last_duration = packet.pts, packet.duration or 0

    def result(self) -> Packets:
        if not self._keys:
            raise MediaError("expected frames in its video stream, got none; is it cut short?")
        keys = np.array(self._keys, bool)
        fps = float(self._video.average_rate or self._video.guessed_rate or 0)
        order = np.arange(len(keys))
        stamps = np.empty(0, np.int64)
        times = order / (fps or 1)
        tick = float(self._video.time_base or 0)
        if self._all_stamped:
            order = np.argsort(np.array(self._stamps), kind="stable")
            stamps = np.array(self._stamps)[order]
            times, keys = (stamps * tick).astype(np.float64), keys[order]
            if (np.diff(stamps) == 0).any() or self._stamps_are_positions(order):
                stamps = stamps[:0]
        last_seconds = (self._last_duration * tick if self._all_stamped else 0) or 1 / (fps or 1)
        return Packets(
            format=self._container.format.name,
            stream_index=self._video.index,
            video_streams=self._video_streams,
            stamps=stamps,
            times=times,
            keys=keys,
            order=order,
            damaged=self._damaged,
            info=self._info(len(keys), fps, float(times[0]), float(times[-1]) + last_seconds),
            cut=self._cut(len(keys)),
        )

    def _stamps_are_positions(self, order: NDArray[np.int64]) -> bool:
        """AVI stores no times. FFmpeg counts packets then, also where frames are not shown in the order of the file."""
        in_file_order = bool((np.diff(order) > 0).all())
        return self._container.format.name == "avi" and self._video.codec_context.has_b_frames and in_file_order

    def _info(self, frames: int, fps: float, start_seconds: float, end_seconds: float) -> VideoInfo:
        audio = self._container.streams.audio
        aspect = self._video.sample_aspect_ratio or self._video.codec_context.sample_aspect_ratio
        return VideoInfo(
            duration_seconds=round((self._container.duration or 0) / av.time_base, 6),
            width=self._video.width,
            height=self._video.height,
            rotation=self._rotation or 0,
            pixel_aspect=float(aspect or 1),
            frames=frames,
            average_fps=round(fps, 6),
            start_seconds=round(start_seconds, 6),
            end_seconds=round(end_seconds, 6),
            video_codec=self._video.codec_context.name,
            audio_codec=audio[0].codec_context.name if audio and audio[0].codec_context else None,
        )

    def _cut(self, frames: int) -> str | None:
        """The packets are held against what the header says."""
        said = ((self._container.start_time or 0) + (self._container.duration or 0)) / av.time_base
        missing_seconds = said - self._end_seconds if self._end_seconds else 0.0
        missing_frames = self._video.frames - self._stored
        if self._stopped:
            return self._stopped
        if missing_seconds > MISSING_SECONDS:
            return f"cut short: it ends {missing_seconds:.1f} s before it says it does"
        if missing_frames > 1 + MISSING_SHARE * frames:
            return f"cut short: {missing_frames} of the frames it announces are missing"
        return None

    def _no_pictures(self) -> NoPictures:
        streams = ", ".join(stream.type for stream in self._container.streams) or "no streams"
        return NoPictures(f"expected a video stream with pictures, got {streams}")


def _is_of(packet: av.Packet[Stream], video: VideoStream) -> TypeGuard[av.Packet[VideoStream]]:
    return packet.stream is video


def _rotation(packet: av.Packet[VideoStream]) -> int | None:
    """Degrees clockwise, or None as long as no frame has come out of the decoder."""
    try:
        frames = packet.decode()
    except av.FFmpegError:
        return None
    # FFmpeg's angle is counterclockwise.
    return round(-frames[0].rotation / 90) % 4 * 90 if frames else None
