"""Tell clean keyframes, from which on a decoder shows the same frames whatever it has decoded before, from others."""

from __future__ import annotations

import av
from av.video.stream import VideoStream

from reelscribe.decode.random_access.nal_units import NalUnits

_KEYFRAME_CODECS = {"vp9", "av1", "libdav1d"}
"""Names of the decoders for which every keyframe is clean. Others are left out because they fill what is damaged with
what their memory has from earlier frames, and do not say so: those of HEVC, VP8, and of codecs with keyframes alone."""

_H264_SLICES = range(1, 6)
"""Types of the units of H.264 that hold slices of a picture (ITU-T H.264, table 7-1)."""

_H264_IDR_SLICE = 5
"""Type of the slices with which everything before is forgotten."""


class CleanKeyframes:
    """Tells the clean keyframes of a video stream.

    Args:
        stream: The video stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._name = stream.codec_context.name
        self._units = NalUnits(stream.codec_context) if self._name == "h264" else None

    def is_clean(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame is a clean keyframe."""
        if not packet.is_keyframe or packet.is_corrupt:
            return False
        if self._units is None:
            return self._name in _KEYFRAME_CODECS
        if not self._units.has_lengths:  # such files have no index, either
            return False
        try:
            types = [unit[0] & 31 for unit in self._units.of(packet)]
        except ValueError:  # the packet is damaged; what kind of keyframes a file has, the others say
            return True
        return next((kind for kind in types if kind in _H264_SLICES), None) == _H264_IDR_SLICE
