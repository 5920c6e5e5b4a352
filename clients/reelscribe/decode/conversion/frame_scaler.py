"""Convert decoded frames to RGB of a model's input size: scaled, rotated as players show them, and cropped.

There are two methods, named by `Resize`; docs/decisions.md compares their costs:

- "exact" converts the full frame to RGB and scales it with PIL, as the image processors of the models do. It is the
  reference for the other method.
- "fast" scales and converts with FFmpeg.

Frames of a high dynamic range are mapped to the colours of other video: with "fast" when they are scaled, otherwise
before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.contract.scaling import crop, fit, rotate
from reelscribe.contract.source import DynamicRange, VideoInfo
from reelscribe.decode.conversion.interlacing import as_progressive
from reelscribe.decode.conversion.tone_mapping import GBRP_PLANES_RGB, HDR_BITS, HDR_FORMAT, range_of, tone_map

ACCURATE = 0x40000 | 0x2000  # SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, for which not every PyAV has names
"""Flags of FFmpeg's scaler. Without them, colours are one or two levels of 255 too dark, and up to six levels wrong."""

_REFORMATTER = VideoReformatter()
"""It keeps FFmpeg's tables for the next frame of the same format, which may be that of another video."""

_INTERPOLATION = {"bilinear": Interpolation.BILINEAR, "bicubic": Interpolation.BICUBIC}

_MATRICES = frozenset({1, 4, 5, 7, 9})
"""FFmpeg's numbers of the colour matrices that it can convert: BT.709, FCC, BT.601, SMPTE 240M and BT.2020."""

_BT709, _UNSPECIFIED, _BT601, _BT2020 = 1, 2, 5, 9
"""FFmpeg's numbers of colour matrices."""

_HD_LINES = 720
"""Number of lines from which the matrix is BT.709 if the stream states none, as in players."""

_FULL_RANGE = 2
"""FFmpeg's number of the colour range from 0 to 255."""

_FULL_RANGE_FORMATS = {"gray"} | {f"yuvj{kind}" for kind in ("420p", "422p", "444p", "440p", "411p")}


class FrameScaler:
    """Convert the frames of one video.

    Args:
        info: Description of the video.
        size: The size to which frames are converted.
        resize: Method of scaling.
    """

    def __init__(self, info: VideoInfo, size: InputSize, resize: Resize) -> None:
        self._info, self._size, self._resize = info, size, resize

    def __call__(self, frame: av.VideoFrame) -> FrameArray:
        """Convert one frame.

        Args:
            frame: The decoded frame; its size may differ from that in `info`.

        Returns:
            (size.height, size.width, 3) uint8 RGB.
        """
        shown_size = replace(self._info, width=frame.width, height=frame.height).shown_size
        rotation = self._info.rotation
        width, height = self._size.scaled_size(*shown_size)
        stored_size = (height, width) if rotation in (90, 270) else (width, height)
        dynamic_range = range_of(frame, self._info.dynamic_range)
        if self._resize == "exact":
            image = _full_image(frame, dynamic_range)
            return fit(rotate(image, rotation), self._size, shown_size)
        small = _to_rgb(as_progressive(frame), dynamic_range, _INTERPOLATION[self._size.resample], stored_size)
        scaled = small.to_ndarray() if dynamic_range == "sdr" else tone_map(small, dynamic_range, _white(frame))
        return crop(np.rot90(scaled, -rotation // 90), self._size)


def _full_image(frame: av.VideoFrame, dynamic_range: DynamicRange) -> Image.Image:
    """Return a frame as an RGB image of its stored size."""
    full = _to_rgb(frame, dynamic_range, Interpolation.BILINEAR, (frame.width, frame.height))
    if dynamic_range == "sdr":
        return Image.merge("RGB", [_plane(full, number) for number in GBRP_PLANES_RGB])
    return Image.fromarray(tone_map(full, dynamic_range, _white(frame)))


def _to_rgb(
    frame: av.VideoFrame, dynamic_range: DynamicRange, interpolation: int, size: tuple[int, int]
) -> av.VideoFrame:
    """Return a frame as RGB of another size, in planes; one of a high dynamic range in HDR_FORMAT, not yet mapped."""
    matrix = None if frame.format.is_rgb else _matrix(frame, dynamic_range)
    return _REFORMATTER.reformat(
        frame,
        *size,
        # With rgb24, FFmpeg returns the same levels but takes 1.5 to 2.5 times as long.
        format="gbrp" if dynamic_range == "sdr" else HDR_FORMAT,
        src_colorspace=matrix,
        dst_colorspace=matrix,
        interpolation=interpolation | ACCURATE,
        threads=1,
    )


def _plane(frame: av.VideoFrame, number: int) -> Image.Image:
    """Return a plane as an 8-bit image that is a view of the frame's memory where PIL allows it."""
    plane = frame.planes[number]
    memory: Any = plane  # it is a buffer, but its type hints do not say so
    order = 1 if plane.line_size > 0 else -1  # some codecs store the last row first
    return Image.frombuffer("L", (plane.width, plane.height), memory, "raw", "L", abs(plane.line_size), order)


def _matrix(frame: av.VideoFrame, dynamic_range: DynamicRange) -> int:
    """Return the number of the colour matrix; if the stream states none, the one that players assume."""
    if frame.colorspace in _MATRICES:
        return frame.colorspace
    if frame.colorspace == _UNSPECIFIED and dynamic_range != "sdr":
        return _BT2020
    return _BT709 if frame.colorspace == _UNSPECIFIED and frame.height >= _HD_LINES else _BT601


def _is_full_range(frame: av.VideoFrame) -> bool:
    return frame.color_range == _FULL_RANGE or frame.format.name in _FULL_RANGE_FORMATS


def _white(frame: av.VideoFrame) -> int:
    """Return the largest signal of a frame in HDR_FORMAT: FFmpeg only appends zeros to values of fewer bits."""
    bits = frame.format.components[0].bits
    largest = 2**bits - 1 if frame.format.is_rgb or _is_full_range(frame) else 255 * 2 ** (bits - 8)
    return int(largest * 2.0 ** (HDR_BITS - bits))
