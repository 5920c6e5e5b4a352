"""Requests become frames; captions become responses.

A request's body is what `reelscribe.wire` reads, an array of frames or a dict with such an array under "frames", or a
JPEG, PNG or WebP still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from captions import still_image
from reelscribe import wire
from reelscribe.errors import CallFull, FramesError, LimitExceeded
from reelscribe.media import FrameArray, FrameSize
from worker.request_batch import Headers, Row, body_of, not_understood

MAX_ASPECT = 32
"""How many times longer than the other a side may be: models that keep the aspect would scale a line to gigabytes."""

STILL_PIXELS_A_CALL = 2_000_000_000
"""A minute's work, and a fraction of TorchServe's responseTimeout, after which it would take the worker for dead."""

EXPECTED = "an array (pickle, .npy) or a JPEG, PNG or WebP still"


@dataclass(frozen=True)
class FrameLimits:
    """What one request may hold."""

    frames: int
    side: int
    """Pixels of the longer side of a frame."""

    def check(self, count: int, width: int, height: int) -> None:
        """Raises LimitExceeded if frames are too many or too large, FramesError if they are too narrow."""
        if count > self.frames:
            raise LimitExceeded(f"frames: at most {self.frames} a request, got {count}; send them in several requests")
        if max(width, height) > self.side:
            raise LimitExceeded(f"frames: sides of at most {self.side} pixels, got {width} x {height}; scale them down")
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise FramesError(
                f"frames: neither side over {MAX_ASPECT} times the other, got {width} x {height}; cut them to a shape"
            )


@dataclass(frozen=True)
class FrameRequest:
    """The frames of one request, (N, H, W, 3) uint8 RGB; `single` if it was sent as (H, W, 3) or as a still."""

    items: FrameArray
    single: bool

    def answer(self, results: list[str]) -> str | list[str]:
        """The captions in the shape of what was sent."""
        return results[0] if self.single else results


class FrameReader:
    """Reads the requests of one call, which may hold as many frames together as one of them may, and some stills."""

    def __init__(self, limits: FrameLimits, size: FrameSize) -> None:
        """`size` is the model's input, to which stills are scaled."""
        self._limits, self._size = limits, size
        self._frames_left, self._still_pixels_left = limits.frames, STILL_PIXELS_A_CALL

    def __call__(self, row: Row, _headers: Headers) -> FrameRequest:
        """The frames of one request. Raises the errors that `request_batch.STATUS` lists."""
        body = body_of(row)
        if still_image.is_still(body):
            return self._still(body)
        if not body.startswith(wire.STARTS):
            raise not_understood(body, EXPECTED)
        request = _frames(wire.unpack(body))
        count, height, width, _ = request.items.shape
        self._limits.check(count, width, height)
        self._take(count)
        return request

    def _still(self, body: bytes | bytearray) -> FrameRequest:
        image = still_image.open_still(body)
        self._limits.check(1, *image.size)
        self._take(1, image.width * image.height)
        return FrameRequest(still_image.to_frame(image, self._size)[None], single=True)

    def _take(self, frames: int, still_pixels: int = 0) -> None:
        if frames > self._frames_left or still_pixels > self._still_pixels_left:
            raise CallFull("call: too many frames in the requests that were joined with this one; try again")
        self._frames_left -= frames
        self._still_pixels_left -= still_pixels


def _frames(tree: Any) -> FrameRequest:
    frames = tree.get("frames") if isinstance(tree, dict) else tree
    if not isinstance(frames, np.ndarray):
        raise FramesError(f'frames: expected an array, or a dict with one under "frames", got {type(tree).__name__}')
    if frames.dtype != np.uint8:
        raise FramesError(f"frames: expected uint8 (0 to 255), got {frames.dtype}; scale and convert before sending")
    if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.size == 0:
        raise FramesError(f"frames: expected (H, W, 3) or (N, H, W, 3) RGB with at least one pixel, got {frames.shape}")
    return FrameRequest(frames if frames.ndim == 4 else frames[None], single=frames.ndim == 3)
