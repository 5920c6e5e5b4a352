"""One model on one server, over TorchServe's inference API. Each call is a single attempt; `balancer.py` retries."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import aiohttp

from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.trust import HTTPS_ONLY, check_trusted_certificates, unreachable
from reelscribe.contract.model import ModelDescription
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable, UsageError

WRITE_BYTES = 256 * 1024
"""A body is written to the socket in views of this size, because asyncio would buffer all of a larger write."""

CONNECT_SECONDS = 10.0
"""Timeout of a connection attempt."""

QUEUE_SECONDS = 600.0
"""How long a request may wait in the server's queue. The client's own limit on requests in flight keeps the wait to a
few answers; other clients may add to it.
"""

DESCRIBE_SECONDS = 120.0
"""Timeout of a request for the description, which waits in the same queue."""

QUEUE_FULL = 503
"""Status of a request that found the server's queue full, or the handler's call."""

OUT_OF_MEMORY = 507
"""Status of a request whose worker was killed, for example by a machine without memory, or that exceeds the device's
memory.
"""

WORKER_DIED = frozenset({500, OUT_OF_MEMORY})
"""Statuses that TorchServe gives to requests whose worker died."""

TRANSIENT = frozenset({*WORKER_DIED, 502, QUEUE_FULL, 504})
"""Statuses that may pass: the worker died, the queue was full, or a proxy had no answer."""

D = TypeVar("D", bound=ModelDescription)


@dataclass(frozen=True)
class Answer:
    """The response to a request, and where the time went."""

    value: Any
    """The parsed JSON."""
    url: str
    """Address of the endpoint that sent it."""
    network_seconds: float
    """Time until the request was sent."""
    queue_seconds: float
    """Time from there to the response, without `compute_seconds`."""
    compute_seconds: float
    """Time that the handler worked on the request; 0 if it does not say."""


@dataclass(frozen=True)
class Server:
    """Address of a server, and the token for it.

    Raises:
        UsageError: The address is not one of http or https, or trusted certificates for https do not exist.
    """

    url: str
    """Inference address, such as http://127.0.0.1:8080."""
    credentials: Credentials | str | None = field(default=None, repr=False)
    """The key file, or the inference token itself; None for a server that wants none."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"server: expected an address like http://127.0.0.1:8080, got {self.url!r}")
        check_trusted_certificates(self.url)


class Endpoint(Generic[D]):
    """One model on one server."""

    def __init__(
        self,
        server: Server,
        model: str,
        session: aiohttp.ClientSession,
        read_description: Callable[[Any], D],
        *,
        request_seconds: float | None,
    ) -> None:
        """Address a model, without connecting yet.

        Args:
            server: Address and token.
            model: Name that the model has on the server.
            session: HTTP session to send requests with.
            read_description: Parses the model's description; raises ServerError for another kind of model.
            request_seconds: Timeout of a request. None stands for the time that the server allows for computing, plus
                QUEUE_SECONDS.
        """
        self.url = f"{server.url.rstrip('/')}/predictions/{model}"
        self.outstanding = 0
        """Number of requests without an answer."""
        self.outage: ServerError | None = None
        """Why the endpoint is not to be used at the moment; None if it is."""
        self.description: D | None = None
        """The model as it was described last; None before."""
        self._model = model
        self._read_description = read_description
        self._session = session
        self._credentials = server.credentials
        self._refused_token: str | None = None
        self._request_seconds = request_seconds

    @property
    def workers(self) -> int:
        """Number of workers that serve the model; 1 as long as it is unknown."""
        return max(1, self.description.workers) if self.description else 1

    async def describe(self) -> D:
        """Request the model's description. Raises ServerError."""
        answer, _ = await self._post([], {"describe": "True"}, DESCRIBE_SECONDS)
        self.description = self._read_description(answer.value)
        return self.description

    async def predict(self, body: list[wire.Segment]) -> Answer:
        """Send a request.

        Args:
            body: The packed request.

        Raises:
            RequestRefused: The server could not answer this request.
            AccessRefused: The server would refuse every request, or another model answered than was described.
            ServerUnreachable: There was no connection, or no response in time.
            ServerError: The response is not JSON.
        """
        seconds = self._request_seconds
        if seconds is None:
            seconds = QUEUE_SECONDS + (self.description.response_seconds if self.description else 0)
        self.outstanding += 1
        try:
            answer, identity = await self._post(body, {}, seconds)
        finally:
            self.outstanding -= 1
        if self.description and identity and identity != self.description.identity:
            # The server was restarted, or the version updated. One file must not get the words of two models.
            raise AccessRefused(f"{self.url}: another model answers there now, or one with other settings", passes=True)
        return answer

    def key_has_changed(self) -> bool:
        """Read the key file again, and tell whether its token is another one than the one that was refused last."""
        return isinstance(self._credentials, Credentials) and self._credentials.differs_from(self._refused_token)

    async def _post(
        self, body: list[wire.Segment], headers: dict[str, str], seconds: float
    ) -> tuple[Answer, str | None]:
        """Send a request, and return the answer with the identity of the model that gave it, if the response has it."""
        token = await self._token()
        if token:
            headers = {**headers, "Authorization": f"Bearer {token}"}
        content = {"Content-Type": "application/octet-stream", "Content-Length": str(wire.size_of(body))}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        upload = _Upload(body)
        try:
            async with self._session.post(
                self.url, data=upload, headers={**headers, **content}, timeout=timeout
            ) as response:
                text = await response.text(errors="replace")
                received = time.monotonic()
        except TimeoutError:
            raise ServerUnreachable(f"{self.url}: no connection or no answer in time; is the server running?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error
        if response.status != 200:
            self._refused_token = token
            raise self._refusal(response.status, text)
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise ServerError(f"{self.url}: expected JSON, got {text[:200]!r}") from None
        compute = _seconds(response.headers.get(wire.COMPUTE_SECONDS_HEADER))
        queue = max(0.0, received - upload.sent - compute)
        answer = Answer(value, self.url, upload.sent - upload.began, queue, compute)
        return answer, response.headers.get(wire.IDENTITY_HEADER)

    async def _token(self) -> str | None:
        if isinstance(self._credentials, Credentials):
            return await self._credentials.fresh_token(self._session)
        return self._credentials

    def _refusal(self, status: int, text: str) -> RequestRefused | AccessRefused:
        """Make the error for a response of our handler, or of TorchServe itself, that is not 200."""
        try:
            response = json.loads(text)
        except json.JSONDecodeError:
            response = {}
        response = response if isinstance(response, dict) else {}
        error = response.get("error")
        if isinstance(error, dict):  # our handler would say the same again, unless it was busy or had no memory
            return RequestRefused(status, str(error.get("message")), final=status not in (QUEUE_FULL, OUT_OF_MEMORY))
        message = str(response.get("message", " ".join(text.split())[:200]))
        if status in TRANSIENT:
            return RequestRefused(status, message)
        return AccessRefused(
            f"{self.url}: status {status}: {message}; {self._advice(status, text)}", passes=status in (400, 404)
        )

    def _advice(self, status: int, text: str) -> str:
        """Say what to do about a status with which TorchServe would refuse every request."""
        if status == 400 and self._credentials:
            return "give the server's --key-file; keys expire, and a restart makes new ones"
        if status == 400:
            return "no token was given; name the server's key file with --key-file"
        if status == 403 and HTTPS_ONLY in text:
            return "write https://"
        if status == 404:
            return f"is the model {self._model!r} built and loaded?"
        if status == 413:
            return "the request is larger than max_request_size in the server's config.properties"
        return "is it a TorchServe?"


class _Upload:
    """A request body that is written piece by piece, and when it was sent."""

    def __init__(self, body: list[wire.Segment]) -> None:
        self._body = body
        self.began = self.sent = time.monotonic()

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for segment in self._body:
            view = memoryview(segment)
            for begin in range(0, view.nbytes, WRITE_BYTES):
                yield view[begin : begin + WRITE_BYTES]
        self.sent = time.monotonic()


def _seconds(header: str | None) -> float:
    """Parse a header; 0 if it is missing or not a number, as it is only reported."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0
