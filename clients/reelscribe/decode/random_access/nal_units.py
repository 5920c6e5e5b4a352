"""Split packets of H.264 and HEVC into their NAL units, each of which is a slice of a picture, or parameters.

Sections are those of ITU-T H.264 and H.265, and of ISO/IEC 14496-15, which says how MP4 and Matroska hold the units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import av
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

Unit = bytes | memoryview
"""A NAL unit."""

_START_CODE = re.compile(rb"\x00\x00\x01")

_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}
"""Which byte of a configuration record has the size of lengths, by FFmpeg's name of the codec."""


class NalUnits:
    """Splits the packets of a video stream into their units.

    Args:
        codec: The codec of the stream, H.264 or HEVC.
    """

    has_lengths: bool
    """Whether each unit has its length in front of it; otherwise there are start codes between them."""
    parameters: list[Unit]
    """The parameter sets in front of all packets; empty if they cannot be read."""

    def __init__(self, codec: VideoCodecContext) -> None:
        record = codec.extradata or b""
        self.has_lengths, self.parameters = record[:1] == b"\1", []
        self._length_size = 0
        with suppress(IndexError, ValueError):  # of a damaged record
            if self.has_lengths:
                self._length_size = 1 + (record[_LENGTH_SIZE_AT[codec.name]] & 3)
                self.parameters = list(_OF_RECORD[codec.name](record))
            else:
                self.parameters = list(_behind_start_codes(record))

    def of(self, packet: av.Packet[VideoStream]) -> list[Unit]:
        """Return the units of a packet.

        Raises:
            ValueError: The packet is damaged.
        """
        content = memoryview(packet)
        return list(_behind_lengths(content, self._length_size) if self.has_lengths else _behind_start_codes(content))


def _of_h264_record(record: bytes) -> Iterator[Unit]:
    """Yield the sequence parameter sets of a configuration record, section 5.3.3.1.2."""
    at = 6
    for _ in range(record[5] & 31):
        size = int.from_bytes(record[at : at + 2])
        yield record[at + 2 : at + 2 + size]
        at += 2 + size


def _of_hevc_record(record: bytes) -> Iterator[Unit]:
    """Yield the parameter sets of a configuration record, section 8.3.3.1.2."""
    at = 23
    for _ in range(record[22]):
        units = int.from_bytes(record[at + 1 : at + 3])
        at += 3
        for _ in range(units):
            size = int.from_bytes(record[at : at + 2])
            yield record[at + 2 : at + 2 + size]
            at += 2 + size


_OF_RECORD = {"h264": _of_h264_record, "hevc": _of_hevc_record}


def _behind_lengths(content: Unit, length_size: int) -> Iterator[Unit]:
    """Yield units that have their length in front of each."""
    at = 0
    while at < len(content):
        start = at + length_size
        at = start + int.from_bytes(content[at:start])
        if not start < at <= len(content):
            raise ValueError
        yield content[start:at]


def _behind_start_codes(content: Unit) -> Iterator[Unit]:
    """Yield units between start codes (annex B), but no empty ones."""
    starts = [match.end() for match in _START_CODE.finditer(content)]
    for start, stop in zip(starts, [*starts[1:], len(content) + 3], strict=False):
        if start < stop - 3:
            yield content[start : stop - 3]
