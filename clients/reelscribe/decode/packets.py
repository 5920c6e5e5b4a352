"""Index a video file by reading its packets: the frames it has, and the presentation time of each.

Only the first frame is decoded, because the rotation is known from a decoded frame alone. It is kept, so that a file of
one frame need not be opened again.
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
from reelscribe.decode.source_file import MISSING_SECONDS, demux, ffmpeg_reason
from reelscribe.errors import MediaError, NoPictures

MISSING_SHARE = 0.02
"""A file is incomplete if its header states more frames than it has, by more than one frame plus this share of its
frames. Inexact headers of complete files differ by less."""

ROTATION_PACKETS = 100
"""Number of packets in which the first frame is searched. Without a limit, a file that cannot be decoded would be
searched to its end."""

_VP8_SHOW_FRAME = 0x10
"""Bit of the first byte of a VP8 frame (RFC 6386, section 9.1)."""


@dataclass(frozen=True)
class PacketIndex:
    """The frames of a video stream in the order of their presentation. Each array has one item per frame."""

    container_format: str
    """FFmpeg's name of the container format."""
    stream_index: int
    """Number of the video stream in the file."""
    video_streams: int
    """Number of video streams in the file, cover pictures included."""
    pts: NDArray[np.int64]
    """Presentation times in units of the stream's time base, ascending; empty if they do not identify frames."""
    times: NDArray[np.float64]
    """Presentation times in seconds, ascending; computed from the average frame rate if the file has none."""
    keyframes: NDArray[np.bool_]
    """Whether each frame is a keyframe, at which decoding can begin."""
    file_order: NDArray[np.int64]
    """Position of each frame among the frames as stored in the file, which is the order of decoding."""
    first_frame: av.VideoFrame | None
    """The first frame that was decoded; None if there is none, or the stream does not begin with a keyframe."""
    corrupt_packets: int
    """Number of packets that the container marks as corrupt."""
    info: VideoInfo
    """Description of the stream."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""

    def index_of(self, pts: int | None) -> int:
        """Return the index of the frame with this presentation time; -1 if there is none, or times do not tell."""
        if pts is None:
            return -1
        index = int(np.searchsorted(self.pts, pts))
        return index if index < len(self.pts) and self.pts[index] == pts else -1


def is_shown(packet: av.Packet[VideoStream]) -> bool:
    """Return whether a packet of a video stream holds a frame that players show.

    Players do not show frames outside the edit list, nor VP8 frames that only serve as references.
    """
    if packet.is_discard:
        return False
    return packet.stream.codec_context.name != "vp8" or bool(memoryview(packet)[0] & _VP8_SHOW_FRAME)


def index_packets(name: str, heartbeat: Callable[[], None]) -> PacketIndex:
    """Read all packets of a file once.

    Args:
        name: Name under which FFmpeg opens the file.
        heartbeat: Called regularly while reading makes progress.

    Returns:
        The index.

    Raises:
        MediaError: The file is not a media file, or its video has no frames or an unknown codec.
        NoPictures: The file has no video stream.
    """
    try:
        with av.open(name) as container:
            return _Scan(container, heartbeat).result()
    except (av.FFmpegError, UnicodeError) as error:
        raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None


class _Scan:
    """One pass over all packets, and the facts that it collects."""

    def __init__(self, container: av.container.InputContainer, heartbeat: Callable[[], None]) -> None:
        self._container = container
        videos = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not videos:
            streams = ", ".join(stream.type for stream in container.streams) or "no streams"
            raise NoPictures(f"expected a video stream with pictures, got {streams}")
        self._video, self._video_streams = videos[0], len(container.streams.video)
        if self._video.codec_context is None:
            raise MediaError("expected a video codec that FFmpeg can decode, got one that it does not know")
        self._video.codec_context.thread_count = 1
        # About the frames that are shown, in the order of the file:
        self._pts, self._keyframes, self._all_have_pts = array("q"), array("b"), True
        self._last_pts, self._last_duration = 0, 0  # of the frame that is shown last
        # About all packets of the video stream:
        self._packets, self._corrupt_packets = 0, 0
        self._begins_with_keyframe = False
        self._first_frame: av.VideoFrame | None = None
        # About all streams:
        self._end_seconds = 0.0
        self._read_error: str | None = None
        self._read(heartbeat)

    def _read(self, heartbeat: Callable[[], None]) -> None:
        try:
            for packet in demux(self._container, heartbeat):
                if packet.pts is not None and packet.time_base is not None:
                    end = float((packet.pts + (packet.duration or 0)) * packet.time_base)
                    self._end_seconds = max(self._end_seconds, end)
                if _belongs_to(packet, self._video):
                    self._add(packet)
            if self._first_frame is None and 0 < self._packets <= ROTATION_PACKETS:
                self._first_frame = _first_frame(lambda: self._video.codec_context.decode(None))
        except (av.FFmpegError, UnicodeError) as error:
            if not self._keyframes:
                raise
            self._read_error = f"cut short: it cannot be read any further: {ffmpeg_reason(error)}"

    def _add(self, packet: av.Packet[VideoStream]) -> None:
        self._packets += 1
        self._corrupt_packets += packet.is_corrupt
        if self._packets == 1:
            self._begins_with_keyframe = packet.is_keyframe
        if self._first_frame is None and self._packets <= ROTATION_PACKETS and not packet.is_corrupt:
            self._first_frame = _first_frame(packet.decode)
        if not is_shown(packet):
            return
        self._keyframes.append(packet.is_keyframe)
        if packet.pts is None:
            self._all_have_pts = False
        else:
            self._pts.append(packet.pts)
            if packet.pts >= self._last_pts or len(self._pts) == 1:
                self._last_pts, self._last_duration = packet.pts, packet.duration or 0

    def result(self) -> PacketIndex:
        if not self._keyframes:
            raise MediaError("expected frames in its video stream, got none; is it cut short?")
        keyframes = np.array(self._keyframes, bool)
        fps = float(self._video.average_rate or self._video.guessed_rate or 0)
        order = np.arange(len(keyframes))
        pts = np.empty(0, np.int64)
        times = order / (fps or 1)
        tick = float(self._video.time_base or 0)
        if self._all_have_pts:
            order = np.argsort(np.array(self._pts), kind="stable")
            pts = np.array(self._pts)[order]
            times, keyframes = (pts * tick).astype(np.float64), keyframes[order]
            if (np.diff(pts) == 0).any() or self._pts_are_packet_numbers(order):
                pts = pts[:0]
        last_seconds = self._last_duration * tick if self._all_have_pts else 0.0
        end_seconds = float(times[-1]) + (last_seconds or 1 / (fps or 1))
        return PacketIndex(
            container_format=self._container.format.name,
            stream_index=self._video.index,
            video_streams=self._video_streams,
            pts=pts,
            times=times,
            keyframes=keyframes,
            file_order=order,
            first_frame=self._first_frame if self._begins_with_keyframe else None,
            corrupt_packets=self._corrupt_packets,
            info=self._info(len(keyframes), fps, float(times[0]), end_seconds),
            why_incomplete=self._why_incomplete(len(keyframes)),
        )

    def _pts_are_packet_numbers(self, order: NDArray[np.int64]) -> bool:
        """Return whether presentation times are only numbers of packets, and wrong.

        AVI stores no times, so FFmpeg numbers the packets, even if the presentation order is not that of the file.
        """
        in_file_order = bool((np.diff(order) > 0).all())
        return self._container.format.name == "avi" and self._video.codec_context.has_b_frames and in_file_order

    def _info(self, frames: int, fps: float, start_seconds: float, end_seconds: float) -> VideoInfo:
        audio = self._container.streams.audio
        aspect = self._video.sample_aspect_ratio or self._video.codec_context.sample_aspect_ratio
        return VideoInfo(
            duration_seconds=round((self._container.duration or 0) / av.time_base, 6),
            width=self._video.width,
            height=self._video.height,
            # FFmpeg's angle is counterclockwise.
            rotation=round(-self._first_frame.rotation / 90) % 4 * 90 if self._first_frame else 0,
            pixel_aspect=float(aspect or 1),
            frames=frames,
            average_fps=round(fps, 6),
            start_seconds=round(start_seconds, 6),
            end_seconds=round(end_seconds, 6),
            video_codec=self._video.codec_context.name,
            audio_codec=audio[0].codec_context.name if audio and audio[0].codec_context else None,
        )

    def _why_incomplete(self, frames: int) -> str | None:
        """Compare the packets with what the header states."""
        stated_end = ((self._container.start_time or 0) + (self._container.duration or 0)) / av.time_base
        missing_seconds = stated_end - self._end_seconds if self._end_seconds else 0.0
        missing_frames = self._video.frames - self._packets
        if self._read_error:
            return self._read_error
        if missing_seconds > MISSING_SECONDS:
            return f"cut short: it ends {missing_seconds:.1f} s before it says it does"
        if missing_frames > 1 + MISSING_SHARE * frames:
            return f"cut short: {missing_frames} of the frames it announces are missing"
        return None


def _belongs_to(packet: av.Packet[Stream], video: VideoStream) -> TypeGuard[av.Packet[VideoStream]]:
    return packet.stream is video


def _first_frame(decode: Callable[[], list[av.VideoFrame]]) -> av.VideoFrame | None:
    """Return the first frame that is decoded, or None if the decoder needs more packets for it."""
    try:
        frames = decode()
    except av.FFmpegError:
        return None
    return frames[0] if frames else None
