"""One model on one server, and what all protocols share: addresses, keys, sending a body, and errors.

An endpoint sends each request once; `balancer.py` retries. `torchserve_endpoint.py` speaks to our handlers on a
TorchServe, and `openai_endpoint.py` to vLLM, SGLang and other servers with OpenAI's API.
"""

from __future__ import annotations

import logging
import reprlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import aiohttp

from reelscribe import wire
from reelscribe._web_addresses import OPENAI, checked_server_address
from reelscribe.client.credentials import Credentials
from reelscribe.client.http_session import RawAnswer, ask, check_trusted_certificates, parse_json, unreachable
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.client.operations import Request
from reelscribe.contract import shared_memory
from reelscribe.contract.descriptions import ModelDescription
from reelscribe.errors import (
    MALFORMED,
    AccessRefused,
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

WORKER_DIED = frozenset({500, 507})
"""Statuses of requests whose worker died, for example because its memory was too small."""

MAX_MESSAGE = 1000
"""Number of characters of a server's message that are kept."""

_EXAMPLES = "http://127.0.0.1:8080, or like openai+http://127.0.0.1:8000/v1 for a server with OpenAI's API"

Description = TypeVar("Description", bound=ModelDescription)


@dataclass(frozen=True)
class Answer:
    """The response to a request, with its latency split into network, queue and compute time."""

    answers: list[Any]
    """The answer to each item of the request."""
    url: str
    """Address of the endpoint that sent it."""
    network_seconds: float
    """Time from the start of the request until all of it was sent, in seconds."""
    queue_seconds: float
    """Time from then until the response was received, without `compute_seconds`, in seconds."""
    compute_seconds: float
    """Compute time of the handler for the request, in seconds; 0 if the response does not state it."""
    tokens: int = 0
    """Number of tokens that the model has written; 0 if the response does not state it."""
    queued: int | None = None
    """Number of requests of all clients that waited in the server's queue when it was asked last; None if it does not
    say."""
    items: int = 0
    """Number of items of the request."""
    call_items: int = 0
    """Number of items of all requests of the call that answered it; 0 if the response does not state it."""


@dataclass(frozen=True)
class Server:
    """Address of a server, and the token for it.

    Raises:
        UsageError: The address is none of a web server, with or without openai+ before it, or has a name and password,
            or the environment names trusted certificates for https that do not exist.
    """

    url: str
    """Inference address of a TorchServe, such as http://127.0.0.1:8080; or openai+ and the address of a server with
    OpenAI's API, such as openai+http://127.0.0.1:8000/v1."""
    credentials: Credentials | str | None = field(default=None, repr=False)
    """The key file, or the token or key itself; None for a server that requires none."""
    find_again: Callable[[], Server | None] | None = field(default=None, repr=False, compare=False)
    """Returns where the server is now, or None if it is nowhere; None for a server whose address stays."""
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    """How a server with OpenAI's API is asked; others do not need it."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise UsageError(f"server: expected an address like {_EXAMPLES}, got {self.url!r}")
        check_trusted_certificates(self.address)

    @property
    def speaks_openai(self) -> bool:
        """True if the server has OpenAI's API; False if it is a TorchServe."""
        return self.url.startswith(OPENAI)

    @cached_property
    def address(self) -> str:
        """The address for HTTP, as it is connected to, without a slash at its end."""
        return checked_server_address(self.url.removeprefix(OPENAI), _EXAMPLES)


@dataclass(frozen=True)
class Exchange:
    """An answer of status 200, and how long it took."""

    response: RawAnswer
    network_seconds: float
    """Time from the start of the request until all of it was sent, in seconds."""
    waited_seconds: float
    """Time from then until the response was received, in seconds."""


class Endpoint(ABC, Generic[Description]):
    """One model on one server."""

    def __init__(self, server: Server, model: str, session: aiohttp.ClientSession) -> None:
        """Prepare requests to a model; this opens no connection.

        Args:
            server: Address and token.
            model: Name that the model has on the server.
            session: HTTP session for the requests.
        """
        self._server, self._model = server, model
        self.outstanding = 0
        """Number of requests that are waiting for an answer."""
        self.outage: ServerError | None = None
        """Why the endpoint cannot be used at the moment; None if it can. The balancer sets it."""
        self.description: Description | None = None
        """The last description of the model; None before `describe`."""
        self.memories: Sequence[shared_memory.SharedMemory] = ()
        """Memory in which arrays of requests may lie; a handler on this machine reads them there."""
        self._answered: set[str] = set()
        """The workers that answered since they were counted last, as far as answers name them."""
        self._counted = 0
        """Number of workers when they were counted last; 0 if they were not."""
        self._session = session
        self._refused_token: str | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the model, for messages."""

    @property
    def workers(self) -> int:
        """Number of workers that serve the model: those that answer, or before that those that it describes, or 1."""
        return self._counted or (max(1, self.description.workers) if self.description else 1)

    def count_workers(self) -> None:
        """Count the workers that answered since the last call, which should be as long ago as each takes for a few."""
        self._counted, self._answered = len(self._answered) or self._counted, set()

    def forget_workers(self) -> None:
        """Go by the description until workers have answered, as those that did may be gone."""
        self._counted, self._answered = 0, set()

    @abstractmethod
    async def describe(self) -> Description:
        """Request the model's description.

        Returns:
            The description.

        Raises:
            ServerError: The server does not answer, or with something else than a description of the expected kind.
        """

    async def predict(self, request: Request[Any, Any]) -> Answer:
        """Send a request.

        Args:
            request: The request.

        Returns:
            The answer.

        Raises:
            RequestRefused: The server could not answer this request.
            AccessRefused: The server would refuse every request, or another model answered than was described.
            ServerUnreachable: There was no connection, or no response in time.
            ServerError: The response is malformed.
        """
        self.outstanding += 1
        try:
            return await self._answer(request)
        finally:
            self.outstanding -= 1

    @abstractmethod
    async def _answer(self, request: Request[Any, Any]) -> Answer:
        """Send a request, as `predict` does."""

    @abstractmethod
    def _refusal(self, response: RawAnswer) -> RequestRefused | AccessRefused:
        """Make the error for a response that is not of status 200."""

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

    async def _exchange(
        self,
        method: str,
        url: str,
        seconds: float,
        body: Sequence[wire.Segment] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Send a body with the key of the server, and return the answer.

        Raises:
            RequestRefused, AccessRefused: The status is not 200.
            ServerUnreachable: There was no connection, or no response within `seconds`.
        """
        token, sent = await self._token(), dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        upload = _Upload(body)
        try:
            if method == "POST":
                sent["Content-Length"] = str(wire.size_of(body))
            data = upload if method == "POST" else None
            response = await ask(self._session, method, url, data=data, headers=sent, limits=timeout)
            received = time.monotonic()
        except TimeoutError:
            raise ServerUnreachable(f"{self.url}: no connection or no answer in time; is the server running?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error
        if response.status != 200:
            self._refused_token = token
            raise self._refusal(response)
        return Exchange(response, upload.sent - upload.began, received - upload.sent)

    def _json(self, response: RawAnswer) -> Any:
        """Parse an answer. Raises ServerError if it is no JSON."""
        try:
            return parse_json(response.content)
        except ValueError:
            raise ServerError(f"{self.url}: expected JSON, got {response.text[:200]!r}") from None

    def _parsed(self, value: Any, parse: Callable[[], list[Any]]) -> list[Any]:
        """Return what `parse` makes of JSON. Raises ServerError if it is not what such a request is answered with."""
        try:
            return parse()
        except MALFORMED as error:
            raise ServerError(f"answer of {self.url}: {error}, got {reprlib.repr(value)}") from None

    def _another_model(self) -> AccessRefused:
        return AccessRefused(f"{self.url}: another model answers there now, or one with other settings", temporary=True)

    async def _token(self) -> str | None:
        credentials = self._server.credentials
        return await credentials.fresh_token(self._session) if isinstance(credentials, Credentials) else credentials


class _Upload:
    """A request body that is written in small views, and the times at which this began and ended."""

    def __init__(self, body: Sequence[wire.Segment]) -> None:
        self._body = body
        self.began = self.sent = time.monotonic()

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for segment in self._body:
            view = memoryview(segment)
            for begin in range(0, view.nbytes, WRITE_BYTES):
                yield view[begin : begin + WRITE_BYTES]
        self.sent = time.monotonic()


def message_of(error: dict[str, Any]) -> str:
    """Return the message of a refusal. It may be saved for each frame of a request, so it must not be long."""
    message = error.get("message")
    text = printable(message[:MAX_MESSAGE]) if isinstance(message, str) else brief(message)
    return text + ("..." if isinstance(message, str) and len(message) > MAX_MESSAGE else "")
