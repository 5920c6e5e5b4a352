"""Read in the packets of coded video, without decoding them, which frames they hold.

H.264 and HEVC mark frames that no other frame is predicted from in the headers of their NAL units, and the frames at
which everything before is forgotten. Other codecs have no certain mark: a VP9 frame that refreshes nothing leaves its
probabilities behind. FFmpeg's `skip_frame` would drop wanted frames, too. MPEG-4 in AVI has neither times nor one frame
in each packet, so its frames tell which of them are shown, and in which order.

Sections are those of ITU-T H.264 and H.265; of ISO/IEC 14496-15, which says how MP4 and Matroska hold NAL units; and of
ISO/IEC 14496-2 for MPEG-4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Protocol

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream
from numpy.typing import NDArray

NalUnit = bytes | memoryview
"""A NAL unit: a slice of a picture, or parameters."""

_START_CODE = re.compile(rb"\x00\x00\x01")

_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}
"""Position of the byte with the size of lengths in a configuration record, by FFmpeg's name of the codec."""

_CLOSED_GOP_CODECS = {"vp9", "av1", "libdav1d"}
"""FFmpeg's names of the decoders for which every keyframe begins a closed group of pictures (GOP). Others are left out
because they fill what is damaged with what their memory has from earlier frames, and do not say so: those of HEVC, VP8,
and of codecs with keyframes alone."""

_H264_SLICES = range(1, 6)
"""Types of the units of H.264 that hold slices of a picture (ITU-T H.264, table 7-1)."""

_H264_IDR_SLICE = 5
"""Type of the slices with which everything before is forgotten."""

_VP8_SHOW_FRAME = 0x10
"""Bit of the first byte of a VP8 frame (RFC 6386, section 9.1)."""

_VOP_START_CODE = b"\0\0\1\xb6"
"""Start code of a frame of MPEG-4 (table 6-3). The first two bits behind it are its coding type."""

_NOT_CODED = re.compile("..1*01.{1,16}1001*")
"""The bits of a frame of MPEG-4 that is not coded (section 6.2.5): its type, whole seconds, a marker, its time in
ticks, a marker, a zero which says that it is not coded, and a zero and ones up to the end of the last byte."""

_NOT_CODED_BYTES = 16
"""Largest size of such a frame, in bytes; its time would be more than a minute behind that of the frame before it."""


class DisposableFrameDetector:
    """Tells which packets of a video stream hold disposable frames, from which no other frame is predicted.

    H.264 and HEVC mark them, and the pictures of all other frames are the same without them. The frames of other codecs
    leave traces that no header tells: those of VP9, for example, change the probabilities with which later frames are
    coded.

    Args:
        codec: The codec of the stream.
    """

    def __init__(self, codec: VideoCodecContext) -> None:
        self._reader: _NalHeaderReader | None = None
        if codec.name in DISPOSABLE_CODECS:
            self._parser, self._reader = NalUnitParser(codec), _HEADER_READERS[codec.name]()
            with suppress(IndexError, ValueError):  # of damaged parameters; then no frame is known to be disposable
                self._reader.read(self._parser.parameter_sets)

    def is_disposable(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether the frame of a packet is disposable.

        All packets since the keyframe must have been asked for, as parameter sets may change between frames.
        """
        if self._reader is None:
            return False
        try:
            return self._reader.read(self._parser.parse(packet)) and not packet.is_keyframe
        except (IndexError, ValueError):  # of a damaged packet
            return False


class _NalHeaderReader(Protocol):
    """Reads the headers of the NAL units of a codec."""

    def read(self, units: list[NalUnit]) -> bool:
        """Read the units of a packet, and return whether they are those of a disposable frame."""


class _H264HeaderReader:
    """Reads headers of H.264, where a picture with nal_ref_idc 0 is used for no other one (section 7.4.1)."""

    _NON_REFERENCE_SLICE = 0x01
    """First byte of the slices of such pictures."""
    _OTHER_UNITS = (0x06, 0x09, 0x0C)
    """First bytes of units without a picture: supplemental information, delimiters and filler data."""
    _PARAMETER_SET = 7
    """Type of sequence parameter sets."""
    _CHROMA_PROFILES = (44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 144, 244)
    """Profiles whose parameter sets describe the format of chroma (section 7.3.2.1.1)."""

    def __init__(self) -> None:
        # Where pictures may be fields, a packet may hold one of the two fields of a frame, and the other be needed.
        self._only_frames: bool | None = None

    def read(self, units: list[NalUnit]) -> bool:
        for unit in units:
            if unit[0] & 31 == self._PARAMETER_SET:
                self._only_frames = self._only_frames is not False and self._is_only_of_frames(bytes(unit))
        firsts = {unit[0] for unit in units}.difference(self._OTHER_UNITS)
        return firsts == {self._NON_REFERENCE_SLICE} and self._only_frames is True

    def _is_only_of_frames(self, parameters: bytes) -> bool:
        """Return frame_mbs_only_flag; False where it is behind scaling lists, which are not read."""
        bits = _BitReader(parameters[4:])
        bits.skip_exp_golomb(1)
        if parameters[1] in self._CHROMA_PROFILES:
            if bits.exp_golomb() == 3:
                bits.flag()
            bits.skip_exp_golomb(2)
            bits.flag()
            if bits.flag():
                return False
        bits.skip_exp_golomb(1)
        order_type = bits.exp_golomb()
        if order_type == 0:
            bits.skip_exp_golomb(1)
        elif order_type == 1:
            bits.flag()
            bits.skip_exp_golomb(2)
            bits.skip_exp_golomb(bits.exp_golomb())
        bits.skip_exp_golomb(1)
        bits.flag()
        bits.skip_exp_golomb(2)
        return bits.flag()


class _HevcHeaderReader:
    """Reads headers of HEVC.

    Pictures of some types are used for no other picture of their temporal sub-layer, and none is used for pictures of
    lower ones (section 7.4.2.2). So nothing needs a picture of such a type in the highest sub-layer.
    """

    _NON_REFERENCE_SLICES = (0x00, 0x04, 0x08, 0x0C, 0x10)
    """First bytes of the slices of such pictures: of the types TRAIL_N, TSA_N, STSA_N, RADL_N and RASL_N."""
    _OTHER_UNITS = (0x46, 0x4C, 0x4E, 0x50)
    """First bytes of units without a picture: delimiters, filler data and supplemental information."""
    _PARAMETER_SET = 0x42
    """First byte of sequence parameter sets."""

    def __init__(self) -> None:
        self._highest_layer = -1

    def read(self, units: list[NalUnit]) -> bool:
        for unit in units:
            if unit[0] == self._PARAMETER_SET:
                self._highest_layer = max(self._highest_layer, unit[2] >> 1 & 7)  # sps_max_sub_layers_minus1
        slices = {(unit[0], unit[1]) for unit in units if unit[0] not in self._OTHER_UNITS}
        # The second byte is the sub-layer, plus 1 and plus 8 times the number of the view, if it is not the first one.
        highest = self._highest_layer + 1
        return bool(slices) and all(a in self._NON_REFERENCE_SLICES and b == highest for a, b in slices)


_HEADER_READERS: dict[str, type[_H264HeaderReader] | type[_HevcHeaderReader]] = {
    "h264": _H264HeaderReader,
    "hevc": _HevcHeaderReader,
}

DISPOSABLE_CODECS = frozenset(_HEADER_READERS)
"""FFmpeg's names of the codecs whose disposable frames are known."""


class _BitReader:
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

    def exp_golomb(self) -> int:
        """Read an Exp-Golomb number (section 9.1)."""
        first = self._bits.index("1", self._at)
        start, self._at = self._at, 2 * first - self._at + 1
        return int(self._bits[first : 2 * first - start + 1], 2) - 1

    def skip_exp_golomb(self, count: int) -> None:
        """Skip Exp-Golomb numbers, signed or not."""
        for _ in range(count):
            self.exp_golomb()


class ClosedGopDetector:
    """Tells which packets of a video stream begin a closed group of pictures (GOP).

    From such a keyframe on, a decoder shows the same frames whatever it has decoded before.

    Args:
        stream: The video stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._name = stream.codec_context.name
        self._parser = NalUnitParser(stream.codec_context) if self._name == "h264" else None

    def starts_closed_gop(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame begins a closed GOP."""
        if not packet.is_keyframe or packet.is_corrupt:
            return False
        if self._parser is None:
            return self._name in _CLOSED_GOP_CODECS
        if not self._parser.has_lengths:  # such files have no index, either
            return False
        try:
            types = [unit[0] & 31 for unit in self._parser.parse(packet)]
        except ValueError:  # the packet is damaged; the other keyframes tell which kind a file has
            return True
        return next((kind for kind in types if kind in _H264_SLICES), None) == _H264_IDR_SLICE


class NalUnitParser:
    """Splits the packets of a video stream into their units.

    Args:
        codec: The codec of the stream, H.264 or HEVC.
    """

    has_lengths: bool
    """True if each unit has its length in front of it; otherwise there are start codes between them."""
    parameter_sets: list[NalUnit]
    """The parameter sets in front of all packets; empty if they cannot be read."""

    def __init__(self, codec: VideoCodecContext) -> None:
        record = codec.extradata or b""
        self.has_lengths, self.parameter_sets = record[:1] == b"\1", []
        self._length_size = 0
        with suppress(IndexError, ValueError):  # of a damaged record
            if self.has_lengths:
                self._length_size = 1 + (record[_LENGTH_SIZE_AT[codec.name]] & 3)
                self.parameter_sets = list(_PARAMETER_SETS[codec.name](record))
            else:
                self.parameter_sets = list(_split_at_start_codes(record))

    def parse(self, packet: av.Packet[VideoStream]) -> list[NalUnit]:
        """Return the units of a packet.

        Raises:
            ValueError: The packet is damaged.
        """
        content = memoryview(packet)
        return list(
            _split_by_lengths(content, self._length_size) if self.has_lengths else _split_at_start_codes(content)
        )


def _h264_parameter_sets(record: bytes) -> Iterator[NalUnit]:
    """Yield the sequence parameter sets of a configuration record, section 5.3.3.1.2."""
    at = 6
    for _ in range(record[5] & 31):
        size = int.from_bytes(record[at : at + 2])
        yield record[at + 2 : at + 2 + size]
        at += 2 + size


def _hevc_parameter_sets(record: bytes) -> Iterator[NalUnit]:
    """Yield the parameter sets of a configuration record, section 8.3.3.1.2."""
    at = 23
    for _ in range(record[22]):
        units = int.from_bytes(record[at + 1 : at + 3])
        at += 3
        for _ in range(units):
            size = int.from_bytes(record[at : at + 2])
            yield record[at + 2 : at + 2 + size]
            at += 2 + size


_PARAMETER_SETS = {"h264": _h264_parameter_sets, "hevc": _hevc_parameter_sets}


def _split_by_lengths(content: NalUnit, length_size: int) -> Iterator[NalUnit]:
    """Yield units that have their length in front of each."""
    at = 0
    while at < len(content):
        start = at + length_size
        at = start + int.from_bytes(content[at:start])
        if not start < at <= len(content):
            raise ValueError
        yield content[start:at]


def _split_at_start_codes(content: NalUnit) -> Iterator[NalUnit]:
    """Yield units between start codes (annex B), but no empty ones."""
    starts = [match.end() for match in _START_CODE.finditer(content)]
    for start, stop in zip(starts, [*starts[1:], len(content) + 3], strict=False):
        if start < stop - 3:
            yield content[start : stop - 3]


class PacketFilter:
    """Prepares the packets of a video stream for decoding, so that each holds one frame.

    Programs that wrote MPEG-4 to AVI packed a B-frame into the packet of the frame before it. FFmpeg's filter that
    unpacks them loses coded frames of up to 19 bytes, which still pictures have.

    Args:
        stream: The video stream.
    """

    packed: bool = False
    """True once a packet has held more than one frame."""

    def __init__(self, stream: VideoStream) -> None:
        self._codec = stream.codec_context.name
        self._waiting: list[bytes] = []

    def unpack(self, packet: av.Packet[VideoStream]) -> av.Packet[VideoStream]:
        """Return a packet with one frame, in place of the next packet of the stream.

        A frame that was packed with another one takes the place of a frame that is not coded, which follows for it.
        """
        if self._codec != "mpeg4" or packet.is_corrupt:
            return packet
        frames = split_packed(bytes(packet))
        if len(frames) == 1 and not self._waiting:
            return packet
        self.packed = True
        first, *waiting = self._waiting + [frame for frame in frames if len(frames) > 1 or is_coded(frame)]
        self._waiting = waiting[:1]  # if more wait, placeholders are missing
        return _with_content(packet, first)

    def is_shown(self, packet: av.Packet[VideoStream]) -> bool:
        """Return whether a packet with one frame holds a frame that players show.

        Players do not show frames outside the edit list, nor VP8 frames that only serve as references, nor MPEG-4
        frames that are not coded.
        """
        if packet.is_discard:
            return False
        if self._codec == "vp8":
            return bool(memoryview(packet)[0] & _VP8_SHOW_FRAME)
        return self._codec != "mpeg4" or is_coded(memoryview(packet))


def _with_content(packet: av.Packet[VideoStream], content: bytes) -> av.Packet[VideoStream]:
    """Return a packet with other content, and the times and marks of this one."""
    other: av.Packet[Any] = av.Packet(content)
    other.stream, other.time_base = packet.stream, packet.time_base
    other.pts, other.dts, other.duration = packet.pts, packet.dts, packet.duration
    other.is_keyframe = packet.is_keyframe
    return other


class CodingType(IntEnum):
    """The way in which a frame of MPEG-4 is predicted (table 6-20)."""

    I = 0  # noqa: E741 - the name in the standard
    P = 1
    B = 2
    S = 3


def split_packed(content: bytes) -> list[bytes]:
    """Split a packet of MPEG-4 into its first frame, with what is in front of it, and the rest if there are others."""
    second = content.find(_VOP_START_CODE, content.find(_VOP_START_CODE) + 1)
    return [content[:second], content[second:]] if second > 0 else [content]


def is_coded(frame: bytes | memoryview) -> bool:
    """Return whether a frame of MPEG-4 is coded; otherwise players go on showing the one before it."""
    if len(frame) > _NOT_CODED_BYTES:
        return True
    _, found, content = bytes(frame).rstrip(b"\0").partition(_VOP_START_CODE)
    bits = f"{int.from_bytes(content):0{8 * len(content)}b}"
    return bool(found) and not _NOT_CODED.fullmatch(bits)


def coding_type(packet: av.Packet[VideoStream]) -> CodingType:
    """Return the coding type of the one frame of MPEG-4 in a packet; P if it is damaged and has no start code."""
    content = bytes(packet)
    at = content.find(_VOP_START_CODE) + len(_VOP_START_CODE)
    return CodingType(content[at] >> 6) if len(_VOP_START_CODE) <= at < len(content) else CodingType.P


def presentation_order(types: Sequence[int]) -> NDArray[np.int64]:
    """Return the presentation order of frames of MPEG-4, where a file does not state it.

    AVI states no times. FFmpeg reckons them from the types of the frames, but not where programs packed two frames into
    a packet, nor are just the right ones of such packets marked as keyframes. A B-frame is shown when it is decoded,
    and another frame when the next one that is no B-frame is.

    Args:
        types: The coding type of each frame, in the order of the file.

    Returns:
        (len(types),) int64, the numbers of the frames as stored in the file.
    """
    order, waiting = list[int](), list[int]()
    for number, kind in enumerate(types):
        if kind == CodingType.B:
            order.append(number)
        else:
            order += waiting
            waiting = [number]
    return np.array(order + waiting, np.int64)
