"""One model on one or several servers: requests shared among them, tried again where that can help, split where one
kills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import aiohttp
import stamina

from reelscribe import wire
from reelscribe.client.endpoint import WORTH_ANOTHER_TRY, Answer, D, Endpoint, Server
from reelscribe.client.in_flight import InFlight
from reelscribe.errors import AccessRefused, NothingAnswered, RequestRefused, ServerError, ServerUnreachable, UsageError

OUTAGE_SECONDS = 900.0
"""So long a run waits for servers that are gone or busy: restarting one with a large model takes minutes."""

PROBE_SECONDS = 0.5
"""A server that is gone is asked for its description so often."""

DEATHS = {500, 507}
"""What TorchServe answers for a request whose worker died; 507 if it was killed, as by a machine out of memory."""

MOST_DEATHS = 2
"""A request that was being worked on when so many workers died is taken for the reason."""

REQUESTS_IN_FLIGHT = 32
"""At most; fewer where more do not help."""

T = TypeVar("T")
Items = TypeVar("Items", bound="_Items")


class _Items(Protocol):
    """What a request holds: an array of frames, a list of chunks."""

    def __len__(self) -> int: ...

    def __getitem__(self: Items, part: slice, /) -> Items: ...


class ModelClient(Generic[D]):
    """One model on one or several servers, over one session. Use it as an async context manager."""

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
        read_description: Callable[[Any], D],
        *,
        requests_in_flight: int = REQUESTS_IN_FLIGHT,
        request_seconds: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` is told when a server does not answer, and when it does again.

        A request without an answer for `request_seconds` is sent again; by default that is what the server itself
        allows, and some waiting.
        """
        for server in servers:
            if not server.url.startswith(("http://", "https://")):
                raise UsageError(f"server: expected an address like http://127.0.0.1:8080, got {server.url!r}")
        # Each request has a permit, so nothing waits for a connection.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._endpoints = [
            Endpoint(server, model, self._session, read_description, request_seconds=request_seconds)
            for server in servers
        ]
        self.most_in_flight = requests_in_flight
        """Requests in flight at most."""
        self._outage_seconds = outage_seconds
        self._patient = True
        self._say = say
        self._back = asyncio.Event()
        self._death: RequestRefused | None = None
        self._description: D | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self.in_flight = InFlight(requests_in_flight, requests_in_flight)
        """Bounds the requests at the servers. Every request takes a permit from it and gives it back."""
        self.on_answer: Callable[[Answer], None] = lambda _: None
        """Is told of every answer."""

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        await self._session.close()

    async def describe(self) -> D:
        """What the model is and what it wants; `workers` are those of all servers.

        Raises ServerError at once if no server answers, for who starts a run is waiting, and UsageError if they serve
        different models.
        """
        answers = await asyncio.gather(*map(_describe, self._endpoints), return_exceptions=True)
        errors: list[ServerError] = []
        for answer in answers:
            if isinstance(answer, ServerError):
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
        descriptions = [endpoint.description for endpoint in self._endpoints if endpoint.description]
        if not descriptions:
            raise errors[0]
        for other in descriptions[1:]:
            if other.identity != descriptions[0].identity:
                raise UsageError(
                    f"servers: expected the same model on all, got {descriptions[0].name} {descriptions[0].revision}"
                    f" and {other.name} {other.revision}, or other settings of it"
                )
        self._description = descriptions[0]
        for endpoint, answer in zip(self._endpoints, answers, strict=True):
            if isinstance(answer, ServerError):
                self._leave_out(endpoint, answer)
        all_of_them = type(descriptions[0]).of_all(descriptions)
        # One computing and one waiting for each worker, to begin with.
        self.in_flight.begin_with(2 * all_of_them.workers)
        return all_of_them

    @property
    def waiting_for(self) -> str | None:
        """What is wrong with the servers, while none of them can be used or one has answered since a worker died."""
        troubles = [endpoint.trouble for endpoint in self._endpoints]
        if all(troubles):
            return str(troubles[0])
        return f"a worker died, and there was no answer since ({self._death})" if self._death else None

    def stop_waiting(self) -> None:
        """From now on, raise ServerUnreachable where a request would wait for a server, or for its turn to be sent.

        Requests that have been sent are still answered.
        """
        self._patient = False
        self.in_flight.stop_waiting()
        self._back.set()

    async def _ask(
        self,
        items: Items,
        pack: Callable[[Items], list[wire.Segment]],
        read: Callable[[Any, int], list[T]],
        harmless: tuple[Items, str],
    ) -> list[T | RequestRefused]:
        """For each item its answer, or why it has none; `read` raises ValueError for what is no list of so many.

        A request that kills workers is split down to single items. Raises ServerError if no server can be used, or if
        `harmless` (one item, and what it is called) is not answered either.
        """
        try:
            answers = await self._answer(items, pack, read)
        except RequestRefused as error:
            if error.deadly and len(items) > 1:
                half = len(items) // 2
                return [
                    *await self._ask(items[:half], pack, read, harmless),
                    *await self._ask(items[half:], pack, read, harmless),
                ]
            if not error.deadly and not error.final:
                raise
            await self._check_that_it_is_the_items(error, pack, read, harmless)
            return [error] * len(items)
        return [*answers]

    async def _check_that_it_is_the_items(
        self,
        refused: RequestRefused,
        pack: Callable[[Items], list[wire.Segment]],
        read: Callable[[Any, int], list[T]],
        harmless: tuple[Items, str],
    ) -> None:
        """A model that answers nothing must not mark a library as failed. Raises NothingAnswered."""
        item, name = harmless
        try:
            await self._answer(item, pack, read)
        except RequestRefused as error:
            raise NothingAnswered(
                f"a request failed ({refused}), and then {name} too ({error}); see the server's log"
            ) from None

    async def _answer(
        self, items: Items, pack: Callable[[Items], list[wire.Segment]], read: Callable[[Any, int], list[T]]
    ) -> list[T]:
        # Not around halving and probing, which send requests of their own: they would wait for this permit.
        async with self.in_flight:
            return await self._answer_in_turn(items, pack, read)

    async def _answer_in_turn(
        self, items: Items, pack: Callable[[Items], list[wire.Segment]], read: Callable[[Any, int], list[T]]
    ) -> list[T]:
        body, deaths = pack(items), 0
        refused_by: Endpoint[D] | None = None
        async for attempt in stamina.retry_context(
            on=self._worth_another_try, attempts=None, timeout=self._outage_seconds, wait_initial=0.1, wait_max=5.0
        ):
            with attempt:
                endpoint = await self._pick(refused_by)
                try:
                    answer = await endpoint.ask(body)
                except RequestRefused as error:
                    refused_by = endpoint
                    if error.status == 503:
                        self.in_flight.refused()
                    if error.status in DEATHS and not error.final:
                        deaths += 1
                        self._death = error
                    error.deadly = deaths >= MOST_DEATHS
                    raise
                except AccessRefused as error:
                    if error.passes and not endpoint.key_has_changed():
                        self._leave_out(endpoint, error)
                    raise
                except ServerUnreachable as error:
                    self._leave_out(endpoint, error)
                    raise
        self._death = None
        try:
            answers = read(answer.value, len(items))
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(f"answer of {endpoint.url}: {error}, got {str(answer.value)[:200]}") from None
        self.in_flight.answered(len(items))
        self.on_answer(answer)
        return answers

    async def _pick(self, refused_by: Endpoint[D] | None) -> Endpoint[D]:
        """The server with the fewest requests for its workers, among those that can be used.

        If there are others, it is not `refused_by`: a server that refuses all at once has always the fewest.
        """
        while not (usable := [endpoint for endpoint in self._endpoints if endpoint.trouble is None]):
            if not self._patient:
                raise ServerUnreachable(f"no server can be used: {self.waiting_for}")
            self._back.clear()
            try:
                await asyncio.wait_for(self._back.wait(), self._outage_seconds)
            except TimeoutError:
                raise ServerUnreachable(
                    f"no server could be used for {self._outage_seconds:.0f} s: {self._endpoints[0].trouble}"
                ) from None
        return min(usable, key=lambda endpoint: (endpoint is refused_by, endpoint.outstanding / endpoint.workers))

    def _worth_another_try(self, error: Exception) -> bool:
        if isinstance(error, RequestRefused):
            return error.status in WORTH_ANOTHER_TRY and not error.final and not error.deadly
        if isinstance(error, AccessRefused):
            return error.passes and self._patient
        return isinstance(error, ServerUnreachable) and self._patient

    def _leave_out(self, endpoint: Endpoint[D], error: ServerError) -> None:
        """Use the others until this one answers again."""
        if endpoint.trouble is None:
            endpoint.trouble = error
            self._say(f"waiting for a server: {error}")
            probe = asyncio.create_task(self._probe(endpoint))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint[D]) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            endpoint.key_has_changed()
            try:
                description = await endpoint.describe()
            except ServerError as error:
                endpoint.trouble = error
                continue
            if self._description is None or description.identity == self._description.identity:
                break
            endpoint.trouble = ServerError(f"{endpoint.url}: it serves another model now, {description.name}")
        endpoint.trouble = None
        self._say(f"{endpoint.url} answers again")
        self._back.set()


Self = TypeVar("Self", bound=ModelClient[Any])  # typing has its own since Python 3.11


async def _describe(endpoint: Endpoint[Any]) -> None:
    async for attempt in stamina.retry_context(on=_may_pass, attempts=8, timeout=None, wait_initial=0.2):
        with attempt:
            await endpoint.describe()


def _may_pass(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and error.status in WORTH_ANOTHER_TRY and not error.final
