"""The inference API of one server: describe the model, ask it. One try each; `model_client` tries again."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import aiohttp

from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.trust import HTTPS_ONLY, check_trusted_certificates, unreachable
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable

WRITE_BYTES = 256 * 1024
"""A body is handed to the socket in views of this size: one large write would be buffered whole."""

QUEUE_SECONDS = 600.0
"""That a request may wait at the server before it computes. Our own limit on requests in flight keeps the wait to a
few answers; other clients may add to it.
"""

DESCRIBE_SECONDS = 120.0
"""Describing a model waits in the same queue."""


WORTH_ANOTHER_TRY = {500, 502, 503, 504, 507}
"""The worker died, the queue was full, memory ran out, or something between did not answer: all may pass."""


Self = TypeVar("Self", bound="Description")  # typing has its own since Python 3.11


class Description(Protocol):
    """What a model says of itself, whatever kind of model it is."""

    @property
    def name(self) -> str:
        """Hub name or directory of the weights."""

    @property
    def revision(self) -> str:
        """Commit of the hub, or a digest of the weights' own bytes."""

    @property
    def workers(self) -> int:
        """That the model was given when it was loaded."""

    @property
    def response_seconds(self) -> float:
        """That one request may compute before its worker is replaced."""

    @property
    def identity(self) -> str:
        """The same for models that would answer the same."""

    @classmethod
    def of_all(cls: type[Self], servers: Sequence[Self]) -> Self:
        """The same model on several servers."""


D = TypeVar("D", bound=Description)


@dataclass(frozen=True)
class Answer:
    """What came back for a request, and where the time went."""

    value: Any
    network_seconds: float
    """Until the request was sent."""
    queue_seconds: float
    """Until the answer came, without the time that the handler worked on it."""
    compute_seconds: float


@dataclass(frozen=True)
class Server:
    """Where a server is, and the key to it.

    Raises UsageError for https where the environment names certificates that are not there.
    """

    url: str
    """Its inference address, like http://127.0.0.1:8080."""
    credentials: Credentials | str | None = field(default=None, repr=False)
    """Its key file, or the inference key itself."""

    def __post_init__(self) -> None:
        check_trusted_certificates(self.url)


class Endpoint(Generic[D]):
    """One model of one server."""

    def __init__(
        self,
        server: Server,
        model: str,
        session: aiohttp.ClientSession,
        read_description: Callable[[Any], D],
        *,
        request_seconds: float | None,
    ) -> None:
        """`request_seconds` bounds a request; by default it is the server's own bound and some waiting."""
        self.url = f"{server.url.rstrip('/')}/predictions/{model}"
        self.outstanding = 0
        self.trouble: ServerError | None = None
        """Why it is not to be used at the moment."""
        self.description: D | None = None
        self._model = model
        self._read_description = read_description
        self._session = session
        self._credentials = server.credentials
        self._refused_token: str | None = None
        self._request_seconds = request_seconds

    @property
    def workers(self) -> int:
        """As many as it said it has."""
        return max(1, self.description.workers) if self.description else 1

    async def describe(self) -> D:
        """What the model is and what it wants. Raises ServerError."""
        answer, _ = await self._post([], {"describe": "True"}, DESCRIBE_SECONDS)
        self.description = self._read_description(answer.value)
        return self.description

    async def ask(self, body: list[wire.Segment]) -> Answer:
        """The answer to a packed request. Raises ServerError, also if it is another model that gave it."""
        seconds = self._request_seconds
        if seconds is None:
            seconds = QUEUE_SECONDS + (self.description.response_seconds if self.description else 0)
        self.outstanding += 1
        try:
            answer, identity = await self._post(body, {}, seconds)
        finally:
            self.outstanding -= 1
        if self.description and identity and identity != self.description.identity:
            # A server was restarted, or a version updated: one file must not get the words of two models.
            raise AccessRefused(f"{self.url}: another model answers there now, or one with other settings", passes=True)
        return answer

    def key_has_changed(self) -> bool:
        """Whether there is another key to try than the one that was refused last."""
        return isinstance(self._credentials, Credentials) and self._credentials.differs_from(self._refused_token)

    async def _post(
        self, body: list[wire.Segment], headers: dict[str, str], seconds: float
    ) -> tuple[Answer, str | None]:
        """The answer, and the identity of the model that gave it, if it said that."""
        size = wire.size_of(body)
        headers = {**headers, "Content-Type": "application/octet-stream", "Content-Length": str(size)}
        if token := await self._token():
            headers["Authorization"] = f"Bearer {token}"
        began = time.monotonic()
        sent = [began]
        # A request may wait in the server's queue; the server bounds what it computes (responseTimeout).
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=10)
        try:
            async with self._session.post(
                self.url, data=_pieces(body, sent), headers=headers, timeout=timeout
            ) as response:
                text = await response.text(errors="replace")
                if response.status != 200:
                    self._refused_token = token
                    raise self._refusal(response.status, text)
                compute = _seconds(response.headers.get(wire.COMPUTE_SECONDS_HEADER))
                waited = time.monotonic() - sent[-1]
                answer = Answer(json.loads(text), sent[-1] - began, max(0.0, waited - compute), compute)
                return answer, response.headers.get(wire.IDENTITY_HEADER)
        except TimeoutError:  # on Python 3.10 another class than the builtin
            raise ServerUnreachable(f"{self.url}: no connection or no answer in time; is the server running?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error
        except json.JSONDecodeError:
            raise ServerError(f"{self.url}: expected JSON, got {text[:200]!r}") from None

    async def _token(self) -> str | None:
        if isinstance(self._credentials, Credentials):
            return await self._credentials.fresh_token(self._session)
        return self._credentials

    def _refusal(self, status: int, text: str) -> ServerError:
        """What went wrong, from our handler's answer or TorchServe's own."""
        try:
            answer = json.loads(text)
        except json.JSONDecodeError:
            answer = {}
        answer = answer if isinstance(answer, dict) else {}
        error = answer.get("error")
        if isinstance(error, dict):  # our handler's word: the same again, unless it was too busy or had no memory
            return RequestRefused(status, str(error.get("message")), final=status not in (503, 507))
        message = str(answer.get("message", " ".join(text.split())[:200]))
        if status in WORTH_ANOTHER_TRY:
            return RequestRefused(status, message)
        advice = {
            400: "give the server's --key-file; keys expire, and a restart makes new ones"
            if self._credentials
            else "no token was given; name the server's key file with --key-file",
            403: "write https://" if HTTPS_ONLY in text else "is it a TorchServe?",
            404: f"is the model {self._model!r} built and loaded?",
            413: "the request is larger than max_request_size in the server's config.properties",
        }
        return AccessRefused(
            f"{self.url}: status {status}: {message}; {advice.get(status, 'is it a TorchServe?')}",
            passes=status in (400, 404),
        )


def _seconds(header: str | None) -> float:
    """Zero where there is no such header, or something else in it: nothing depends on it but what is told."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0


async def _pieces(body: list[wire.Segment], sent: list[float]) -> AsyncIterator[memoryview]:
    for segment in body:
        view = memoryview(segment)
        for at in range(0, view.nbytes, WRITE_BYTES):
            yield view[at : at + WRITE_BYTES]
    sent.append(time.monotonic())
