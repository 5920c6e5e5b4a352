"""Balance requests for one model over several servers, and retry those that may succeed later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic

import aiohttp
import stamina

from reelscribe._tasks import cancel_all
from reelscribe.client.endpoint import WORKER_DIED, Answer, Description, Endpoint, Server
from reelscribe.client.http_session import open_session
from reelscribe.client.in_flight import InFlight, Permit
from reelscribe.client.openai_endpoint import OpenAIEndpoint
from reelscribe.client.operations import Request
from reelscribe.client.torchserve_endpoint import TorchServeEndpoint
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable, UsageError, printable

OUTAGE_SECONDS = 900.0
"""Default time, in seconds, for which a request waits for servers that are gone or busy. A restart with a large model
takes minutes."""

PROBE_SECONDS = 0.5
"""Interval, in seconds, of requests for the description to a server that is gone."""

MAX_DEATHS = 2
"""Number of workers that must die during the same request before it counts as the cause."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outage:
    """Why requests wait, since when, and until when they do."""

    reason: str
    """The error of the first server, or of the request whose worker died."""
    since: float
    """Time at which the outage began, in seconds since the epoch."""
    until: float
    """Time at which requests are given up, in seconds since the epoch."""


class Balancer(Generic[Description]):
    """Sends each request to the least loaded server, and none to a failed server until it answers again."""

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
        description_type: type[Description],
        *,
        requests_in_flight: int | None,
        request_seconds: float | None,
        outage_seconds: float,
    ) -> None:
        """Open an HTTP session.

        Args:
            servers: The servers; at least one.
            model: Name that the model has on all of them.
            description_type: The description of this kind of model.
            requests_in_flight: Highest limit on the number of requests in flight; None for what the servers take.
            request_seconds: Timeout of a request in seconds, or None; see `Endpoint`.
            outage_seconds: Time for which a request waits for servers that are gone or busy, in seconds.
        """
        # Connections have no limit of their own, because requests in flight have one.
        self._session = open_session(aiohttp.TCPConnector(limit=0))
        self._endpoints = [
            endpoint_of(server, model, self._session, description_type, request_seconds=request_seconds)
            for server in servers
        ]
        self.memories: list[SharedMemory] = []
        """Memory in which arrays of requests may lie."""
        for endpoint in self._endpoints:
            endpoint.memories = self.memories
        self._in_flight = InFlight(requests_in_flight)
        self._outage_seconds = outage_seconds
        self._waits_for_servers = True
        self._recovered = asyncio.Event()
        self._last_death: RequestRefused | None = None
        self._outage_began = 0.0
        """Time at which the last server went, or the last worker died, in seconds since the epoch."""
        self.retries = 0
        """Number of requests that were sent again."""
        self._probes: set[asyncio.Task[None]] = set()
        self.description: Description | None = None
        """The model as the first server described it; None before `describe`."""
        self._request_items = 1
        """Number of items of most requests; after `describe`, that of a full one, if nobody says another."""

    async def close(self) -> None:
        """Stop probing, and close the HTTP session."""
        await cancel_all(self._probes)
        await self._session.close()

    async def describe(self) -> Description:
        """Return the merged description of the model on all servers. See `ModelClient.describe`."""
        results = await asyncio.gather(*map(_describe, self._endpoints), return_exceptions=True)
        outages: list[tuple[Endpoint[Description], ServerError]] = []
        for endpoint, result in zip(self._endpoints, results, strict=True):
            if isinstance(result, ServerError):
                outages.append((endpoint, result))
            elif isinstance(result, BaseException):
                raise result
        if not (descriptions := self.descriptions):
            raise outages[0][1]
        _check_same_model(descriptions)
        merged = type(descriptions[0]).merge(descriptions)
        if self.description is None:
            self._request_items = merged.most_items
        self.description = descriptions[0]
        for endpoint, outage in outages:
            self._leave_out(endpoint, outage)
        self._follow_workers()
        return merged

    def expect_requests(self, items: int) -> None:
        """Set the number of items of most requests: the smaller they are, the more of them servers take."""
        self._request_items = items
        self._follow_workers()

    @property
    def workers(self) -> int:
        """Number of workers that serve the model now, on all servers that can be used; 0 if there is none."""
        return sum(endpoint.workers for endpoint in self._endpoints if not endpoint.outage)

    def _follow_workers(self) -> None:
        """Let the limit on the number of requests in flight follow what the workers of each server take."""
        items = self._request_items
        usable = [(each.description, each.workers) for each in self._endpoints if each.description and not each.outage]
        if usable:
            self._in_flight.set_taken(
                sum(description.requests_for_each_worker(items) * workers for description, workers in usable),
                sum(description.most_requests_for_each_worker(items) * workers for description, workers in usable),
            )

    @property
    def descriptions(self) -> list[Description]:
        """The description of the model on each server that has sent one."""
        return [endpoint.description for endpoint in self._endpoints if endpoint.description]

    @property
    def waiting_for(self) -> str | None:
        """Why requests may be waiting: no server can be used, or a worker died and no request was answered since.

        None in normal operation.
        """
        outages = [endpoint.outage for endpoint in self._endpoints]
        if all(outages):
            return str(outages[0])
        return f"a worker died, and there was no answer since ({self._last_death})" if self._last_death else None

    @property
    def in_flight(self) -> InFlight:
        """The permits for requests, of which `send` takes one for each request that comes without."""
        return self._in_flight

    @property
    def outage(self) -> Outage | None:
        """The outage because of which requests may be waiting; None in normal operation."""
        if not (reason := self.waiting_for):
            return None
        return Outage(reason, self._outage_began, self._outage_began + self._outage_seconds)

    def stop_waiting(self, *, for_permits: bool = True) -> None:
        """Give up requests that wait for a server or a permit. See `ModelClient.stop_waiting`."""
        self._waits_for_servers = False
        if for_permits:
            self._in_flight.stop_waiting()
        self._recovered.set()

    async def send(self, request: Request[Any, Any], permit: Permit | None = None) -> Answer:
        """Send a request, and retry it while it may succeed later. It counts as one request in flight all the time.

        Args:
            request: The request.
            permit: A permit that the caller holds; None to wait for one.

        Returns:
            The answer.

        Raises:
            RequestRefused: The request was refused, and a retry does not help. It has `kills_workers` if
                several workers died while they computed it.
            ServerError: No server can be used, or the response is malformed.
        """
        with nullcontext() if permit else await self._in_flight.acquire():
            answer = await self._send_with_retries(request)
            if self._in_flight.answered(len(request.items), answer.compute_seconds / max(1, self.workers)):
                for endpoint in self._endpoints:
                    endpoint.count_workers()
                self._follow_workers()
            return answer

    async def _send_with_retries(self, request: Request[Any, Any]) -> Answer:
        deaths = 0
        refused_by: Endpoint[Description] | None = None
        async for attempt in stamina.retry_context(
            on=self._may_succeed_later, attempts=None, timeout=self._outage_seconds, wait_initial=0.1, wait_max=5.0
        ):
            with attempt:
                endpoint = await self._least_loaded(refused_by)
                self.retries += attempt.num > 1
                try:
                    answer = await endpoint.predict(request)
                except RequestRefused as refusal:
                    refused_by = endpoint
                    if refusal.is_busy:
                        self._in_flight.refused()
                    if refusal.status in WORKER_DIED and not refusal.permanent:
                        deaths += 1
                        self._note_outage()
                        self._last_death = refusal
                    refusal.kills_workers = deaths >= MAX_DEATHS
                    raise
                except AccessRefused as refusal:
                    # If the key file has another key now, the retry uses that, and the server need not be left out.
                    if refusal.temporary and not endpoint.reload_key():
                        self._leave_out(endpoint, refusal)
                    raise
                except ServerUnreachable as outage:
                    self._leave_out(endpoint, outage)
                    raise
        self._last_death = None
        return answer

    def _may_succeed_later(self, error: Exception) -> bool | float:
        """Return whether to try again, or after how many seconds if the server has said so."""
        if isinstance(error, RequestRefused):
            if error.permanent or error.kills_workers or (error.retry_after and not self._waits_for_servers):
                return False
            return error.retry_after or True
        if isinstance(error, AccessRefused):
            return error.temporary and self._waits_for_servers
        return isinstance(error, ServerUnreachable) and self._waits_for_servers

    async def _least_loaded(self, refused_by: Endpoint[Description] | None) -> Endpoint[Description]:
        """Wait until endpoints are usable, and return the one with the fewest outstanding requests for what it takes.

        If possible, it is not `refused_by`: a server that refuses requests immediately would always have the fewest.
        """
        while not (usable := [endpoint for endpoint in self._endpoints if endpoint.outage is None]):
            if not self._waits_for_servers:
                raise ServerUnreachable(f"no server can be used: {self.waiting_for}")
            self._recovered.clear()
            try:
                await asyncio.wait_for(self._recovered.wait(), self._outage_seconds)
            except TimeoutError:
                raise ServerUnreachable(
                    f"no server could be used for {self._outage_seconds:.0f} s: {self._endpoints[0].outage}"
                ) from None

        def load(endpoint: Endpoint[Description]) -> tuple[bool, float]:
            description = endpoint.description
            each = description.requests_for_each_worker(self._request_items) if description else 1
            return endpoint is refused_by, endpoint.outstanding / (each * endpoint.workers)

        return min(usable, key=load)

    def _leave_out(self, endpoint: Endpoint[Description], outage: ServerError) -> None:
        """Send no requests to an endpoint until its server answers a probe."""
        if endpoint.outage is None:
            self._note_outage()
            endpoint.outage = outage
            endpoint.forget_workers()
            self._follow_workers()
            _log.warning("waiting for a server: %s", outage)
            probe = asyncio.create_task(self._probe(endpoint))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    def _note_outage(self) -> None:
        """Note the time, unless requests wait already."""
        if not self.waiting_for:
            self._outage_began = time.time()

    async def _probe(self, endpoint: Endpoint[Description]) -> None:
        """Request the description until the server serves the model again, then make the endpoint usable."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            endpoint.look_again()
            try:
                description = await endpoint.describe()
            except ServerError as outage:
                endpoint.outage = outage
                continue
            if self.description is None or description.identity == self.description.identity:
                break
            another = f"{endpoint.url}: it serves another model now, {printable(description.name)}"
            if another != str(endpoint.outage):
                _log.warning("waiting for the model that the run began with: %s", another)
            endpoint.outage = ServerError(another)
        endpoint.outage = None
        self._follow_workers()
        _log.info("%s answers again", endpoint.url)
        self._recovered.set()


async def _describe(endpoint: Endpoint[Any]) -> None:
    """Request a description, and retry while the server is busy."""
    async for attempt in stamina.retry_context(on=_is_transient, attempts=8, timeout=None, wait_initial=0.2):
        with attempt:
            await endpoint.describe()


def _is_transient(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and not error.permanent


def _check_same_model(descriptions: Sequence[Description]) -> None:
    """Raise UsageError unless all descriptions have the same identity."""
    first, *others = descriptions
    for other in others:
        if other.identity != first.identity:
            raise UsageError(
                f"servers: expected the same model on all, got {printable(first.name)} {printable(first.revision)}"
                f" and {printable(other.name)} {printable(other.revision)}, or other settings of it"
            )


def endpoint_of(
    server: Server,
    model: str,
    session: aiohttp.ClientSession,
    description_type: type[Description],
    *,
    request_seconds: float | None = None,
) -> Endpoint[Description]:
    """Return an endpoint that speaks the protocol of a server; see `Endpoint` and its children."""
    if server.speaks_openai:
        return OpenAIEndpoint(server, model, session, description_type, request_seconds=request_seconds)
    return TorchServeEndpoint(server, model, session, description_type.from_json, request_seconds=request_seconds)
