"""Decode the beginning of a video stream, up to the first frame.

A decoded frame alone tells the rotation, and where a recording begins in the middle of a group of pictures, only
decoding tells which frames can be decoded.
"""

from __future__ import annotations

from contextlib import suppress

import av
import numpy as np
from av.format import Flags
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelscribe.decode.source_file import has_flag

FIRST_FRAME_PACKETS = 100
"""Number of packets in which the first frame is searched. Without a limit, a file that cannot be decoded would be
searched to its end."""

LEADING_PACKETS = 1000
"""Largest number of packets before the first keyframe of a recording; no group of pictures is longer. If there are
more, keyframes have been lost, and the file is damaged."""


class Beginning:
    """The beginning of a video stream, up to the first frame that can be decoded.

    Args:
        video: The video stream.
        container_format: The container format of the file.
    """

    def __init__(self, video: VideoStream, container_format: av.ContainerFormat) -> None:
        self._codec = video.codec_context
        # Before the first keyframe other decoders return nothing, and that of MPEG-4 returns grey frames.
        is_recording = any(has_flag(container_format, flag) for flag in (Flags.ts_discont, Flags.no_timestamps))
        self._waits_for_keyframe = is_recording and self._codec.name == "mpeg4"
        self._packets_before_keyframe = self._packets_from_keyframe = 0
        self._ended = self._damaged = False
        self.first_frame: av.VideoFrame | None = None
        """The first frame; None if none can be decoded."""
        self.delay = 0
        """Number of packets that the decoder needs after the one of the first frame, to return the first frame."""

    def add(self, packet: av.Packet[VideoStream]) -> None:
        """Take the next packet of the stream."""
        if self._ended:
            return
        if packet.is_keyframe or self._packets_from_keyframe:
            self._packets_from_keyframe += 1
        else:
            self._packets_before_keyframe += 1
        if not self._waits_for_keyframe or self._packets_from_keyframe:
            self._decode(packet)
        if self._packets_before_keyframe > LEADING_PACKETS:
            self._ended = self._damaged = True
        self._ended = self._ended or self._packets_from_keyframe == FIRST_FRAME_PACKETS

    def _decode(self, packet: av.Packet[VideoStream]) -> None:
        try:
            frames = None if packet.is_corrupt else self._codec.decode(packet)
        except av.FFmpegError:
            frames = None
        if frames:
            self._ended = True
            self.first_frame = frames[0]
        elif frames is None:
            self._damaged = bool(self._packets_from_keyframe)  # without a keyframe, nothing can be decoded
        else:
            self.delay += 1

    def end(self) -> None:
        """Take the first frame from a decoder that waited for more packets, at the end of a short file."""
        if not (self._ended or self._damaged):
            with suppress(av.FFmpegError):
                self.first_frame = next(iter(self._codec.decode(None)), None)

    @property
    def rotation(self) -> int:
        """Degrees by which a player turns the frames clockwise; 0 if none can be decoded."""
        # FFmpeg's angle is counterclockwise.
        return round(-self.first_frame.rotation / 90) % 4 * 90 if self.first_frame else 0

    @property
    def leading_packets(self) -> int:
        """Number of packets that must not be decoded."""
        can_begin = self._waits_for_keyframe and self._packets_from_keyframe and not self._damaged
        return self._packets_before_keyframe if can_begin else 0

    def skipped(self, pts: NDArray[np.int64]) -> int:
        """Return the number of frames before the first that can be decoded.

        Args:
            pts: Presentation times of all frames, ascending; empty if frames have none.
        """
        if self._damaged:
            return 0
        if self.first_frame and self.first_frame.pts is not None and (pts == self.first_frame.pts).any():
            return int(np.searchsorted(pts, self.first_frame.pts))
        return self._packets_before_keyframe
