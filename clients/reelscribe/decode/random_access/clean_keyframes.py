"""Tell clean keyframes, from which on a decoder shows the same frames whatever it has decoded before, from others."""

from __future__ import annotations

import av
from av.video.stream import VideoStream

_KEYFRAME_CODECS = {"vp9", "av1", "libdav1d"}
"""Names of the decoders for which every keyframe is clean. Others are left out because they fill what is damaged with
what their memory has from earlier frames, and do not say so: those of HEVC, VP8, and of codecs with keyframes alone."""

_SLICES = range(1, 6)
"""Types of the units of H.264 that hold slices of a picture (ITU-T H.264, table 7-1)."""

_IDR_SLICE = 5
"""Type of the slices with which everything before is forgotten."""


class CleanKeyframes:
    """Tells the clean keyframes of a video stream.

    Args:
        stream: The video stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._name = stream.codec_context.name
        extradata = stream.codec_context.extradata or b""
        # In MP4 and Matroska, the size of each unit precedes it; the header says in how many bytes, ISO/IEC 14496-15.
        self._size_bytes = (extradata[4] & 3) + 1 if len(extradata) > 4 and extradata[0] == 1 else 0

    def is_clean(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame is a clean keyframe."""
        if not packet.is_keyframe or packet.is_corrupt:
            return False
        if self._name == "h264":
            return bool(self._size_bytes) and self._first_slice(bytes(packet)) == _IDR_SLICE
        return self._name in _KEYFRAME_CODECS

    def _first_slice(self, content: bytes) -> int:
        """Return the type of the first unit of H.264 that holds a slice; -1 if there is none."""
        at = self._size_bytes
        while at < len(content):
            kind = content[at] & 0x1F
            if kind in _SLICES:
                return kind
            at += int.from_bytes(content[at - self._size_bytes : at], "big") + self._size_bytes
        return -1
