"""Tell which packets hold frames that no other frame is predicted from, so that they are decoded only if wanted.

H.264 and HEVC mark such frames in the headers of their NAL units, and the pictures of all other frames are the same
without them. The frames of other codecs leave traces that no header tells: those of VP9, for example, change the
probabilities with which later frames are coded.

Sections are those of ITU-T H.264 and H.265.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import av
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from reelscribe.decode.random_access.nal_units import NalUnits, Unit


class DisposableFrames:
    """Tells which packets of a video stream hold frames that no other frame needs.

    Args:
        codec: The codec of the stream.
    """

    def __init__(self, codec: VideoCodecContext) -> None:
        self._reader: _Reader | None = None
        if codec.name in CODECS:
            self._units, self._reader = NalUnits(codec), _READERS[codec.name]()
            with suppress(IndexError, ValueError):  # of damaged parameters; then no frame is known to be disposable
                self._reader.read(self._units.parameters)

    def has(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether no other frame needs the frame of a packet.

        All packets since the keyframe must have been asked for, as parameter sets may change between frames.
        """
        if self._reader is None:
            return False
        try:
            return self._reader.read(self._units.of(packet)) and not packet.is_keyframe
        except (IndexError, ValueError):  # of a damaged packet
            return False


class _Reader(Protocol):
    """Reads the headers of the NAL units of a codec."""

    def read(self, units: list[Unit]) -> bool:
        """Read the units of a packet, and return whether they are those of a frame that no other frame needs."""


class _H264Reader:
    """Reads headers of H.264, where a picture with nal_ref_idc 0 is used for no other one (section 7.4.1)."""

    _SLICE_OF_NO_REFERENCE = 0x01
    """First byte of the slices of such pictures."""
    _HARMLESS = (0x06, 0x09, 0x0C)
    """First bytes of supplemental information, delimiters and filler data."""
    _PARAMETER_SET = 7
    """Type of sequence parameter sets."""
    _CHROMA_PROFILES = (44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 144, 244)
    """Profiles whose parameter sets describe the format of chroma (section 7.3.2.1.1)."""

    def __init__(self) -> None:
        # Where pictures may be fields, a packet may hold one of the two fields of a frame, and the other be needed.
        self._only_frames: bool | None = None

    def read(self, units: list[Unit]) -> bool:
        for unit in units:
            if unit[0] & 31 == self._PARAMETER_SET:
                self._only_frames = self._only_frames is not False and self._is_only_of_frames(bytes(unit))
        firsts = {unit[0] for unit in units}.difference(self._HARMLESS)
        return firsts == {self._SLICE_OF_NO_REFERENCE} and self._only_frames is True

    def _is_only_of_frames(self, parameters: bytes) -> bool:
        """Return frame_mbs_only_flag; False where it is behind scaling lists, which are not read."""
        bits = _Bits(parameters[4:])
        bits.skip_numbers(1)
        if parameters[1] in self._CHROMA_PROFILES:
            if bits.number() == 3:
                bits.flag()
            bits.skip_numbers(2)
            bits.flag()
            if bits.flag():
                return False
        bits.skip_numbers(1)
        order_type = bits.number()
        if order_type == 0:
            bits.skip_numbers(1)
        elif order_type == 1:
            bits.flag()
            bits.skip_numbers(2)
            bits.skip_numbers(bits.number())
        bits.skip_numbers(1)
        bits.flag()
        bits.skip_numbers(2)
        return bits.flag()


class _HevcReader:
    """Reads headers of HEVC.

    Pictures of some types are used for no other picture of their temporal sub-layer, and none is used for pictures of
    lower ones (section 7.4.2.2). So nothing needs a picture of such a type in the highest sub-layer.
    """

    _SLICES_OF_NO_REFERENCE = (0x00, 0x04, 0x08, 0x0C, 0x10)
    """First bytes of the slices of such pictures: of the types TRAIL_N, TSA_N, STSA_N, RADL_N and RASL_N."""
    _HARMLESS = (0x46, 0x4C, 0x4E, 0x50)
    """First bytes of delimiters, filler data and supplemental information."""
    _PARAMETER_SET = 0x42
    """First byte of sequence parameter sets."""

    def __init__(self) -> None:
        self._highest_layer = -1

    def read(self, units: list[Unit]) -> bool:
        for unit in units:
            if unit[0] == self._PARAMETER_SET:
                self._highest_layer = max(self._highest_layer, unit[2] >> 1 & 7)  # sps_max_sub_layers_minus1
        slices = {(unit[0], unit[1]) for unit in units if unit[0] not in self._HARMLESS}
        # The second byte is the sub-layer, plus 1 and plus 8 times the number of the view, if it is not the first one.
        highest = self._highest_layer + 1
        return bool(slices) and all(a in self._SLICES_OF_NO_REFERENCE and b == highest for a, b in slices)


_READERS: dict[str, type[_H264Reader] | type[_HevcReader]] = {"h264": _H264Reader, "hevc": _HevcReader}

CODECS = frozenset(_READERS)
"""FFmpeg's names of the codecs whose disposable frames are known."""


class _Bits:
    """Reads the bits of a parameter set.

    Args:
        content: Its bytes, with those that prevent start codes (section 7.4.1 of both codecs).
    """

    def __init__(self, content: bytes) -> None:
        content = content.replace(b"\0\0\3", b"\0\0")
        self._bits, self._at = f"{int.from_bytes(content):0{8 * len(content)}b}", 0

    def flag(self) -> bool:
        """Read one bit."""
        self._at += 1
        return self._bits[self._at - 1] == "1"

    def number(self) -> int:
        """Read an Exp-Golomb number (section 9.1)."""
        first = self._bits.index("1", self._at)
        start, self._at = self._at, 2 * first - self._at + 1
        return int(self._bits[first : 2 * first - start + 1], 2) - 1

    def skip_numbers(self, count: int) -> None:
        """Skip Exp-Golomb numbers, signed or not."""
        for _ in range(count):
            self.number()
