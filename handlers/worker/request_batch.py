"""The requests of one call: each is read by itself and answered by itself.

A call is what TorchServe passes to a handler at once: one request, or up to batchSize requests that it joined. A
handler's reader decides which bodies it accepts (captions/frame_requests.py, transcripts/audio_requests.py) by their
first bytes, not by the Content-Type.

A reader checks a request and reserves its place in the call, one request after the other. What takes longer, such as
decoding a file, it leaves to threads, which work on several requests at once while the device computes the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from reelscribe import wire
from reelscribe.contract import shared_memory
from reelscribe.errors import RequestError, RequestFailed, UnsupportedFormat, WireError, kind_of
from runtime.device_batches import own_error
from runtime.metrics import Counters, TorchServeMetrics
from worker.body_file import limited_time

_SIGNATURES = (
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
"""Formats that clients send by mistake: offset, the bytes at that offset, and the name for the error message."""

THREAD_VALUES = 100_000
"""Stills and arrays with fewer pixels or samples are read in the worker's own thread. That takes 1 to 3 ms, less than a
thread needs to wake up and take turns with the others."""

MAX_ANSWER_BYTES = 6_553_500
"""The most bytes of an answer where the environment does not say, as in TorchServe, which ends a worker for more."""

_PLAIN = "text/plain"
"""Content type of bare texts."""

Row = dict[str, Any]
"""One request as TorchServe passes it: its body is under "body" or "data"."""

Headers = Mapping[str, str]
"""The HTTP headers of one request, with their names in lower case."""


class Context(Protocol):
    """The part of TorchServe's context that handlers use."""

    system_properties: dict[str, Any]
    """Holds "gpu_id", the number of the worker's GPU or None."""
    model_yaml_config: dict[str, Any]
    """The archive's YAML, parsed."""
    manifest: dict[str, Any]
    """The archive's manifest; "model" has "modelName" and "modelVersion"."""
    metrics: TorchServeMetrics

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """The headers of request `idx`, with their names as the client wrote them."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the Content-Type of response `idx`."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of response `idx`."""

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        """Set the HTTP status of response `idx`."""


class Request(Protocol):
    """A request that a reader accepted."""

    @property
    def items(self) -> Any:
        """The items that run through the model: a list, or an array with the items along its first axis."""

    def response(self, results: list[Any]) -> Any:
        """Make the response, a value for JSON, from one result for each item."""


@dataclass(frozen=True)
class Unread:
    """A request that a reader accepted, and that has its place in the call, but has not been read.

    What is missing takes long: a file is decoded, a frame is scaled, or audio is resampled.
    """

    read: Callable[[], Request]
    """Does this work, in any thread. Raises a RequestError if the request turns out to be damaged."""
    values: int
    """How many samples or pixels there are to read: what the work is measured by."""


RequestReader = Callable[[Row, Headers], Request | Unread]
"""Reads the requests of one call, one after the other. Raises a RequestError for a request that cannot be answered."""


def request_body(row: Row) -> bytes | bytearray:
    """Return the body of a request.

    Raises:
        UnsupportedFormat: TorchServe has parsed the body, because its Content-Type was that of JSON or of a form.
        RequestError: It refers to shared memory that cannot be read (see `reelscribe.contract.shared_memory`).
    """
    body = row.get("body", row.get("data"))
    if not isinstance(body, (bytes, bytearray)):
        got = "a form without a field named data" if body is None else type(body).__name__
        raise UnsupportedFormat(
            f"body: expected bytes, got {got}; send a file by curl -T FILE, or as a form by curl -F data=@FILE, and"
            " bytes with Content-Type: application/octet-stream"
        )
    return shared_memory.resolve(body)


def free_bodies(data: Sequence[Row]) -> None:
    """Free the bodies of a call that has been answered.

    TorchServe keeps them until it has received the next call, so a worker would have two calls in memory. A body that
    something still refers to stays as it is.
    """
    for row in data:
        body = row.get("body", row.get("data"))
        if isinstance(body, bytearray):
            with suppress(BufferError):
                body.clear()


def wrong_format(body: bytes | bytearray, expected: str) -> RequestError:
    """Make the error for a body of a format that the handler does not read.

    Args:
        body: The body of the request.
        expected: The formats that the handler reads, for the message.

    Returns:
        UnsupportedFormat if the body's first bytes are those of a known format, otherwise WireError.
    """
    for offset, signature, name in _SIGNATURES:
        if body.startswith(signature, offset):
            return UnsupportedFormat(f"body: expected {expected}, got {name}")
    return WireError(f"body: expected {expected}, got {len(body)} bytes that start like none of them")


def kind_without(tree: Any, needed: str) -> str:
    """Describe a value that is no dict of the names that a handler knows, for a message that tells nothing it holds.

    Args:
        tree: The value.
        needed: The name that the dict must have.
    """
    if not isinstance(tree, dict):
        return kind_of(tree)
    return "a dict with other names, too" if needed in tree else f"a dict without {needed}"


class RequestBatch:
    """The requests of one call. Each is for the model, asks for the model's description, or gets an error."""

    def __init__(
        self,
        data: Sequence[Row],
        context: Context,
        read: RequestReader,
        counters: Counters | None = None,
        threads: Executor | None = None,
    ) -> None:
        """Read all requests, or with `threads` begin to.

        Args:
            data: The requests as TorchServe passes them.
            context: TorchServe's context of this call.
            read: Reads one request for the model.
            counters: Counts requests, errors, and the time that reading takes.
            threads: Read the larger requests of a call with several. By default, everything is read here.
        """
        self._context = context
        self._counters = counters or Counters()
        self._answers = [""] * len(data)
        self._requests: dict[int, Request] = {}
        self._items: dict[int, Any] = {}
        self._describe_requests: list[int] = []
        self._plain_requests: set[int] = set()
        self._threads = threads if len(data) > 1 else None
        try:
            self._read(data, read)
        except BaseException:
            for items in self._items.values():
                if isinstance(items, Future):
                    items.cancel()  # nobody will ask for it
            raise

    def _read(self, data: Sequence[Row], read: RequestReader) -> None:
        for i, row in enumerate(data):
            headers = {name.lower(): value for name, value in self._context.get_all_request_header(i).items()}
            if "describe" in headers:
                self._describe_requests.append(i)
                continue
            if headers.get("accept", "").strip().lower().startswith(_PLAIN):
                self._plain_requests.add(i)
            self._counters.add("requests")
            try:
                with self._counters.timed("preprocess_seconds"), limited_time():
                    request = read(row, headers)
                if self._threads and isinstance(request, Unread) and request.values >= THREAD_VALUES:
                    self._items[i] = self._threads.submit(self._finish_reading, i, request)
                else:
                    self._items[i] = self._finish_reading(i, request)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is that of this request
                self._refuse(i, error)

    @property
    def ask_for_description(self) -> bool:
        """True if a request of the call asks for the model's description."""
        return bool(self._describe_requests)

    @property
    def items(self) -> list[Any]:
        """The items of each request for the model that could be read, in order.

        Those of a request that threads read are a Future of them, which may raise a RequestError.
        """
        return list(self._items.values())

    def _finish_reading(self, i: int, request: Request | Unread) -> Any:
        """Keep request `i`, once it is read, and return its items."""
        if isinstance(request, Unread):
            with self._counters.timed("preprocess_seconds"), limited_time():
                request = request.read()
        self._requests[i] = request
        return request.items

    def responses(self, results: Sequence[list[Any] | RequestError], description: dict[str, Any]) -> list[str]:
        """Make the responses to all requests of the call.

        Args:
            results: For each entry of `items`, the results of these items, or the error of the request.
            description: The response to requests for the model's description.

        Returns:
            One response for each request of the call, in order: JSON, or bare texts for a request with the header
            Accept: text/plain.
        """
        for i in self._describe_requests:
            self._answers[i] = self._text(i, description)
        for i, result in zip(self._items, results, strict=True):
            if isinstance(result, RequestError):
                self._refuse(i, result)
            else:
                self._respond(i, result)
        return self._answers

    def _respond(self, i: int, results: list[Any]) -> None:
        """Answer a request with its response, or with an error if that cannot be made or is too large."""
        try:
            answer = self._text(i, self._requests[i].response(results))
            if len(answer.encode()) > (most := _most_bytes()):
                raise RequestFailed(
                    f"answer: at most {most:,} bytes (max_response_size of TorchServe), got {len(answer.encode()):,};"
                    " send less in a request, or ask for less of a file"
                )
            self._answers[i] = answer
        except Exception as error:  # noqa: BLE001 - whatever it is, it is that of this request
            self._refuse(i, error)

    def _refuse(self, i: int, error: Exception) -> None:
        """Answer a request with an error."""
        own = own_error(error)
        name = type(own).__name__
        self._counters.add("errors", error=name)
        self._context.set_response_status(own.http_status, name, i)
        self._answers[i] = self._text(i, {"error": {"type": name, "message": str(own)}})

    def _text(self, i: int, response: Any) -> str:
        """The text of the response to request `i`, whose type it sets."""
        plain = _to_plain(response) if i in self._plain_requests else None
        kind = "application/json" if plain is None else f"{_PLAIN}; charset=utf-8"
        self._context.set_response_content_type(i, kind)
        return _to_json(response) if plain is None else plain


def _most_bytes() -> int:
    """The most bytes of an answer: what the launcher of the server says, or TorchServe's default."""
    said = os.environ.get(wire.RESPONSE_SIZE_VARIABLE, "")
    return int(said) if said.isdecimal() else MAX_ANSWER_BYTES


def _to_json(response: Any) -> str:
    """The JSON of a response, with each item of a list in a line of its own.

    TorchServe would write each value in a line of its own.
    """
    if isinstance(response, list):
        return "[" + ",\n ".join(map(json.dumps, response)) + "]"
    return json.dumps(response)


def _to_plain(response: Any) -> str | None:
    """The bare text of a response, or a JSON list of texts for a list; None for a response without a text."""
    if isinstance(response, list):
        return json.dumps([each["text"] for each in response]) if all("text" in each for each in response) else None
    text: str | None = None if response.get("error") else response.get("text")  # a part must not look complete
    return text
