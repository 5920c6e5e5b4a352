"""One model on several servers: requests go to the server with the least load, and are retried while that can help."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic

import aiohttp
import stamina

from reelscribe import wire
from reelscribe.client.endpoint import QUEUE_FULL, TRANSIENT, WORKER_DIED, Answer, D, Endpoint, Server
from reelscribe.client.in_flight import InFlight
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable, UsageError

OUTAGE_SECONDS = 900.0
"""Default time that a request waits for servers that are gone or busy. A restart with a large model takes minutes."""

PROBE_SECONDS = 0.5
"""Time between requests for the description of a server that is gone."""

MAX_DEATHS = 2
"""A request during which so many workers died is taken for the reason."""

REQUESTS_IN_FLIGHT = 32
"""Default of the highest number of requests in flight. There are fewer where more do not raise throughput."""

_log = logging.getLogger(__name__)


class Balancer(Generic[D]):
    """Shares requests for one model among servers. Servers that fail are left out until they answer again."""

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
        read_description: Callable[[Any], D],
        *,
        requests_in_flight: int,
        request_seconds: float | None,
        outage_seconds: float,
    ) -> None:
        """Open an HTTP session.

        Args:
            servers: The servers; at least one.
            model: Name that the model has on all of them.
            read_description: Parses the model's description; raises ServerError for another kind of model.
            requests_in_flight: Highest number of requests in flight.
            request_seconds: Timeout of a request, see `Endpoint`.
            outage_seconds: How long a request waits for servers that are gone or busy.
        """
        # There is no limit on connections, because each request in flight has a permit.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._endpoints = [
            Endpoint(server, model, self._session, read_description, request_seconds=request_seconds)
            for server in servers
        ]
        self._in_flight = InFlight(requests_in_flight, requests_in_flight)
        self._outage_seconds = outage_seconds
        self._patient = True
        self._recovered = asyncio.Event()
        self._last_death: RequestRefused | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self.description: D | None = None
        """The model as the first server described it; None before `describe`."""

    async def close(self) -> None:
        """Stop probing, and close the HTTP session."""
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        await self._session.close()

    async def describe(self) -> D:
        """Describe the model on all servers as one. See `ModelClient.describe`."""
        results = await asyncio.gather(*map(_describe, self._endpoints), return_exceptions=True)
        outages: list[tuple[Endpoint[D], ServerError]] = []
        for endpoint, result in zip(self._endpoints, results, strict=True):
            if isinstance(result, ServerError):
                outages.append((endpoint, result))
            elif isinstance(result, BaseException):
                raise result
        descriptions = [endpoint.description for endpoint in self._endpoints if endpoint.description]
        if not descriptions:
            raise outages[0][1]
        _check_same_model(descriptions)
        self.description = descriptions[0]
        for endpoint, outage in outages:
            self._leave_out(endpoint, outage)
        described = type(descriptions[0]).of_all(descriptions)
        # To begin with, each worker computes one request while another one waits.
        self._in_flight.start(2 * described.workers)
        return described

    @property
    def waiting_for(self) -> str | None:
        """Why nothing is answered: no server can be used, or workers died and nothing was answered since.

        None if all is well.
        """
        outages = [endpoint.outage for endpoint in self._endpoints]
        if all(outages):
            return str(outages[0])
        return f"a worker died, and there was no answer since ({self._last_death})" if self._last_death else None

    def stop_waiting(self) -> None:
        """Give up requests that wait for a server or a permit. See `ModelClient.stop_waiting`."""
        self._patient = False
        self._in_flight.stop_waiting()
        self._recovered.set()

    async def send(self, body: list[wire.Segment], items: int) -> Answer:
        """Send a request when it has a permit, which covers its retries.

        Args:
            body: The packed request.
            items: Number of frames or chunks in it.

        Raises:
            RequestRefused: No server could answer the request. It is `deadly` if workers died of it.
            ServerError: No server can be used, or the response is not JSON.
        """
        async with self._in_flight:
            answer = await self._send_with_retries(body)
            self._in_flight.answered(items)
            return answer

    async def _send_with_retries(self, body: list[wire.Segment]) -> Answer:
        deaths = 0
        refused_by: Endpoint[D] | None = None
        async for attempt in stamina.retry_context(
            on=self._may_succeed_later, attempts=None, timeout=self._outage_seconds, wait_initial=0.1, wait_max=5.0
        ):
            with attempt:
                endpoint = await self._least_loaded(refused_by)
                try:
                    answer = await endpoint.predict(body)
                except RequestRefused as refusal:
                    refused_by = endpoint
                    if refusal.status == QUEUE_FULL:
                        self._in_flight.refused()
                    if refusal.status in WORKER_DIED and not refusal.final:
                        deaths += 1
                        self._last_death = refusal
                    refusal.deadly = deaths >= MAX_DEATHS
                    raise
                except AccessRefused as refusal:
                    if refusal.passes and not endpoint.key_has_changed():
                        self._leave_out(endpoint, refusal)
                    raise
                except ServerUnreachable as outage:
                    self._leave_out(endpoint, outage)
                    raise
        self._last_death = None
        return answer

    def _may_succeed_later(self, error: Exception) -> bool:
        if isinstance(error, RequestRefused):
            return error.status in TRANSIENT and not error.final and not error.deadly
        if isinstance(error, AccessRefused):
            return error.passes and self._patient
        return isinstance(error, ServerUnreachable) and self._patient

    async def _least_loaded(self, refused_by: Endpoint[D] | None) -> Endpoint[D]:
        """Wait for usable endpoints, and choose the one with the fewest requests for its workers.

        If there are others, it is not `refused_by`: a server that refuses requests at once always has the fewest.
        """
        while not (usable := [endpoint for endpoint in self._endpoints if endpoint.outage is None]):
            if not self._patient:
                raise ServerUnreachable(f"no server can be used: {self.waiting_for}")
            self._recovered.clear()
            try:
                await asyncio.wait_for(self._recovered.wait(), self._outage_seconds)
            except TimeoutError:
                raise ServerUnreachable(
                    f"no server could be used for {self._outage_seconds:.0f} s: {self._endpoints[0].outage}"
                ) from None
        return min(usable, key=lambda endpoint: (endpoint is refused_by, endpoint.outstanding / endpoint.workers))

    def _leave_out(self, endpoint: Endpoint[D], outage: ServerError) -> None:
        """Use only the other endpoints until this one answers again."""
        if endpoint.outage is None:
            endpoint.outage = outage
            _log.warning("waiting for a server: %s", outage)
            probe = asyncio.create_task(self._probe(endpoint))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint[D]) -> None:
        """Request the description until the endpoint serves the model again, then let it be used."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            endpoint.key_has_changed()
            try:
                description = await endpoint.describe()
            except ServerError as outage:
                endpoint.outage = outage
                continue
            if self.description is None or description.identity == self.description.identity:
                break
            endpoint.outage = ServerError(f"{endpoint.url}: it serves another model now, {description.name}")
        endpoint.outage = None
        _log.info("%s answers again", endpoint.url)
        self._recovered.set()


async def _describe(endpoint: Endpoint[Any]) -> None:
    """Request a description, and retry while the server is busy."""
    async for attempt in stamina.retry_context(on=_is_transient, attempts=8, timeout=None, wait_initial=0.2):
        with attempt:
            await endpoint.describe()


def _is_transient(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and error.status in TRANSIENT and not error.final


def _check_same_model(descriptions: Sequence[D]) -> None:
    """Raise UsageError unless all descriptions are of models that give the same answers."""
    first, *others = descriptions
    for other in others:
        if other.identity != first.identity:
            raise UsageError(
                f"servers: expected the same model on all, got {first.name} {first.revision}"
                f" and {other.name} {other.revision}, or other settings of it"
            )
