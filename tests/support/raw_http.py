"""HTTP as bytes, for requests that no proper client would send, and enough of gRPC to call a method."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

ANSWER_SECONDS = 120.0
"""Timeout of an answer. A slow answer of a busy machine is no refusal."""

QUIET_SECONDS = 0.2
"""After so long without another answer on the same connection, expected answers are complete."""

NO_ANSWER = "no answer"
"""Stands for a status where the server neither answers nor closes the connection."""

MAGIC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def connect(url: str) -> socket.socket:
    """Open a connection to the address of `url`."""
    at = urlsplit(url)
    assert at.hostname is not None
    return socket.create_connection((at.hostname, at.port or 80), timeout=ANSWER_SECONDS)


def status(url: str, raw: bytes) -> str:
    """Send bytes, and return the status of the first answer."""
    with connect(url) as connection:
        return " ".join(send(connection, raw, most=1))


def statuses(url: str, raw: bytes, expected: Collection[str] = ()) -> str:
    """Send bytes, and return the statuses of all answers.

    The result is empty if the server closes the connection without an answer, and NO_ANSWER if it does neither. It is
    complete soon after it is one of `expected`; until then, further answers are awaited.
    """
    with connect(url) as connection:
        return " ".join(send(connection, raw, expected=expected))


def send(connection: socket.socket, raw: bytes, most: int = 10, expected: Collection[str] = ()) -> list[str]:
    """Send bytes on a connection that stays open, and return the statuses of at most `most` answers."""
    with suppress(OSError):  # the server may refuse it before all of it is sent
        connection.sendall(raw)
    answers: list[str] = []
    while len(answers) < most:
        answer = http.client.HTTPResponse(connection)
        try:
            answer.begin()
            answer.read()
        except TimeoutError:
            return answers or [NO_ANSWER]
        except (OSError, http.client.HTTPException):
            return answers
        answers.append(str(answer.status))
        if not expected or " ".join(answers) in expected:
            connection.settimeout(QUIET_SECONDS)
    return answers


def call_grpc(port: str, method: str, key: str | None) -> str:
    """Call a method with an empty message, and return the bytes of the answer as text."""
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    if key is not None:
        fields["authorization"] = f"Bearer {key}"
    raw = MAGIC + _frame(kind=4) + _frame(kind=1, flags=4, stream=1, payload=_headers(fields))
    raw += _frame(kind=0, flags=1, stream=1, payload=bytes(5))
    answer = b""
    with connect(f"http://127.0.0.1:{port}") as connection:
        connection.sendall(raw)
        while b"grpc-status" not in answer and (data := connection.recv(65536)):
            answer += data
    # Netty does not compress short texts; the message follows its status in the same frame.
    return answer.decode("latin1")


def reset_streams(port: str, method: str, streams: int) -> None:
    """Open streams and reset each at once, as in CVE-2023-44487."""
    headers = _headers({":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"})
    with connect(f"http://127.0.0.1:{port}") as connection:
        connection.sendall(MAGIC + _frame(kind=4))
        for stream in range(1, 2 * streams, 2):
            reset = _frame(kind=3, stream=stream, payload=(8).to_bytes(4, "big"))
            connection.sendall(_frame(kind=1, flags=4, stream=stream, payload=headers) + reset)


def _frame(*, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame by RFC 9113, section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _headers(fields: dict[str, str]) -> bytes:
    """Header fields by RFC 7541, section 6.2.2: uncompressed names and values of up to 126 bytes each."""
    return b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items())
