"""All requests of one call of a handler: each is read by itself, and answered by itself.

What kinds of bodies a handler reads is its reader's affair: frame_requests.py, speech_requests.py. A body's first bytes
say what it is; what it is labelled does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from runtime.metrics import TorchServeMetrics
from reelscribe.errors import (
    CallFull,
    FramesError,
    LimitExceeded,
    OutOfDeviceMemory,
    ReelscribeError,
    SpeechError,
    UnsupportedFormat,
    WireError,
)
from runtime.metrics import Tally

STATUS = {
    WireError: 400,
    LimitExceeded: 413,
    UnsupportedFormat: 415,
    FramesError: 422,
    SpeechError: 422,
    CallFull: 503,
    OutOfDeviceMemory: 507,
}

_FORMATS = (
    (0, b"{", "JSON"),
    (0, b"[", "JSON"),
    (0, b"<", "HTML or XML"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"BM", "a BMP image"),
    (0, b"II*\0", "a TIFF image"),
    (0, b"MM\0*", "a TIFF image"),
    (4, b"jP  ", "a JPEG 2000 image"),
    (8, b"WEBP", "a WebP image"),
    (8, b"WAVE", "WAV audio"),
    (0, b"RIFF", "an AVI video"),
    (0, b"fLaC", "FLAC audio"),
    (0, b"OggS", "Ogg audio or video"),
    (0, b"ID3", "MP3 audio"),
    (0, b"\xff\xfb", "MP3 audio"),
    (4, b"ftyp", "an MP4 video, or a HEIC or AVIF image"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\3\4", "a zip or .npz archive"),
    (0, b"\x1f\x8b", "gzip"),
)
"""What people send by mistake, to one handler or the other: offset, the bytes there, name."""

Row = dict[str, Any]
"""One request's body as TorchServe hands it over."""

Headers = Mapping[str, str]
"""Of one request, by their names in lower case."""


class Context(Protocol):
    """What is used of TorchServe's context."""

    system_properties: dict[str, Any]
    model_yaml_config: dict[str, Any]
    manifest: dict[str, Any]
    metrics: TorchServeMetrics

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """The headers of request `idx`, spelled as they were sent."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """The media type of response `idx`."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """A header of response `idx`."""

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        """The HTTP status of response `idx`."""


class Request(Protocol):
    """What was understood of one request."""

    @property
    def items(self) -> Any:
        """What goes through the model, one answer each: a list, or an array whose first axis they are."""

    def answer(self, results: list[Any]) -> Any:
        """The response, made of one result for each item."""


Read = Callable[[Row, Headers], Request]
"""Reads the requests of one call, one after the other. Raises the errors that `STATUS` lists."""


def body_of(row: Row) -> bytes | bytearray:
    """The body of a request. Raises UnsupportedFormat if it was not sent as plain bytes."""
    body = row.get("body", row.get("data"))
    if not isinstance(body, (bytes, bytearray)):
        got = "a form" if body is None else type(body).__name__
        raise UnsupportedFormat(
            f"body: expected bytes, got {got}; send it with Content-Type: application/octet-stream, or by curl -T FILE"
        )
    return body


def not_understood(body: bytes | bytearray, expected: str) -> ReelscribeError:
    """The error for a body of another kind than what is `expected`."""
    for offset, signature, name in _FORMATS:
        if body.startswith(signature, offset):
            return UnsupportedFormat(f"body: expected {expected}, got {name}")
    return WireError(f"body: expected {expected}, got {len(body)} bytes that start with {bytes(body[:8])!r}")


class RequestBatch:
    """All requests of one call, in order: those for the model, those to describe to, and those that are wrong."""

    def __init__(self, data: Sequence[Row], context: Context, read: Read, tally: Tally | None = None) -> None:
        """`tally` counts requests, errors, and the time it takes to read them."""
        self._context = context
        self._tally = tally or Tally()
        self._answers: list[Any] = [None] * len(data)
        self._requests: dict[int, Request] = {}
        self._describes: list[int] = []
        for i, row in enumerate(data):
            headers = {name.lower(): value for name, value in context.get_all_request_header(i).items()}
            if "describe" in headers:
                self._describes.append(i)
                continue
            self._tally.add("requests")
            try:
                with self._tally.timed("preprocess_seconds"):
                    self._requests[i] = read(row, headers)
            except ReelscribeError as error:
                self._refuse(i, error)

    @property
    def items(self) -> list[Any]:
        """The items of each request that is for the model."""
        return [request.items for request in self._requests.values()]

    def responses(self, results: Sequence[list[Any] | ReelscribeError], description: dict[str, Any]) -> list[Any]:
        """One answer a request; `results` has one entry for each of `items`."""
        for i in self._describes:
            self._answers[i] = description
        for (i, request), result in zip(self._requests.items(), results, strict=True):
            if isinstance(result, ReelscribeError):
                self._refuse(i, result)
            else:
                self._answers[i] = request.answer(result)
        for i, answer in enumerate(self._answers):
            text = isinstance(answer, str)
            self._context.set_response_content_type(i, "text/plain; charset=utf-8" if text else "application/json")
        return self._answers

    def _refuse(self, i: int, error: ReelscribeError) -> None:
        self._tally.add("errors", error=type(error).__name__)
        self._context.set_response_status(STATUS[type(error)], type(error).__name__, i)
        self._answers[i] = {"error": {"type": type(error).__name__, "message": str(error)}}
