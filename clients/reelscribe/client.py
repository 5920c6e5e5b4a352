"""The inference API of a reelscribe server: describe the model, caption frames."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import aiohttp
import stamina

from reelscribe import wire
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable, UsageError
from reelscribe.media import FrameArray, ModelDescription

WRITE_BYTES = 256 * 1024
"""A body is handed to the socket in views of this size: one large write would be buffered whole."""

ATTEMPTS = 8
"""Of one request, within about 20 seconds: as long as a busy server takes to make room, or a small one to restart."""

WORTH_ANOTHER_TRY = {500, 502, 503, 504, 507}
"""The worker died, the queue was full, memory ran out, or something between did not answer: all may pass."""

REQUEST_SECONDS = 3600.0
"""From sending to the answer: longer than any queue that moves, for a server out of memory may forget a request."""

MOST_DEATHS = 2
"""A request that was being worked on when so many workers died is taken for the reason."""


class CaptionClient:
    """One model of one server, over one session. Use it as an async context manager."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        token: str | None = None,
        connections: int = 4,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """`url` is the inference address, like http://127.0.0.1:8080; `token` the inference key of its key file.

        At most `connections` requests are sent at once, and each is sent again if it has no answer after
        `request_seconds`.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"server: expected an address like http://127.0.0.1:8080, got {url!r}")
        self._url = f"{url.rstrip('/')}/predictions/{model}"
        self._model = model
        self._has_token = token is not None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=connections),
            # A request may wait long in the server's queue; the server bounds what it computes (responseTimeout).
            timeout=aiohttp.ClientTimeout(total=request_seconds, sock_connect=10),
        )

    async def __aenter__(self) -> CaptionClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def describe(self) -> ModelDescription:
        """What the model is and how it wants its frames. Raises ServerError, at once: who starts a run is waiting."""
        return ModelDescription.from_json(await self._post([], {"describe": "True"}))

    async def caption(self, frames: FrameArray) -> list[str]:
        """One caption for each of (N, H, W, 3) uint8 RGB frames. Raises ServerError.

        The frames must not change until this returns.
        """
        body, deaths = wire.pack({"frames": frames}), 0
        async for attempt in stamina.retry_context(
            on=_worth_another_try, attempts=ATTEMPTS, timeout=None, wait_initial=0.2, wait_max=5.0
        ):
            with attempt:
                try:
                    captions = await self._post(body, {})
                except RequestRefused as error:
                    deaths += error.status == 500
                    error.final = error.final or deaths >= MOST_DEATHS
                    raise
        if not isinstance(captions, list) or len(captions) != len(frames):
            raise ServerError(f"captions: expected a list of {len(frames)} from {self._url}, got {str(captions)[:200]}")
        return captions

    async def _post(self, body: list[wire.Segment], headers: dict[str, str]) -> Any:
        headers = {
            **headers,
            "Content-Type": "application/octet-stream",
            "Content-Length": str(wire.size_of(body)),
        }
        try:
            async with self._session.post(self._url, data=_pieces(body), headers=headers) as response:
                text = await response.text(errors="replace")
                if response.status != 200:
                    raise self._refusal(response.status, text)
                return json.loads(text)
        except asyncio.TimeoutError:  # on Python 3.10 another class than the builtin
            raise ServerUnreachable(
                f"{self._url}: no connection or no answer in time; is the server running?"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(f"{self._url}: {error or type(error).__name__}; is the server running?") from error
        except json.JSONDecodeError:
            raise ServerError(f"{self._url}: expected JSON, got {text[:200]!r}") from None

    def _refusal(self, status: int, text: str) -> ServerError:
        """What went wrong, from our handler's answer or TorchServe's own."""
        try:
            answer = json.loads(text)
        except json.JSONDecodeError:
            answer = {}
        answer = answer if isinstance(answer, dict) else {}
        error = answer.get("error")
        if isinstance(error, dict):  # our handler's word, which would be the same again, unless it was too busy
            return RequestRefused(status, str(error.get("message")), final=status != 503)
        message = str(answer.get("message", text[:200]))
        if status >= 500:
            return RequestRefused(status, message)
        advice = {
            400: "give the server's --key-file; keys expire, and a restart makes new ones"
            if self._has_token
            else "no token was given; name the server's key file with --key-file",
            404: f"is the model {self._model!r} built and loaded?",
            413: "the request is larger than max_request_size in the server's config.properties",
        }
        return AccessRefused(f"{self._url}: status {status}: {message}; {advice.get(status, 'is it a TorchServe?')}")


def _worth_another_try(error: Exception) -> bool:
    if isinstance(error, RequestRefused):
        return error.status in WORTH_ANOTHER_TRY and not error.final
    return isinstance(error, ServerUnreachable)


async def _pieces(body: list[wire.Segment]) -> AsyncIterator[memoryview]:
    for segment in body:
        view = memoryview(segment)
        for at in range(0, view.nbytes, WRITE_BYTES):
            yield view[at : at + WRITE_BYTES]
