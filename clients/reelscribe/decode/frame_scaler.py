"""Convert decoded frames to RGB of a model's input size: scaled, rotated as players show them, and cropped.

There are three methods, named by `Resize`; docs/decisions.md compares their costs:

- "exact" converts the full frame to RGB and scales it with PIL, as the image processors of the models do. It is the
  reference for the other methods.
- "planes" scales the planes Y, U and V with PIL and converts the small result to RGB. Where this is incorrect or not
  less work, it does the same as "exact".
- "fast" scales and converts with FFmpeg.
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

ACCURATE = 0x40000 | 0x2000  # SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, for which not every PyAV has names
"""Flags of FFmpeg's scaler. Without them, colours are one or two levels of 255 too dark, and up to six levels wrong."""

_REFORMATTER = VideoReformatter()
"""It keeps FFmpeg's tables for the next frame of the same format, which may be that of another video."""

_INTERPOLATION = {"bilinear": Interpolation.BILINEAR, "bicubic": Interpolation.BICUBIC}

_LUMA_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.3, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
"""Weights of red and blue in luma for each colour matrix, by FFmpeg's number of the matrix: BT.709, FCC, BT.601, SMPTE
240M and BT.2020."""

_BT601 = 5
"""FFmpeg's number of the BT.601 matrix."""

_FULL_RANGE = 2
"""FFmpeg's number of the colour range from 0 to 255."""

_GBRP_PLANES_RGB = (2, 0, 1)
"""Numbers of the red, green and blue plane in FFmpeg's format gbrp."""

_FULL_RANGE_FORMATS = {"gray"} | {f"yuvj{kind}" for kind in ("420p", "422p", "444p", "440p", "411p")}
_PLANAR_FORMATS = _FULL_RANGE_FORMATS | {f"yuv{kind}" for kind in ("420p", "422p", "444p", "440p", "411p", "410p")}


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
        if self._resize == "fast":
            scaled = self._to_rgb(frame, _INTERPOLATION[self._size.resample], stored_size).to_ndarray()
        elif self._resize == "planes" and _can_scale_planes(frame, stored_size):
            planes = [_plane(frame, number) for number in range(len(frame.planes))]
            matrix = rgb_matrix(*_LUMA_WEIGHTS[_matrix(frame)], full_range=_is_full_range(frame))
            scaled = np.asarray(scale_planes(planes, stored_size, self._size.resample, matrix))
        else:
            full = self._to_rgb(frame, Interpolation.BILINEAR, (frame.width, frame.height))
            image = Image.merge("RGB", [_plane(full, number) for number in _GBRP_PLANES_RGB])
            return fit(rotate(image, rotation), self._size, shown_size)
        return crop(np.rot90(scaled, -rotation // 90), self._size)

    def _to_rgb(self, frame: av.VideoFrame, interpolation: int, size: tuple[int, int]) -> av.VideoFrame:
        matrix = None if frame.format.is_rgb else _matrix(frame)
        return _REFORMATTER.reformat(
            frame,
            *size,
            format="gbrp",  # with rgb24, FFmpeg returns the same levels but takes 1.5 to 2.5 times as long
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


def _can_scale_planes(frame: av.VideoFrame, scaled_size: tuple[int, int]) -> bool:
    """Return whether scaling planes is correct, and less work, which it is not if chroma would be enlarged."""
    if frame.format.name not in _PLANAR_FORMATS:
        return False
    smallest = frame.planes[-1]
    return scaled_size[0] * scaled_size[1] <= smallest.width * smallest.height


def _matrix(frame: av.VideoFrame) -> int:
    """Return the number of the colour matrix; BT.601 if the stream states none, as in FFmpeg and its players."""
    return frame.colorspace if frame.colorspace in _LUMA_WEIGHTS else _BT601


def _is_full_range(frame: av.VideoFrame) -> bool:
    return frame.color_range == _FULL_RANGE or frame.format.name in _FULL_RANGE_FORMATS
