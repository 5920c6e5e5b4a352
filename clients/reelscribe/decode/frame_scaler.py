"""Decoded frames -> RGB as a model wants it: scaled, turned as they are shown, and cut.

`exact` is the full frame in RGB, scaled by PIL as the models' processors do it, and the reference for the others.
`planes` scales Y, U and V with PIL, and makes RGB of what is left. `fast` leaves scaling to FFmpeg.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.contract.scaling import crop, fit, rgb_matrix, rotate, scale_planes
from reelscribe.contract.source import VideoInfo

ACCURATE = 0x40000 | 0x2000  # SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT: not every PyAV has names for them
"""Without these FFmpeg's colours are darker by one level or two, and wrong by up to six."""

_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.3, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
"""Of red and blue, by FFmpeg's number of the matrix: BT.709, FCC, BT.601, SMPTE 240M, BT.2020."""

_BT601 = 5

_INTERPOLATION = {"bilinear": Interpolation.BILINEAR, "bicubic": Interpolation.BICUBIC}

_FULL_RANGE = 2

_RGB_OF_GBRP = (2, 0, 1)
"""Which of its planes are red, green and blue."""

_PLANAR = {f"yuv{kind}" for kind in ("420p", "422p", "444p", "440p", "411p", "410p")}
_FULL_PLANAR = {"gray"} | {f"yuvj{kind}" for kind in ("420p", "422p", "444p", "440p", "411p")}


class FrameScaler:
    """Scales frames of the video that `info` describes to `size`."""

    def __init__(self, info: VideoInfo, size: InputSize, resize: Resize) -> None:
        self._info, self._size, self._resize = info, size, resize
        self._reformatter = VideoReformatter()  # FFmpeg's tables for one conversion are made once

    def __call__(self, frame: av.VideoFrame) -> FrameArray:
        """(height, width, 3) uint8."""
        shown = replace(self._info, width=frame.width, height=frame.height).shown_size
        rotation = self._info.rotation
        scaled = self._size.scaled_size(*shown)
        stored = scaled[::-1] if rotation in (90, 270) else scaled
        if self._resize == "fast":
            image = self._rgb(frame, _INTERPOLATION[self._size.resample], stored).to_ndarray()
        elif self._resize == "planes" and _planes_do(frame, stored):
            planes = [_plane(frame, number) for number in range(len(frame.planes))]
            matrix = rgb_matrix(*_WEIGHTS[_matrix(frame)], full_range=_is_full_range(frame))
            image = np.asarray(scale_planes(planes, stored, self._size.resample, matrix))
        else:
            full = self._rgb(frame, Interpolation.BILINEAR, (frame.width, frame.height))
            whole = Image.merge("RGB", [_plane(full, number) for number in _RGB_OF_GBRP])
            return fit(rotate(whole, rotation), self._size, shown)
        return crop(np.rot90(image, -rotation // 90), self._size)

    def _rgb(self, frame: av.VideoFrame, interpolation: int, size: tuple[int, int]) -> av.VideoFrame:
        matrix = None if frame.format.is_rgb else _matrix(frame)
        return self._reformatter.reformat(
            frame,
            *size,
            format="gbrp",  # of rgb24, the same levels take FFmpeg 1.5 to 2.5 times as long
            src_colorspace=matrix,
            dst_colorspace=matrix,
            interpolation=interpolation | ACCURATE,
            threads=1,
        )


def _plane(frame: av.VideoFrame, number: int) -> Image.Image:
    """An image that looks at the frame's own memory where PIL can."""
    plane = frame.planes[number]
    memory: Any = plane  # a buffer, which its hints do not say
    order = 1 if plane.line_size > 0 else -1  # some codecs store the last row first
    return Image.frombuffer("L", (plane.width, plane.height), memory, "raw", "L", abs(plane.line_size), order)


def _planes_do(frame: av.VideoFrame, scaled: tuple[int, int]) -> bool:
    """Whether scaling planes is right, and less work: where chroma would grow, the full frame is as quick."""
    if frame.format.name not in _PLANAR | _FULL_PLANAR:
        return False
    smallest = frame.planes[-1]
    return scaled[0] * scaled[1] <= smallest.width * smallest.height


def _matrix(frame: av.VideoFrame) -> int:
    """Where the stream says nothing: BT.601, as FFmpeg and its players take it, whatever the height."""
    return frame.colorspace if frame.colorspace in _WEIGHTS else _BT601


def _is_full_range(frame: av.VideoFrame) -> bool:
    return frame.color_range == _FULL_RANGE or frame.format.name in _FULL_PLANAR
