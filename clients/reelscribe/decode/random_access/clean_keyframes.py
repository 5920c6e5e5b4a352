"""Tell clean keyframes, from which on a decoder shows the same pictures whatever it has decoded before, from others."""

from __future__ import annotations

import av
from av.video.stream import VideoStream

_KEYFRAME_CODECS = {"vp8", "vp9", "av1", "libdav1d"}
"""Names of the decoders for which every keyframe is clean: it replaces all frames that could be referred to."""

_H264_SLICES = range(1, 6)
"""Types of the units of H.264 that hold slices of a picture (ITU-T H.264, table 7-1)."""
_H264_IDR = range(5, 6)
"""Types of slices with which everything before is forgotten."""

_HEVC_SLICES = range(32)
"""Types of the units of HEVC that hold slices of a picture (ITU-T H.265, table 7-1)."""
_HEVC_IRAP = range(16, 22)
"""Types of slices after which nothing refers to anything before, except leading pictures, which are shown earlier."""

_START_CODE = b"\0\0\1"


class CleanKeyframes:
    """Tells the clean keyframes of a video stream.

    Args:
        stream: The video stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        codec, extradata = stream.codec_context, stream.codec_context.extradata or b""
        self._name = codec.name
        # In MP4 and Matroska, the size of each unit precedes it; the header says in how many bytes, ISO/IEC 14496-15.
        self._size_bytes = 0
        if codec.name == "h264" and len(extradata) > 4 and extradata[0] == 1:
            self._size_bytes = (extradata[4] & 3) + 1
        elif codec.name == "hevc" and len(extradata) > 21 and extradata[:3] not in (b"\0\0\0", _START_CODE):
            self._size_bytes = (extradata[21] & 3) + 1

    def is_clean(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame is a clean keyframe."""
        if not packet.is_keyframe or packet.is_corrupt:
            return False
        if self._name == "h264":
            return self._first_slice(packet, _H264_SLICES, shift=0, mask=0x1F) in _H264_IDR
        if self._name == "hevc":
            return self._first_slice(packet, _HEVC_SLICES, shift=1, mask=0x3F) in _HEVC_IRAP
        return self._name in _KEYFRAME_CODECS

    def _first_slice(self, packet: av.Packet[VideoStream], slices: range, *, shift: int, mask: int) -> int:
        """Return the type of the first unit that holds a slice; -1 if there is none."""
        content, at = bytes(packet), 0
        while 0 <= (begin := self._unit(content, at)) < len(content):
            kind = content[begin] >> shift & mask
            if kind in slices:
                return kind
            at = begin + (int.from_bytes(content[at:begin], "big") if self._size_bytes else 1)
        return -1

    def _unit(self, content: bytes, at: int) -> int:
        """Return where the next unit begins, behind its size or its start code; at least len(content) or -1 if none."""
        if self._size_bytes:
            return at + self._size_bytes
        found = content.find(_START_CODE, at)
        return -1 if found < 0 else found + len(_START_CODE)
