"""Requests to TorchServe's own APIs. A refusal becomes an exception whose message says what to do."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from reelscribe._web_addresses import checked_server_address
from reelscribe.client.credentials import Credentials
from reelscribe.client.http_session import HTTPS_ONLY, ask, open_session, parse_json, unreachable
from reelscribe.errors import (
    AccessRefused,
    ModelApiOff,
    ModelConflict,
    ReelscribeError,
    ServerError,
    ServerOutOfMemory,
    ServerUnreachable,
    UnknownModel,
    UsageError,
)

ANSWER_SECONDS = 10.0
"""Timeout in seconds of a request that needs no model."""

Refusal = tuple[type[ReelscribeError], str]
"""The exception that a refusal is raised as, and advice for its message."""

_REFUSALS: dict[int, Refusal] = {
    400: (UsageError, "check the names and numbers of the command"),
    403: (ModelConflict, "make another version the default first, or unregister the others"),
    405: (ModelApiOff, "the model API is off; `reelscribe server restart --model-api` turns it on"),
    408: (ServerError, "the server was still ending workers; try again"),
    409: (ModelConflict, "unregister that version, or give the archive another one"),
    500: (ServerError, "see the server's log"),
    503: (ServerError, "no worker accepts the request; `reelscribe models describe` shows the state of its workers"),
    507: (ServerOutOfMemory, "unregister or scale down what is not needed"),
}
"""Refusals by HTTP status."""
_NOT_FOUND: dict[str, Refusal] = {
    "ModelNotFoundException": (UnknownModel, "`reelscribe models list` shows what is registered"),
    "ModelVersionNotFoundException": (UnknownModel, "`reelscribe models list` shows which versions there are"),
    "ResourceNotFoundException": (ServerError, "is that the management address?"),
}
"""Refusals with HTTP status 404, by the type of TorchServe's exception."""
_NO_ARCHIVE: Refusal = (UnknownModel, "expected the file name of an archive in the server's model store, not a path")
_UNEXPECTED: Refusal = (ServerError, "is it a TorchServe?")


@dataclass(frozen=True)
class Answer:
    """The answer to a request, whatever its status."""

    status: int
    """HTTP status."""
    text: str
    """The body."""

    @property
    def error(self) -> tuple[str, str]:
        """Type and message of the exception in the body; for any other body, an empty type and the body's beginning."""
        try:
            error = parse_json(self.text)
        except ValueError:
            error = None
        if not isinstance(error, dict):
            return "", " ".join(self.text.split())[:200]
        return str(error.get("type", ""))[:200], str(error.get("message", error))[:1000]

    @property
    def token_refused(self) -> bool:
        """Return `True` if the token was refused, which TorchServe answers with status 400."""
        return self.status == 400 and self.error[0] == "InvalidKeyException"


@dataclass(frozen=True)
class ServerAddresses:
    """The addresses of one server's APIs.

    Raises:
        UsageError: An address is none of a web server, or has a name and password.
    """

    management: str
    """Address of the management API, such as http://127.0.0.1:8081."""
    inference: str | None = None
    """Address of the inference API, for `ping`; None if it is not needed."""
    metrics: str | None = None
    """Address of the metrics API, for `metrics`; None if it is not needed."""

    def __post_init__(self) -> None:
        for url in (self.management, self.inference, self.metrics):
            if url is not None:
                checked_server_address(url)


class Api:
    """One API of a server: its address and the token for it. Call `close` at the end."""

    def __init__(
        self, url: str, credentials: Credentials | str | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Prepare a session; nothing is sent yet.

        Args:
            url: Address of the API, such as http://127.0.0.1:8081.
            credentials: The token, or where to get it; None for an API that requires none.
            ssl_context: The certificates that are trusted; by default those of the system.
        """
        self.url = checked_server_address(url)
        self._credentials = credentials
        self._session = open_session(aiohttp.TCPConnector(ssl=ssl_context or True))

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def json(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> Any:
        """Send a request and parse the JSON of its answer. The arguments and exceptions are those of `text`."""
        text = await self.text(method, path, seconds=seconds)
        try:
            return parse_json(text)
        except ValueError:
            raise ServerError(f"{self.url}{path}: expected JSON, got {text[:200]!r}; is it a TorchServe?") from None

    async def text(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> str:
        """Send a request and return the body of its answer.

        Args:
            method: HTTP method.
            path: Path and query, already encoded.
            seconds: Timeout of the whole request.

        Raises:
            ServerError: The server does not answer, or refuses the request.
            UsageError: The server answers that the request is malformed (HTTP status 400).
        """
        answer = await self.answer(method, path, seconds=seconds)
        self.check(path, answer)
        return answer.text

    async def answer(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> Answer:
        """Send a request and return its answer, even if it is a refusal. The arguments are those of `text`.

        If the token is refused and the key file holds a new one by now, the request is sent again with the new token.

        Raises:
            ServerUnreachable: The server does not answer.
        """
        token = await self._token()
        answer = await self._send(method, path, token, seconds)
        if (
            answer.token_refused
            and isinstance(self._credentials, Credentials)
            and self._credentials.reload_after_refusal(token)
        ):
            answer = await self._send(method, path, await self._token(), seconds)
        return answer

    def check(self, path: str, answer: Answer) -> None:
        """Raise ServerError or UsageError if an answer is a refusal."""
        if 200 <= answer.status < 300:
            return
        message = f"{self.url}{path}: status {answer.status}: {answer.error[1]}"
        if answer.token_refused:
            advice = (
                "keys expire, and a restart makes new ones: give the server's present --key-file"
                if self._credentials
                else "no key was given: give the server's --key-file"
            )
            raise AccessRefused(f"{message}; {advice}", temporary=True)
        kind, advice = _refusal(path, answer)
        raise kind(f"{message}; {advice}")

    async def _send(self, method: str, path: str, token: str | None, seconds: float) -> Answer:
        try:
            answer = await ask(
                self._session,
                method,
                URL(f"{self.url}{path}", encoded=True),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                limits=aiohttp.ClientTimeout(total=seconds, sock_connect=10),
            )
            return Answer(answer.status, answer.text)
        except TimeoutError:
            raise ServerUnreachable(
                f"{self.url}{path}: no answer within {seconds:.0f} s; is the server running, or very busy?"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error

    async def _token(self) -> str | None:
        if isinstance(self._credentials, Credentials):
            return await self._credentials.fresh_token(self._session)
        return self._credentials


def _refusal(path: str, answer: Answer) -> Refusal:
    if HTTPS_ONLY in answer.text:
        return ServerError, "write https://"
    if answer.status != 404:
        return _REFUSALS.get(answer.status, _UNEXPECTED)
    found = _NOT_FOUND.get(answer.error[0], _UNEXPECTED)
    return _NO_ARCHIVE if found[0] is UnknownModel and path.startswith("/models?url=") else found
