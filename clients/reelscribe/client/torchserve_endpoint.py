"""One model on one TorchServe, over its inference API. Handlers of reelscribe answer several items in a request."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import aiohttp

from reelscribe import wire
from reelscribe.client.endpoint import Answer, Description, Endpoint, Exchange, Server, message_of
from reelscribe.client.http_session import HTTPS_ONLY, REDIRECTS, RawAnswer, parse_json
from reelscribe.client.operations import Request
from reelscribe.contract import shared_memory
from reelscribe.errors import AccessRefused, MemoryNotShared, RequestRefused, brief, printable

_log = logging.getLogger(__name__)

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

TRANSIENT = frozenset({500, OUT_OF_MEMORY, 502, QUEUE_FULL, 504})
"""Statuses of requests that may succeed later: the worker died, the queue was full, or a proxy got no answer."""


_BYTES = "application/octet-stream"

_FAILED = "InternalServerException"
"""Type that TorchServe gives to errors of workers and of itself, but not to a full queue."""


class TorchServeEndpoint(Endpoint[Description]):
    """One model on one TorchServe."""

    def __init__(
        self,
        server: Server,
        model: str,
        session: aiohttp.ClientSession,
        read_description: Callable[[Any], Description],
        *,
        request_seconds: float | None = None,
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
        super().__init__(server, model, session)
        self._read_description = read_description
        self._request_seconds = request_seconds
        self._reads_memory = True

    @property
    def url(self) -> str:
        """The address of the model."""
        return f"{self._server.address}/predictions/{self._model}"

    async def describe(self) -> Description:
        """Request the model's description; see `Endpoint.describe`."""
        exchange = await self._post([], {"describe": "True"}, DESCRIBE_SECONDS)
        self.description = self._read_description(self._json(exchange.response))
        return self.description

    async def _answer(self, request: Request[Any, Any]) -> Answer:
        seconds = self._request_seconds
        if seconds is None:
            seconds = QUEUE_SECONDS + (self.description.response_seconds if self.description else 0)
        exchange = await self._post_or_refer(request.body, seconds)
        value, headers = self._json(exchange.response), exchange.response.headers
        answers = self._parsed(value, lambda: request.operation.parse(value, len(request.items)))
        identity = headers.get(wire.IDENTITY_HEADER)
        if self.description and identity and identity != self.description.identity:
            # The server was restarted, or its default version changed. No file must get the words of two models.
            raise self._another_model()
        if worker := headers.get(wire.WORKER_HEADER):
            self._answered.add(worker)
        compute, call_items = (_number(headers.get(name)) for name in (wire.COMPUTE_SECONDS_HEADER, wire.ITEMS_HEADER))
        queue = max(0.0, exchange.waited_seconds - compute)
        network, items = exchange.network_seconds, len(request.items)
        return Answer(answers, self.url, network, queue, compute, items=items, call_items=int(call_items))

    async def _post_or_refer(self, body: list[wire.Segment], seconds: float) -> Exchange:
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

    async def _post(self, body: list[wire.Segment], headers: dict[str, str], seconds: float) -> Exchange:
        """Send a request, and raise the error for an answer that is not of status 200."""
        return await self._exchange("POST", self.url, seconds, body, {"Content-Type": _BYTES, **headers})

    def _refusal(self, response: RawAnswer) -> RequestRefused | AccessRefused:
        """Make the error for a response of our handler, or of TorchServe itself, that is not 200."""
        status, text = response.status, response.text
        try:
            value = parse_json(text)
        except ValueError:
            value = {}
        value = value if isinstance(value, dict) else {}
        error = value.get("error")
        if isinstance(error, dict):  # our handler would refuse it again, unless its call was full or it failed at it
            return RequestRefused(status, message_of(error), permanent=status not in TRANSIENT)
        message = message_of(value) if "message" in value else printable(" ".join(text[:2000].split())[:200])
        if status in TRANSIENT:
            # A call that failed has the status of a full queue, too.
            is_busy = status == QUEUE_FULL and value.get("type") != _FAILED
            return RequestRefused(status, message, is_busy=is_busy)
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


def _number(header: str | None) -> float:
    """Parse a header. Return 0 if it is missing or no amount, because the value is only used for statistics."""
    try:
        number = float(header or 0)
    except ValueError:
        return 0.0
    return number if 0 <= number < math.inf else 0.0
