"""One try at TorchServe's own APIs: a request and its answer, or one of our exceptions that says what to do."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from reelscribe.client.credentials import Credentials
from reelscribe.client.trust import HTTPS_ONLY, unreachable
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
"""That an answer may take which needs no model."""

_REFUSALS: dict[int, tuple[type[ReelscribeError], str]] = {
    400: (UsageError, "check the names and numbers of the command"),
    403: (ModelConflict, "make another version the default first, or unregister the others"),
    405: (ModelApiOff, "it was started without: `reelscribe server restart --model-api`"),
    408: (ServerError, "it was still ending workers; try again"),
    409: (ModelConflict, "unregister that version, or give the archive another one"),
    503: (ServerError, "no worker takes it; `reelscribe models describe` says how they are"),
    507: (ServerOutOfMemory, "unregister or scale down what is not needed"),
}

_NOT_FOUND: dict[str, tuple[type[ReelscribeError], str]] = {
    "ModelNotFoundException": (UnknownModel, "`reelscribe models list` says what is registered"),
    "ModelVersionNotFoundException": (UnknownModel, "`reelscribe models list` says which versions there are"),
    "ResourceNotFoundException": (ServerError, "is that the management address?"),
}
"""By TorchServe's word for what it did not find."""
_NO_ARCHIVE = (UnknownModel, "expected the file name of an archive in the server's model store, not a path")


@dataclass(frozen=True)
class Answer:
    """Any answer of a server."""

    status: int
    text: str

    @property
    def told(self) -> tuple[str, str]:
        """Kind and message of TorchServe's refusals."""
        try:
            told = json.loads(self.text)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            return "", " ".join(self.text.split())[:200]
        return str(told.get("type", "")), str(told.get("message", told))

    @property
    def key_refused(self) -> bool:
        """Whether it was the key: TorchServe says so with the status of a bad request."""
        return self.status == 400 and self.told[0] == "InvalidKeyException"


class Api:
    """One address of a server, and the key to it. `close` it in the end."""

    def __init__(
        self, url: str, credentials: Credentials | str | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """`ssl_context` says which certificates are trusted; by default those that the system trusts."""
        self.url = url.rstrip("/")
        self._credentials = credentials
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl_context or True))

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def json(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> Any:
        """What it answers, as plain values."""
        text = await self.text(method, path, seconds=seconds)
        try:
            return json.loads(text)
        except ValueError:
            raise ServerError(f"{self.url}{path}: expected JSON, got {text[:200]!r}; is it a TorchServe?") from None

    async def text(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> str:
        """What it answers. `path` is encoded. Raises ServerError or UsageError."""
        answer = await self.answer(method, path, seconds=seconds)
        self.check(path, answer)
        return answer.text

    async def answer(self, method: str, path: str, *, seconds: float = ANSWER_SECONDS) -> Answer:
        """Whatever it answers; a key that is refused is read again from its file, and tried once more if it is new."""
        token = await self._token()
        answer = await self._once(method, path, token, seconds)
        if answer.key_refused and isinstance(self._credentials, Credentials) and self._credentials.differs_from(token):
            answer = await self._once(method, path, await self._token(), seconds)
        return answer

    async def _once(self, method: str, path: str, token: str | None, seconds: float) -> Answer:
        # TorchServe redirects nobody, and whoever does must not get the key.
        try:
            async with self._session.request(
                method,
                URL(f"{self.url}{path}", encoded=True),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=10),
                allow_redirects=False,
            ) as response:
                return Answer(response.status, await response.text(errors="replace"))
        except TimeoutError:  # on Python 3.10 another class than the builtin
            raise ServerUnreachable(
                f"{self.url}{path}: no answer within {seconds:.0f} s; is the server running, or very busy?"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self.url, error) from error

    async def _token(self) -> str | None:
        if isinstance(self._credentials, Credentials):
            return await self._credentials.fresh_token(self._session)
        return self._credentials

    def check(self, path: str, answer: Answer) -> None:
        """Raises ServerError or UsageError if it is a refusal."""
        if 200 <= answer.status < 300:
            return
        message = f"{self.url}{path}: status {answer.status}: {answer.told[1]}"
        if answer.key_refused:
            advice = (
                "keys expire, and a restart makes new ones: give the server's present --key-file"
                if self._credentials
                else "no key was given: name the server's --key-file"
            )
            raise AccessRefused(f"{message}; {advice}", passes=True)
        kind, advice = _refusal(path, answer)
        raise kind(f"{message}; {advice}")


def _refusal(path: str, answer: Answer) -> tuple[type[ReelscribeError], str]:
    """What it means, and what to do."""
    unknown = ServerError, "is it a TorchServe?"
    if HTTPS_ONLY in answer.text:
        return ServerError, "write https://"
    if answer.status == 404:
        found = _NOT_FOUND.get(answer.told[0], unknown)
        return _NO_ARCHIVE if found[0] is UnknownModel and path.startswith("/models?url=") else found
    if answer.status == 500:
        return ServerError, "see the server's log"
    return _REFUSALS.get(answer.status, unknown)
