"""Requests become frames or an error of their own; captions become responses.

A request's body is what `reelscribe.wire` reads, an array of frames or a dict with such an array under "frames", or a
JPEG, PNG or WebP still. Its first bytes say which; what it is labelled does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import still_image
from reelscribe import wire
from reelscribe.errors import (
    CallFull,
    FramesError,
    LimitExceeded,
    OutOfDeviceMemory,
    ReelscribeError,
    UnsupportedFormat,
    WireError,
)
from reelscribe.media import FrameArray, FrameSize

MAX_ASPECT = 32
"""How many times longer than the other a side may be: models that keep the aspect would scale a line to gigabytes."""

STILL_PIXELS_A_CALL = 2_000_000_000
"""A minute's work, and a fraction of TorchServe's responseTimeout, after which it would take the worker for dead."""

STATUS = {
    WireError: 400,
    LimitExceeded: 413,
    UnsupportedFormat: 415,
    FramesError: 422,
    CallFull: 503,
    OutOfDeviceMemory: 507,
}

_OTHER_FORMATS = (
    (0, b"{", "JSON"),
    (0, b"[", "JSON"),
    (0, b"<", "HTML or XML"),
    (0, b"GIF8", "a GIF image"),
    (0, b"BM", "a BMP image"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (4, b"jP  ", "a JPEG 2000 image"),
    (4, b"ftyp", "an MP4 video, or a HEIC or AVIF image"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (0, b"RIFF", "an AVI video or WAV audio"),
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\3\4", "a zip or .npz archive"),
    (0, b"\x1f\x8b", "gzip"),
)
"""What people send by mistake: offset, the bytes there, name."""


class Context(Protocol):
    """What is used of TorchServe's context."""

    system_properties: dict[str, Any]
    model_yaml_config: dict[str, Any]

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """The headers of request `idx`, spelled as they were sent."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """The media type of response `idx`."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """A header of response `idx`."""

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        """The HTTP status of response `idx`."""


@dataclass(frozen=True)
class Limits:
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


class Room:
    """What a call of the handler still has room for: as many frames as one request may hold, and some stills."""

    def __init__(self, limits: Limits) -> None:
        self.frames, self.still_pixels = limits.frames, STILL_PIXELS_A_CALL

    def take(self, frames: int, still_pixels: int = 0) -> None:
        """Raises CallFull if there is not so much left."""
        if frames > self.frames or still_pixels > self.still_pixels:
            raise CallFull("call: too many frames in the requests that were joined with this one; try again")
        self.frames -= frames
        self.still_pixels -= still_pixels


@dataclass(frozen=True)
class FrameRequest:
    """The frames of one request, (N, H, W, 3) uint8 RGB; `single` if it was sent as (H, W, 3) or as a still."""

    frames: FrameArray
    single: bool

    def answer(self, captions: list[str]) -> str | list[str]:
        """In the shape of what was sent."""
        return captions[0] if self.single else captions


def read_request(row: dict[str, Any], limits: Limits, size: FrameSize, room: Room) -> FrameRequest:
    """The frames in one row of TorchServe's `data`. Raises the errors that `STATUS` lists."""
    body = row.get("body", row.get("data"))
    if not isinstance(body, (bytes, bytearray)):
        got = "a form" if body is None else type(body).__name__
        raise UnsupportedFormat(
            f"body: expected bytes, got {got}; send it with Content-Type: application/octet-stream, or by curl -T FILE"
        )
    if still_image.is_still(body):
        return _still(body, limits, size, room)
    for offset, signature, name in _OTHER_FORMATS:
        if body.startswith(signature, offset):
            raise UnsupportedFormat(f"body: expected an array (pickle, .npy) or a JPEG, PNG or WebP still, got {name}")
    if not body.startswith(wire.STARTS):
        raise WireError(
            f"body: expected an array (pickle, .npy) or a JPEG, PNG or WebP still, got {len(body)} bytes"
            f" that start with {bytes(body[:8])!r}"
        )
    request = _frames(wire.unpack(body), limits)
    room.take(len(request.frames))
    return request


def _still(body: bytes | bytearray, limits: Limits, size: FrameSize, room: Room) -> FrameRequest:
    image = still_image.open_still(body)
    limits.check(1, *image.size)
    room.take(1, image.width * image.height)
    return FrameRequest(still_image.to_frame(image, size)[None], single=True)


def _frames(tree: Any, limits: Limits) -> FrameRequest:
    frames = tree.get("frames") if isinstance(tree, dict) else tree
    if not isinstance(frames, np.ndarray):
        raise FramesError(f'frames: expected an array, or a dict with one under "frames", got {type(tree).__name__}')
    if frames.dtype != np.uint8:
        raise FramesError(f"frames: expected uint8 (0 to 255), got {frames.dtype}; scale and convert before sending")
    if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.size == 0:
        raise FramesError(f"frames: expected (H, W, 3) or (N, H, W, 3) RGB with at least one pixel, got {frames.shape}")
    request = FrameRequest(frames if frames.ndim == 4 else frames[None], single=frames.ndim == 3)
    count, height, width, _ = request.frames.shape
    limits.check(count, width, height)
    return request


class RequestBatch:
    """All requests of one call of the handler, in order: those to caption, to describe to, and those that are wrong."""

    def __init__(self, data: Sequence[dict[str, Any]], context: Context, limits: Limits, size: FrameSize) -> None:
        """`size` is the model's input, to which stills are scaled."""
        self._context = context
        self._answers: list[Any] = [None] * len(data)
        self._frames: dict[int, FrameRequest] = {}
        self._describes: list[int] = []
        room = Room(limits)
        for i, row in enumerate(data):
            if "describe" in map(str.lower, context.get_all_request_header(i)):
                self._describes.append(i)
                continue
            try:
                self._frames[i] = read_request(row, limits, size, room)
            except ReelscribeError as error:
                self._refuse(i, error)

    @property
    def frames(self) -> list[FrameArray]:
        """The frames of each request that is to be captioned."""
        return [request.frames for request in self._frames.values()]

    def responses(self, captions: Sequence[list[str] | ReelscribeError], description: dict[str, Any]) -> list[Any]:
        """One answer a request; `captions` has one entry for each of `frames`."""
        for i in self._describes:
            self._answers[i] = description
        for (i, request), result in zip(self._frames.items(), captions, strict=True):
            if isinstance(result, ReelscribeError):
                self._refuse(i, result)
            else:
                self._answers[i] = request.answer(result)
        for i, answer in enumerate(self._answers):
            text = isinstance(answer, str)
            self._context.set_response_content_type(i, "text/plain; charset=utf-8" if text else "application/json")
        return self._answers

    def _refuse(self, i: int, error: ReelscribeError) -> None:
        self._context.set_response_status(STATUS[type(error)], type(error).__name__, i)
        self._answers[i] = {"error": {"type": type(error).__name__, "message": str(error)}}
