"""Send requests to one model on one server over TorchServe's inference API, without retries; `balancer.py` retries."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import aiohttp

from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.http_session import (
    HTTPS_ONLY,
    REDIRECTS,
    RawAnswer,
    ask,
    check_trusted_certificates,
    parse_json,
    unreachable,
)
from reelscribe.contract import shared_memory
from reelscribe.contract.descriptions import ModelDescription
from reelscribe.errors import (
    AccessRefused,
    MemoryNotShared,
    RequestRefused,
    ServerError,
    ServerUnreachable,
    UsageError,
    brief,
    printable,
)

_log = logging.getLogger(__name__)

WRITE_BYTES = 256 * 1024
"""Size of the writes to the socket, in bytes. Asyncio would copy most of a larger write into its buffer."""

CONNECT_SECONDS = 10.0
"""Timeout of a connection attempt, in seconds."""

QUEUE_SECONDS = 600.0
"""Time that a request may wait in the server's queue, in seconds. The limit on requests in flight keeps this client's
queue short, but other clients may use the server, too."""

DESCRIBE_SECONDS = 120.0
"""Timeout of a request for the description, in seconds; it waits in the same queue."""

QUEUE_FULL = 503
"""Status of a request for which the server's queue, or the handler's batch of requests, was full."""

OUT_OF_MEMORY = 507
"""Status of a request whose worker was killed, for example because the machine ran out of memory, or for which the
memory of the device is too small."""

WORKER_DIED = frozenset({500, OUT_OF_MEMORY})
"""Statuses of requests whose worker died."""

TRANSIENT = frozenset({*WORKER_DIED, 502, QUEUE_FULL, 504})
"""Statuses of requests that may succeed later: the worker died, the queue was full, or a proxy got no answer."""

MAX_MESSAGE = 1000
"""Number of characters of a server's message that are kept."""

Description = TypeVar("Description", bound=ModelDescription)


@dataclass(frozen=True)
class Answer:
    """The response to a request, with its latency split into network, queue and compute time."""

    value: Any
    """The parsed JSON."""
    url: str
    """Address of the endpoint that sent it."""
    network_seconds: float
    """Time from the start of the request until all of it was sent, in seconds."""
    queue_seconds: float
    """Time from then until the response was received, without `compute_seconds`, in seconds."""
    compute_seconds: float
    """Compute time of the handler for the request, in seconds; 0 if the response does not state it."""


@dataclass(frozen=True)
class Server:
    """Address of a server, and the token for it.

    Raises:
        UsageError: The address does not begin with http:// or https://, or the environment names trusted certificates
            for https that do not exist.
    """

    url: str
    """Inference address, such as http://127.0.0.1:8080."""
    credentials: Credentials | str | None = field(default=None, repr=False)
    """The key file, or the inference token itself; None for a server that requires no token."""
    find_again: Callable[[], Server | None] | None = field(default=None, repr=False, compare=False)
    """Returns where the server is now, or None if it is nowhere; None for a server whose address stays."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise UsageError(f"server: expected an address like http://127.0.0.1:8080, got {self.url!r}")
        check_trusted_certificates(self.url)


class Endpoint(Generic[Description]):
    """One model on one server."""

    def __init__(
        self,
        server: Server,
        model: str,
        session: aiohttp.ClientSession,
        read_description: Callable[[Any], Description],
        *,
        request_seconds: float | None,
    ) -> None:
        """Prepare requests to a model; this opens no connection.

        Args:
            server: Address and token.
            model: Name that the model has on the server.
            session: HTTP session for the requests.
            read_description: Parses the JSON of a description; raises ServerError for another kind of model.
            request_seconds: Timeout of a request in seconds; None for the compute time that the server allows, plus
                QUEUE_SECONDS.
        """
        self._server, self._model = server, model
        self.outstanding = 0
        """Number of requests that are waiting for an answer."""
        self.outage: ServerError | None = None
        """Why the endpoint cannot be used at the moment; None if it can. The balancer sets it."""
        self.description: Description | None = None
        """The last description of the model; None before `describe`."""
        self.memories: Sequence[shared_memory.SharedMemory] = ()
        """Memory in which arrays of requests may lie; a server on this machine reads them there."""
        self._read_description = read_description
        self._reads_memory = True
        self._session = session
        self._refused_token: str | None = None
        self._request_seconds = request_seconds

    @property
    def url(self) -> str:
        """The address of the model."""
        return f"{self._server.url.rstrip('/')}/predictions/{self._model}"

    @property
    def workers(self) -> int:
        """Number of workers that serve the model; 1 before `describe`."""
        return max(1, self.description.workers) if self.description else 1

    async def describe(self) -> Description:
        """Request the model's description.

        Returns:
            The description.

        Raises:
            ServerError: The server does not answer, or with something else than a description of the expected kind.
        """
        answer, _ = await self._post([], {"describe": "True"}, DESCRIBE_SECONDS)
        self.description = self._read_description(answer.value)
        return self.description

    async def predict(self, body: list[wire.Segment]) -> Answer:
        """Send a request.

        Args:
            body: The packed request.

        Returns:
            The answer.

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
            answer, identity = await self._post_or_refer(body, seconds)
        finally:
            self.outstanding -= 1
        if self.description and identity and identity != self.description.identity:
            # The server was restarted, or its default version changed. No file must get the words of two models.
            raise AccessRefused(
                f"{self.url}: another model answers there now, or one with other settings", temporary=True
            )
        return answer

    def reload_key(self) -> bool:
        """Read the key file again, and return whether its token differs from the one that was refused last."""
        credentials = self._server.credentials
        return isinstance(credentials, Credentials) and credentials.reload_after_refusal(self._refused_token)

    def look_again(self) -> None:
        """Look where the server is now, and which key it has: it may have been started again with other settings."""
        found = self._server.find_again() if self._server.find_again else None
        if found and found.url != self._server.url:
            _log.warning("%s: the server is at %s now", self._server.url, found.url)
            self._server = found
        self.reload_key()

    async def _post_or_refer(self, body: list[wire.Segment], seconds: float) -> tuple[Answer, str | None]:
        """Send a request as `_post` does, or where its arrays are if the server can read them there."""
        reference = None
        if self._reads_memory and self.description and self.description.machine == (shared_memory.machine() or None):
            reference = shared_memory.refer(body, self.memories)
        if reference is not None:
            try:
                return await self._post([reference], {}, seconds)
            except RequestRefused as refusal:
                if refusal.status != MemoryNotShared.http_status:
                    raise
                _log.warning("%s reads no memory of this process, so frames are sent: %s", self.url, refusal)
                self._reads_memory = False
        return await self._post(body, {}, seconds)

    async def _post(
        self, body: list[wire.Segment], headers: dict[str, str], seconds: float
    ) -> tuple[Answer, str | None]:
        """Send a request. Return the answer, and the identity of the model that gave it if the response states it."""
        token = await self._token()
        if token:
            headers = {**headers, "Authorization": f"Bearer {token}"}
        content = {"Content-Type": "application/octet-stream", "Content-Length": str(wire.size_of(body))}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        upload = _Upload(body)
        try:
            response = await ask(
                self._session, "POST", self.url, data=upload, headers={**headers, **content}, limits=timeout
            )
            received = time.monotonic()
        except TimeoutError:
            raise ServerUnreachable(f"{self.url}: no connection or no answer in time; is the server running?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error
        if response.status != 200:
            self._refused_token = token
            raise self._refusal(response)
        try:
            value = parse_json(response.content)
        except ValueError:
            raise ServerError(f"{self.url}: expected JSON, got {response.text[:200]!r}") from None
        compute = _seconds(response.headers.get(wire.COMPUTE_SECONDS_HEADER))
        queue = max(0.0, received - upload.sent - compute)
        answer = Answer(value, self.url, upload.sent - upload.began, queue, compute)
        return answer, response.headers.get(wire.IDENTITY_HEADER)

    async def _token(self) -> str | None:
        credentials = self._server.credentials
        return await credentials.fresh_token(self._session) if isinstance(credentials, Credentials) else credentials

    def _refusal(self, response: RawAnswer) -> RequestRefused | AccessRefused:
        """Make the error for a response of our handler, or of TorchServe itself, that is not 200."""
        status, text = response.status, response.text
        try:
            value = parse_json(text)
        except ValueError:
            value = {}
        value = value if isinstance(value, dict) else {}
        error = value.get("error")
        if isinstance(error, dict):  # our handler would refuse it again, unless it was busy or ran out of memory
            return RequestRefused(status, _message(error), permanent=status not in (QUEUE_FULL, OUT_OF_MEMORY))
        message = _message(value) if "message" in value else printable(" ".join(text[:2000].split())[:200])
        if status in TRANSIENT:
            return RequestRefused(status, message)
        return AccessRefused(
            f"{self.url}: status {status}: {message}; {self._advice(response)}",
            temporary=status in (400, 404),
            status=status,
        )

    def _advice(self, response: RawAnswer) -> str:
        """Return what to do about a status with which TorchServe would refuse every request."""
        status = response.status
        if status in REDIRECTS:
            return (
                f"it redirects to {brief(response.headers.get('Location', ''))}, which is not followed, because that"
                " server must not get the token; name the server's own address"
            )
        if status == 400 and self._server.credentials:
            return "give the server's --key-file; keys expire, and a restart makes new ones"
        if status == 400:
            return "no token was given; name the server's key file with --key-file"
        if status == 403 and HTTPS_ONLY in response.text:
            return "write https://"
        if status == 404:
            return f"is the model {self._model!r} built and loaded?"
        if status == 413:
            return "the request is larger than max_request_size in the server's config.properties"
        return "is it a TorchServe?"


class _Upload:
    """A request body that is written in small views, and the times at which this began and ended."""

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
    """Parse a header. Return 0 if it is missing or no duration, because the value is only used for statistics."""
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


def _message(error: dict[str, Any]) -> str:
    """Return the message of a refusal. It may be saved for each frame of a request, so it must not be long."""
    message = error.get("message")
    text = printable(message[:MAX_MESSAGE]) if isinstance(message, str) else brief(message)
    return text + ("..." if isinstance(message, str) and len(message) > MAX_MESSAGE else "")
