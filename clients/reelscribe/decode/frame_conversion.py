"""Convert decoded frames to RGB of a model's input size: scaled, turned as players show them, and cropped.

`FrameScaler` is the entry; what players do to a frame, tone mapping and deinterlacing follow below it. There are two
methods of scaling, named by `Resize`; docs/decisions/fast-scaling-by-default.md compares their costs:

- "exact" converts the full frame to RGB and scales it with PIL, as the image processors of the models do. It is the
  reference for the other method.
- "fast" scales and converts with FFmpeg.

Frames of a high dynamic range (HDR) are mapped to the colours of other video: with "fast" when they are scaled,
otherwise before.

Each frame is shown by what it states itself: its size and, in recordings, the shape of its pixels may change within a
file. A frame of another shape than the first one gets black bars, as in a player's window. As FFmpeg's own player does
it, all are turned as the first one, because some streams state that at keyframes only.

Frames of interlaced video have two fields, each of which has every other line. Many frames are only marked as
interlaced: both of their fields show the same moment, as those of films on television. So frames are deinterlaced only
if that is asked for.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from io import BytesIO
from itertools import chain
from math import atan2, degrees, hypot
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.filter import Graph
from av.format import Flags
from av.sidedata.sidedata import Type
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.contract.scaling import crop, fit, flatten, turn
from reelscribe.contract.source import DynamicRange, shown_size
from reelscribe.decode.container import INDEXED_FORMATS, has_format_flag, may_be_transparent

ACCURATE = 0x40000 | 0x2000  # SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, for which not every PyAV has names
"""Flags of FFmpeg's scaler. Without them, colours are one or two levels of 255 too dark, and up to six levels wrong."""

_REFORMATTER = VideoReformatter()
"""It keeps FFmpeg's tables for the next frame of the same format, which may be that of another video."""

_INTERPOLATION = {"bilinear": Interpolation.BILINEAR, "bicubic": Interpolation.BICUBIC}

_MATRICES = frozenset({1, 4, 5, 7, 9})
"""FFmpeg's numbers of the colour matrices that it can convert: BT.709, FCC, BT.601, SMPTE 240M and BT.2020."""

_BT709, _UNSPECIFIED, _BT601, _BT2020 = 1, 2, 5, 9
"""FFmpeg's numbers of colour matrices; 2 also stands for transfer characteristics that are not stated."""

_HD_LINES = 720
"""Number of lines from which the matrix is BT.709 if the stream states none, as in players."""

_FULL_RANGE = 2
"""FFmpeg's number of the colour range from 0 to 255."""

_FULL_RANGE_FORMATS = {"gray"} | {f"yuvj{kind}" for kind in ("420p", "422p", "444p", "440p", "411p")}

HDR_FORMAT, HDR_BITS = "gbrp14le", 14
"""FFmpeg's pixel format of frames to map, and the bits of each of its values. With 8, dark colours were up to 34 levels
off."""

GBRP_PLANES_RGB = (2, 0, 1)
"""Numbers of the red, green and blue plane in FFmpeg's formats that begin with gbrp."""

_DYNAMIC_RANGES: dict[int, DynamicRange] = {16: "pq", 18: "hlg"}
"""Dynamic ranges by FFmpeg's number of the transfer characteristics; all others are "sdr"."""

_WHITE_NITS = 203.0
"""Light of white on a screen of a high dynamic range, in cd/m2 (ITU-R BT.2408). Light is measured in units of it."""

_KNEE, _PEAK = 0.3, 10.0
"""Light up to which nothing is compressed, and light that becomes white; the defaults of FFmpeg's `tonemap`."""

_TO_BT709 = (
    (1.660491, -0.587641, -0.072850),
    (-0.124550, 1.132900, -0.008349),
    (-0.018151, -0.100579, 1.118730),
)
"""Light in the primaries of BT.709 from light in those of BT.2020."""

_GAMMA = 2.4
"""Exponent of a usual screen (ITU-R BT.1886)."""

_ROOTS = 2**12
"""Number of steps in which the square root of light is rounded before it becomes a level of 255."""

_BLOCK_PIXELS = 2**15
"""Number of pixels that are mapped at once: so few that they stay in the processor's cache."""


SAME_SHAPE = 0.01
"""Largest share by which the aspect ratio of a frame may differ from that of its video without bars."""

_MOST_SHOWN = 2**16
"""Largest width of a frame in square pixels. Files that state more are wrong about their pixels."""

_SIDE_DATA_TYPES = 40
"""Kinds of side data that frames have in FFmpeg 8, and some more; `Type` has the first of them."""

Margins = tuple[int, int, int, int]
"""What is cut off a stored frame at its left, top, right and bottom, in pixels."""


@dataclass(frozen=True)
class Stated:
    """What a file states about the pictures of its video, where frames do not state it themselves."""

    dynamic_range: DynamicRange
    """Dynamic range of frames that state none."""
    pixel_aspect: float | None
    """Width of a stored pixel divided by its height; None if each frame states its own, as in recordings and in streams
    without a container."""
    degrees: int = 0
    """Degrees from 0 to 359 by which frames are turned clockwise. Those that are turned by other than multiples of 90
    keep their size, and lose their corners."""
    mirrored: bool = False
    """Whether left and right of the frames are exchanged before."""
    margins: Margins | None = None
    """What is cut off each frame; None if nothing is."""

    def shown_size(self, frame: av.VideoFrame) -> tuple[int, int]:
        """Return width and height of a frame as players show it: in square pixels, and after it is turned."""
        aspect = _own_aspect(frame) if self.pixel_aspect is None else self.pixel_aspect
        return shown_size(frame.width, frame.height, self.degrees, aspect)


class FrameScaler:
    """Convert the frames of one video.

    Args:
        stated: What the file states about its frames.
        size: The size to which frames are converted.
        resize: Method of scaling.
        shape: Width and height, as players show them, of the frames that fill `size`; others get bars where `size` does
            not crop. None if all are stretched.
    """

    def __init__(self, stated: Stated, size: InputSize, resize: Resize, shape: tuple[int, int] | None = None) -> None:
        self._stated, self._size, self._resize = stated, size, resize
        self._shape = None if size.shortest_edge else shape

    def __call__(self, frame: av.VideoFrame) -> FrameArray:
        """Convert one frame.

        Args:
            frame: The decoded frame; its size and shape may differ from those of others.

        Returns:
            (size.height, size.width, 3) uint8 RGB.
        """
        turned, mirrored = self._stated.degrees, self._stated.mirrored
        shown = self._stated.shown_size(frame)
        dynamic_range = dynamic_range_of(frame, self._stated.dynamic_range)
        size = self._size if self._shape is None else _within(self._size, shown, self._shape)
        frame = opaque(frame)
        if turned % 90:
            frame, turned = _filtered(frame, "rotate", f"{turned}*PI/180"), 0
        if self._resize == "exact":
            scaled = fit(turn(_full_image(frame, dynamic_range), turned, mirrored), size, shown)
        else:
            width, height = size.scaled_size(*shown)
            stored_size = (height, width) if turned in (90, 270) else (width, height)
            small = _to_rgb(as_progressive(frame), dynamic_range, _INTERPOLATION[size.resample], stored_size)
            sdr = small.to_ndarray() if dynamic_range == "sdr" else tone_map(small, dynamic_range, _white_value(frame))
            scaled = crop(np.rot90(sdr[:, ::-1] if mirrored else sdr, -turned // 90), size)
        return scaled if size is self._size else _with_bars(scaled, self._size)


def _within(size: InputSize, shown: tuple[int, int], shape: tuple[int, int]) -> InputSize:
    """Return the size within `size` at which a frame keeps its shape, if frames of `shape` fill `size`."""
    wider = shown[0] * shape[1] / (shown[1] * shape[0])
    if abs(wider - 1) <= SAME_SHAPE:
        return size
    if wider > 1:
        return replace(size, height=max(1, round(size.height / wider)))
    return replace(size, width=max(1, round(size.width * wider)))


def _with_bars(image: FrameArray, size: InputSize) -> FrameArray:
    """Return an image in the middle of a black one."""
    whole = np.zeros((size.height, size.width, 3), np.uint8)
    left, top = (size.width - image.shape[1]) // 2, (size.height - image.shape[0]) // 2
    whole[top : top + image.shape[0], left : left + image.shape[1]] = image
    return whole


def read_stated(
    container: InputContainer, video: VideoStream, dynamic_range: DynamicRange, first: av.VideoFrame | None
) -> Stated:
    """Return what a file states about the pictures of its video.

    Args:
        container: The open file.
        video: The stream, of which a frame was decoded.
        dynamic_range: Dynamic range of frames that state none.
        first: The first frame; None if it cannot be decoded.
    """
    repeats_headers = any(has_format_flag(container.format, flag) for flag in (Flags.ts_discont, Flags.no_timestamps))
    aspect = float(video.sample_aspect_ratio or video.codec_context.sample_aspect_ratio or 1)
    margins = _margins_in(video) if container.format.name in INDEXED_FORMATS else None
    turned, mirrored = _orientation_of(first) if first else (0, False)
    return Stated(dynamic_range, None if repeats_headers else aspect, turned, mirrored, margins)


def _own_aspect(frame: av.VideoFrame) -> float:
    """Return the width of a pixel of a frame divided by its height, as the frame states it."""
    # PyAV does not tell it, but a filter of FFmpeg computes with it. Two rows are enough.
    shown = f"w=clip(round(iw*sar)\\,1\\,{_MOST_SHOWN}):h=2:eval=frame:flags=neighbor"
    return float(_filtered(frame, "crop", "iw:min(2\\,ih):0:0:exact=1", "scale", shown).width / frame.width)


def _orientation_of(frame: av.VideoFrame) -> tuple[int, bool]:
    """Return `degrees` and `mirrored` of `Stated` by the display matrix of a frame, as FFmpeg's own player turns it."""
    side_data: Any  # PyAV annotates it wrongly
    try:
        side_data = frame.side_data
    except ValueError:  # PyAV does not know some kinds of it, such as EXIF
        unknown = range(len(Type), _SIDE_DATA_TYPES)
        deletions = (("sidedata", f"mode=delete:type={number}") for number in unknown)
        side_data = _filtered(frame, *chain.from_iterable(deletions)).side_data
    matrix = side_data.get(Type.DISPLAYMATRIX)
    if matrix is None:
        return 0, False
    # x goes to (a, b), and y to (c, d).
    a, b, _, c, d = np.frombuffer(matrix, np.int32, 5).tolist()
    widths = hypot(a, c), hypot(b, d)
    if not all(widths):
        return 0, False
    angle = round(degrees(atan2(b / widths[1], a / widths[0]))) % 360
    if angle == 1:  # that player leaves it so
        return 0, False
    mirrored = angle % 90 == 0 and a * d < b * c
    return (angle + 180 * mirrored) % 360, mirrored


def _margins_in(video: VideoStream) -> Margins | None:
    """Return what is outside of the clean aperture of an MP4 file, or of the crop of a Matroska file."""
    # PyAV does not tell what FFmpeg has read of them, but FFmpeg writes it into the header of another file.
    header = BytesIO()
    try:
        with av.open(header, "w", format="mov", options={"movflags": "empty_moov"}) as copy:
            copy.add_stream_from_template(video)
            copy.start_encoding()
    except (av.FFmpegError, ValueError):  # it is of a codec that QuickTime does not have
        return None
    content = header.getvalue()
    entry, box = content.index(b"stsd") + 12, content.find(b"\0\0\0\x28clap")
    if box < 0:
        return None
    # ISO/IEC 14496-12, sections 12.1.3 and 12.1.4: the stored size, that of the aperture, and where its centre is.
    stored = struct.unpack_from(">2H", content, entry + 32)
    numbers = struct.unpack_from(">8i", content, box + 8)
    width, height, right, down = (n / d for n, d in zip(numbers[::2], numbers[1::2], strict=True))
    left, top = (stored[0] - width) / 2 + right, (stored[1] - height) / 2 + down
    margins = round(left), round(top), round(stored[0] - width - left), round(stored[1] - height - top)
    return margins if any(margins) else None


def cropped(frame: av.VideoFrame, margins: Margins | None) -> av.VideoFrame:
    """Return what is left of a frame; all of it if nothing would be.

    Args:
        frame: The decoded frame.
        margins: What is cut off.
    """
    if margins is None:
        return frame
    left, top, right, bottom = margins
    width, height = frame.width - left - right, frame.height - top - bottom
    if min(width, height) < 1:
        return frame
    return _filtered(frame, "crop", f"{width}:{height}:{left}:{top}:exact=1")


def opaque(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a frame on the background that shows where it is transparent; the frame itself if it nowhere is."""
    if not may_be_transparent(frame.format.name):
        return frame
    in_colours = ("format", "rgba") if frame.format.has_palette else ()
    alpha = _filtered(frame, *in_colours, "alphaextract", "", "format", "gray")
    if np.asarray(_plane(alpha, 0)).min() == 255:  # asking takes little time beside blending
        return frame
    full = _to_rgb(frame, "sdr", Interpolation.BILINEAR, (frame.width, frame.height), "gbrap")
    flat = flatten(Image.merge("RGBA", [_plane(full, number) for number in (*GBRP_PLANES_RGB, 3)]))
    result = av.VideoFrame.from_ndarray(np.asarray(flat))
    result.color_trc = frame.color_trc
    return result


def _full_image(frame: av.VideoFrame, dynamic_range: DynamicRange) -> Image.Image:
    """Return a frame as an RGB image of its stored size."""
    full = _to_rgb(frame, dynamic_range, Interpolation.BILINEAR, (frame.width, frame.height))
    if dynamic_range == "sdr":
        return Image.merge("RGB", [_plane(full, number) for number in GBRP_PLANES_RGB])
    return Image.fromarray(tone_map(full, dynamic_range, _white_value(frame)))


def _to_rgb(
    frame: av.VideoFrame,
    dynamic_range: DynamicRange,
    interpolation: int,
    size: tuple[int, int],
    # With rgb24, FFmpeg returns the same levels but takes 1.5 to 2.5 times as long.
    pixel_format: str = "gbrp",
) -> av.VideoFrame:
    """Return a frame as RGB of another size, in planes; one of a high dynamic range in HDR_FORMAT, not yet mapped."""
    matrix = None if frame.format.is_rgb else _matrix(frame, dynamic_range)
    return _REFORMATTER.reformat(
        frame,
        *size,
        format=pixel_format if dynamic_range == "sdr" else HDR_FORMAT,
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


def _white_value(frame: av.VideoFrame) -> int:
    """Return the largest signal of a frame in HDR_FORMAT: FFmpeg only appends zeros to values of fewer bits."""
    bits = frame.format.components[0].bits
    largest = 2**bits - 1 if frame.format.is_rgb or _is_full_range(frame) else 255 * 2 ** (bits - 8)
    return int(largest * 2.0 ** (HDR_BITS - bits))


def dynamic_range_of_transfer(transfer: int) -> DynamicRange:
    """Return the dynamic range of FFmpeg's number of transfer characteristics."""
    return _DYNAMIC_RANGES.get(transfer, "sdr")


def dynamic_range_of(frame: av.VideoFrame, stated: DynamicRange) -> DynamicRange:
    """Return the dynamic range of a frame.

    Args:
        frame: The frame.
        stated: The dynamic range that its file states, which counts if the frame states none.
    """
    return stated if frame.color_trc == _UNSPECIFIED else dynamic_range_of_transfer(frame.color_trc)


def tone_map(frame: av.VideoFrame, dynamic_range: DynamicRange, white: int) -> FrameArray:
    """Map the colours of a frame of a high dynamic range, BT.2020 with PQ or HLG, to those that models know, BT.709.

    The result is that of FFmpeg's filters `zscale` and `tonemap`, of which PyAV has only the second one::

        zscale=transfer=linear:npl=203,format=gbrpf32le,zscale=primaries=bt709,tonemap=mobius:desat=0,zscale=transfer=bt709

    203 cd/m2 is where productions put white, so what is darker stays as it is on a usual screen. What is brighter is
    compressed up to ten times as much light, whatever peak the file states. The colour management of FFmpeg's scaler
    gives other colours, a table of colours for Pillow takes 8 bits, and `hable` in place of `mobius` makes white grey.

    Args:
        frame: A frame in HDR_FORMAT.
        dynamic_range: Its dynamic range: "pq" or "hlg".
        white: Value of the signal 1.0 in it, the largest that there is.

    Returns:
        (height, width, 3) uint8 RGB.
    """
    light_of, planes = _light_of_values(dynamic_range, white), [_plane_values(frame, n) for n in GBRP_PLANES_RGB]
    mapped = np.empty((frame.height, frame.width, 3), np.uint8)
    step = max(1, _BLOCK_PIXELS // frame.width)
    for top in range(0, frame.height, step):
        rows = slice(top, top + step)
        light = _in_bt709([light_of[plane[rows]] for plane in planes])
        gain = _gain(np.maximum.reduce(light))
        for channel, each in enumerate(light):
            mapped[rows, :, channel] = _to_levels(each * gain)
    return mapped


def _plane_values(frame: av.VideoFrame, number: int) -> NDArray[np.uint16]:
    plane: Any = frame.planes[number]  # it is a buffer, but its type hints do not say so
    return np.frombuffer(plane, np.uint16).reshape(plane.height, -1)[:, : plane.width]


@cache
def _light_of_values(dynamic_range: DynamicRange, white: int) -> NDArray[np.float32]:
    """Return the light of each value of HDR_FORMAT."""
    to_light: dict[DynamicRange, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {"pq": _pq, "hlg": _hlg}
    signals = (np.arange(2**HDR_BITS) / white).clip(0, 1)
    return (to_light[dynamic_range](signals) / _WHITE_NITS).astype(np.float32)


def _pq(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the light in cd/m2 of a signal from 0 to 1, by the EOTF of PQ (ITU-R BT.2100, table 4)."""
    m1, m2 = 2610 / 16384, 2523 / 4096 * 128
    c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
    power = signal ** (1 / m2)
    light: NDArray[np.float64] = 10_000 * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1)
    return light


def _hlg(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the light in cd/m2 of a signal from 0 to 1, by the EOTF of HLG (ITU-R BT.2100, table 5) for 1,000 cd/m2.

    The exponent of the OOTF is applied to each channel by itself, as `zscale` does it.
    """
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    light: NDArray[np.float64] = 1000 * scene**1.2
    return light


def _in_bt709(light: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    red, green, blue = light
    return [np.float32(r) * red + np.float32(g) * green + np.float32(b) * blue for r, g, b in _TO_BT709]


def _gain(brightest: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what to multiply the light of each pixel with, from that of its brightest channel.

    This is the function `mobius` of FFmpeg's `tonemap`: (x + a) / (x + b), scaled to go on smoothly from the knee.
    """
    a = -(_KNEE**2) * (_PEAK - 1) / (_KNEE**2 - 2 * _KNEE + _PEAK)
    b = (_KNEE**2 - 2 * _KNEE * _PEAK + _PEAK) / (_PEAK - 1)
    scale = (b**2 + 2 * b * _KNEE + _KNEE**2) / (b - a)
    x = np.maximum(brightest, np.float32(_KNEE))
    return np.float32(scale) * (x + np.float32(a)) / ((x + np.float32(b)) * x)


def _to_levels(light: NDArray[np.float32]) -> NDArray[np.uint8]:
    roots = np.sqrt(light.clip(0, 1))
    levels: NDArray[np.uint8] = _levels_of_roots()[(roots * _ROOTS + np.float32(0.5)).astype(np.uint16)]
    return levels


@cache
def _levels_of_roots() -> NDArray[np.uint8]:
    """Return the level of 255 of each rounded square root of light."""
    return np.rint(255 * (np.arange(_ROOTS + 1) / _ROOTS) ** (2 / _GAMMA)).astype(np.uint8)


def as_progressive(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a frame without the mark of interlaced ones, of which FFmpeg would scale each field by itself.

    Args:
        frame: The frame, which is left as it is.

    Returns:
        A frame with the same pixels, which are not copied.
    """
    if not frame.interlaced_frame:
        return frame
    return _filtered(frame, "setfield", "prog")


def with_neighbours(wanted: Sequence[int], frames: int) -> Sequence[int]:
    """Return the frames that `deinterlace` needs: those that are wanted, and the ones before and after each of them.

    Args:
        wanted: Indices of the frames that are wanted, ascending.
        frames: Number of frames in the video.

    Returns:
        Indices of frames, ascending.
    """
    indices = np.asarray(wanted, np.int64)
    needed = np.unique(np.concatenate([indices - 1, indices, indices + 1]))
    return array("q", needed[(needed >= 0) & (needed < frames)].tobytes())


def deinterlace(
    frames: Iterable[tuple[int, av.VideoFrame]], wanted: Sequence[int]
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Deinterlace the frames that are marked as interlaced, with FFmpeg's filter `bwdif`.

    The result for a frame depends on it, the one before and the one after it, and on nothing else: so it is the same
    whichever others are wanted. Where a neighbour is missing, at an end of the video or beside damage, it depends on
    the other one.

    Args:
        frames: Index and content of each frame of `with_neighbours` that can be decoded, in order.
        wanted: Indices of the frames that are wanted, ascending.

    Yields:
        (index, frame) for each wanted frame that can be decoded, in order.
    """

    def is_wanted(index: int) -> bool:
        at = bisect_left(wanted, index)
        return at < len(wanted) and wanted[at] == index

    run: _DeinterlacedRun | None = None
    for index, frame in frames:
        if run and not run.continues_with(index, frame):
            yield from run.flush(is_wanted(run.last))
            run = None
        run = run or _DeinterlacedRun(frame)
        done = run.push(index, frame)
        if done and is_wanted(done[0]):
            yield done
    if run:
        yield from run.flush(is_wanted(run.last))


class _DeinterlacedRun:
    """Successive frames on their way through the filter, which holds one back until it has the next one."""

    last: int
    """Index of the frame that was added last."""

    def __init__(self, first: av.VideoFrame) -> None:
        self._layout = _frame_layout(first)
        self._pending = deque[tuple[int, av.VideoFrame]]()
        self._graph: Graph | None = None
        with suppress(av.FFmpegError):  # it does not take frames of fewer than four lines, for example
            self._graph = _filter_graph(*self._layout, "bwdif", "mode=send_frame:parity=auto:deint=interlaced")

    def continues_with(self, index: int, frame: av.VideoFrame) -> bool:
        return index == self.last + 1 and _frame_layout(frame) == self._layout

    def push(self, index: int, frame: av.VideoFrame) -> tuple[int, av.VideoFrame] | None:
        """Add the next frame, and return the one before it, deinterlaced; None if there is none."""
        self.last = index
        self._pending.append((index, frame))
        if self._graph:
            self._graph.vpush(frame)
        return self._pull() if len(self._pending) > 1 else None

    def flush(self, is_wanted: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield the last frame, deinterlaced, if it is wanted."""
        if is_wanted:
            if self._graph:
                self._graph.vpush(None)
            yield self._pull()

    def _pull(self) -> tuple[int, av.VideoFrame]:
        index, frame = self._pending.popleft()
        filtered = self._graph.vpull() if self._graph else frame
        return index, filtered if frame.interlaced_frame else frame


def _frame_layout(frame: av.VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


def _filtered(frame: av.VideoFrame, *filters: str) -> av.VideoFrame:
    """Return what filters of FFmpeg make of a frame: names, each followed by its options."""
    graph = _kept_graph(*_frame_layout(frame), *filters)
    graph.vpush(frame)
    return graph.vpull()


def _filter_graph(width: int, height: int, pixel_format: str, *filters: str) -> Graph:
    """Return a graph of filters of FFmpeg: names, each followed by its options."""
    graph = Graph()
    graph.threads = 1  # the machine's cores are used by several decode processes
    # The time base makes no difference, as the times of frames are not used.
    source = graph.add_buffer(
        width=width, height=height, format=av.VideoFormat(pixel_format), time_base=Fraction(1, 25)
    )
    steps = [graph.add(name, options) for name, options in zip(filters[::2], filters[1::2], strict=True)]
    graph.link_nodes(source, *steps, graph.add("buffersink")).configure()
    return graph


_kept_graph = lru_cache(maxsize=5)(_filter_graph)
"""A file needs up to five: what is cut off, whether fields are marked, alpha, the shape of pixels, and odd angles."""
