"""Map colours of a high dynamic range (HDR) to those that models know: BT.2020 with PQ or HLG to BT.709.

The result is that of FFmpeg's filters `zscale` and `tonemap`, of which PyAV has only the second one::

    zscale=transfer=linear:npl=203,format=gbrpf32le,zscale=primaries=bt709,tonemap=mobius:desat=0,zscale=transfer=bt709

203 cd/m2 is where productions put white, so what is darker stays as it is on a usual screen. What is brighter is
compressed up to ten times as much light, whatever peak the file states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import DynamicRange

HDR_FORMAT, HDR_BITS = "gbrp14le", 14
"""FFmpeg's pixel format of frames to map, and the bits of each of its values. With 8, dark colours were up to 34 levels
off."""

GBRP_PLANES_RGB = (2, 0, 1)
"""Numbers of the red, green and blue plane in FFmpeg's formats that begin with gbrp."""

_RANGES: dict[int, DynamicRange] = {16: "pq", 18: "hlg"}
"""Dynamic ranges by FFmpeg's number of the transfer characteristics; all others are "sdr"."""

_UNSPECIFIED = 2
"""FFmpeg's number of transfer characteristics that are not stated."""

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


def stated_range(transfer: int) -> DynamicRange:
    """Return the dynamic range of transfer characteristics, by FFmpeg's number of them."""
    return _RANGES.get(transfer, "sdr")


def range_of(frame: av.VideoFrame, stated: DynamicRange) -> DynamicRange:
    """Return the dynamic range of a frame, or `stated`, what its file states, if the frame says nothing."""
    return stated if frame.color_trc == _UNSPECIFIED else stated_range(frame.color_trc)


def tone_map(frame: av.VideoFrame, dynamic_range: DynamicRange, white: int) -> FrameArray:
    """Map a frame to BT.709.

    Args:
        frame: A frame in HDR_FORMAT.
        dynamic_range: Its dynamic range: "pq" or "hlg".
        white: Its value of the signal 1.0, the largest there is.

    Returns:
        (height, width, 3) uint8 RGB.
    """
    light_of, planes = _light_of_values(dynamic_range, white), [_values(frame, n) for n in GBRP_PLANES_RGB]
    mapped = np.empty((frame.height, frame.width, 3), np.uint8)
    step = max(1, _BLOCK_PIXELS // frame.width)
    for top in range(0, frame.height, step):
        rows = slice(top, top + step)
        light = _in_bt709([light_of[plane[rows]] for plane in planes])
        gain = _gain(np.maximum.reduce(light))
        for channel, each in enumerate(light):
            mapped[rows, :, channel] = _to_levels(each * gain)
    return mapped


def _values(frame: av.VideoFrame, number: int) -> NDArray[np.uint16]:
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
