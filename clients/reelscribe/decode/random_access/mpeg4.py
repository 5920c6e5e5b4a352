"""Tell which MPEG-4 frames are shown and in which order, where the file does not say it, from the frames themselves.

AVI states no times. FFmpeg reckons them from the types of the frames, but not where programs packed two frames into a
packet, nor are just the right ones of such packets marked as keyframes. FFmpeg's filter that unpacks them loses coded
frames of up to 19 bytes, which still pictures have.

Sections are those of ISO/IEC 14496-2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

_START_CODE = b"\0\0\1\xb6"
"""What is in front of a frame (table 6-3). The first two bits behind it are its coding type."""

_NOT_CODED = re.compile("..1*01.{1,16}1001*")
"""The bits of a frame that is not coded (section 6.2.5): its type, whole seconds, a marker, its time in ticks, a
marker, a zero which says that it is not coded, and a zero and ones up to the end of the last byte."""

_NOT_CODED_BYTES = 16
"""Largest size of such a frame, in bytes; its time would be more than a minute behind that of the frame before it."""


class CodingType(IntEnum):
    """How a frame is predicted (table 6-20)."""

    I = 0  # noqa: E741 - the name in the standard
    P = 1
    B = 2
    S = 3


def split(content: bytes) -> list[bytes]:
    """Return the first frame in a packet, with what is in front of it, and if there are others, the rest."""
    second = content.find(_START_CODE, content.find(_START_CODE) + 1)
    return [content[:second], content[second:]] if second > 0 else [content]


def is_coded(frame: bytes | memoryview) -> bool:
    """Return whether a frame is coded; otherwise players go on showing the one before it."""
    if len(frame) > _NOT_CODED_BYTES:
        return True
    _, found, content = bytes(frame).rstrip(b"\0").partition(_START_CODE)
    bits = f"{int.from_bytes(content):0{8 * len(content)}b}"
    return bool(found) and not _NOT_CODED.fullmatch(bits)


def coding_type(packet: av.Packet[VideoStream]) -> CodingType:
    """Return the coding type of the one frame in a packet; P if it has no start code, because it is damaged."""
    content = bytes(packet)
    at = content.find(_START_CODE) + len(_START_CODE)
    return CodingType(content[at] >> 6) if len(_START_CODE) <= at < len(content) else CodingType.P


def presentation_order(types: Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers of frames, as stored in the file, in the order in which they are shown.

    A B-frame is shown when it is decoded, and another frame when the next one that is no B-frame is.

    Args:
        types: The coding type of each frame, in the order of the file.
    """
    order, waiting = list[int](), list[int]()
    for number, kind in enumerate(types):
        if kind == CodingType.B:
            order.append(number)
        else:
            order += waiting
            waiting = [number]
    return np.array(order + waiting, np.int64)
