"""Frames in, captions out: requests shared among servers, tried again where that can help, split where one kills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

import aiohttp
import numpy as np
import stamina

from reelscribe import wire
from reelscribe.endpoint import WORTH_ANOTHER_TRY, Answer, Endpoint, Server
from reelscribe.errors import (
    AccessRefused,
    NothingAnswered,
    RequestRefused,
    ServerError,
    ServerUnreachable,
    UsageError,
)
from reelscribe.in_flight import InFlight
from reelscribe.media import FrameArray, FrameSize, ModelDescription

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


class CaptionClient:
    """One model on one or several servers, over one session. Use it as an async context manager."""

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
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
            Endpoint(server, model, self._session, request_seconds=request_seconds) for server in servers
        ]
        self.most_in_flight = requests_in_flight
        """Requests in flight at most."""
        self._outage_seconds = outage_seconds
        self._say = say
        self._back = asyncio.Event()
        self._description: ModelDescription | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self.in_flight = InFlight(1, requests_in_flight)
        """A permit for each request, which whoever calls `caption` in parallel takes and gives back."""
        self.on_answer: Callable[[Answer], None] = lambda _: None
        """Is told of every answer."""

    async def __aenter__(self) -> CaptionClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        await self._session.close()

    async def describe(self) -> ModelDescription:
        """What the model is and how it wants its frames; `workers` are those of all servers.

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
        described = [endpoint for endpoint in self._endpoints if endpoint.description]
        if not described:
            raise errors[0]
        descriptions = [endpoint.description for endpoint in described if endpoint.description]
        for other in descriptions[1:]:
            if not _same_captions(descriptions[0], other):
                raise UsageError(
                    f"servers: expected the same model on all, got {descriptions[0].name} {descriptions[0].revision}"
                    f" and {other.name} {other.revision}, or other settings of it"
                )
        self._description = descriptions[0]
        for endpoint, answer in zip(self._endpoints, answers, strict=True):
            if isinstance(answer, ServerError):
                self._leave_out(endpoint, answer)
        workers = sum(description.workers for description in descriptions)
        # One computing and one waiting for each worker, to begin with.
        self.in_flight.begin_with(2 * workers)
        return replace(
            descriptions[0],
            workers=workers,
            max_frames=min(description.max_frames for description in descriptions),
            max_side=min(description.max_side for description in descriptions),
        )

    async def caption(self, frames: FrameArray) -> list[str | RequestRefused]:
        """For each of (N, H, W, 3) uint8 RGB frames its caption, or why it has none.

        A request that kills workers is split down to single frames. The frames must not change until this returns.
        Raises ServerError if no server can be used, or if a black frame is not answered either.
        """
        try:
            captions = await self._answer(frames)
        except RequestRefused as error:
            if error.deadly and len(frames) > 1:
                half = len(frames) // 2
                return [*await self.caption(frames[:half]), *await self.caption(frames[half:])]
            if not error.deadly and not error.final:
                raise
            await self._check_that_it_is_the_frames(error)
            return [error] * len(frames)
        return [*captions]

    async def _check_that_it_is_the_frames(self, refused: RequestRefused) -> None:
        """A model that answers nothing must not mark a library as failed. Raises NothingAnswered."""
        size = self._description.frame.for_video(224, 224) if self._description else FrameSize(224, 224)
        try:
            await self._answer(np.zeros((1, size.height, size.width, 3), np.uint8))
        except RequestRefused as error:
            raise NothingAnswered(
                f"a request failed ({refused}), and then a black frame too ({error}); see the server's log"
            ) from None

    async def _answer(self, frames: FrameArray) -> list[str]:
        body, deaths = wire.pack({"frames": frames}), 0
        refused_by: Endpoint | None = None
        async for attempt in stamina.retry_context(
            on=_worth_another_try, attempts=None, timeout=self._outage_seconds, wait_initial=0.1, wait_max=5.0
        ):
            with attempt:
                endpoint = await self._pick(refused_by)
                try:
                    answer = await endpoint.caption(body)
                except RequestRefused as error:
                    refused_by = endpoint
                    if error.status == 503:
                        self.in_flight.refused()
                    deaths += error.status in DEATHS and not error.final
                    error.deadly = deaths >= MOST_DEATHS
                    raise
                except AccessRefused as error:
                    if error.passes and not endpoint.key_has_changed():
                        self._leave_out(endpoint, error)
                    raise
                except ServerUnreachable as error:
                    self._leave_out(endpoint, error)
                    raise
        captions = answer.captions
        if not isinstance(captions, list) or [type(text) for text in captions] != [str] * len(frames):
            raise ServerError(
                f"captions: expected a list of {len(frames)} texts from {endpoint.url}, got {str(captions)[:200]}"
            )
        self.in_flight.answered(len(frames))
        self.on_answer(answer)
        return captions

    async def _pick(self, refused_by: Endpoint | None) -> Endpoint:
        """The server with the fewest requests for its workers, among those that can be used.

        If there are others, it is not `refused_by`: a server that refuses all at once has always the fewest.
        """
        while not (usable := [endpoint for endpoint in self._endpoints if endpoint.trouble is None]):
            self._back.clear()
            try:
                await asyncio.wait_for(self._back.wait(), self._outage_seconds)
            except asyncio.TimeoutError:
                raise ServerUnreachable(
                    f"no server could be used for {self._outage_seconds:.0f} s: {self._endpoints[0].trouble}"
                ) from None
        return min(usable, key=lambda endpoint: (endpoint is refused_by, endpoint.outstanding / endpoint.workers))

    def _leave_out(self, endpoint: Endpoint, error: ServerError) -> None:
        """Use the others until this one answers again."""
        if endpoint.trouble is None:
            endpoint.trouble = error
            self._say(f"waiting for a server: {error}")
            probe = asyncio.create_task(self._probe(endpoint))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            endpoint.key_has_changed()
            try:
                description = await endpoint.describe()
            except ServerError as error:
                endpoint.trouble = error
                continue
            if _same_captions(description, self._description or description):
                break
            endpoint.trouble = ServerError(f"{endpoint.url}: it serves another model now, {description.name}")
        endpoint.trouble = None
        self._say(f"{endpoint.url} answers again")
        self._back.set()


async def _describe(endpoint: Endpoint) -> None:
    async for attempt in stamina.retry_context(on=_may_pass, attempts=8, timeout=None, wait_initial=0.2):
        with attempt:
            await endpoint.describe()


def _may_pass(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and error.status in WORTH_ANOTHER_TRY and not error.final


def _same_captions(one: ModelDescription, other: ModelDescription) -> bool:
    """Whether both would say the same of the same frames: how many workers there are is another matter."""
    return one == replace(
        other,
        device_batch=one.device_batch,
        max_frames=one.max_frames,
        max_side=one.max_side,
        workers=one.workers,
        response_seconds=one.response_seconds,
    )


def _worth_another_try(error: Exception) -> bool:
    if isinstance(error, RequestRefused):
        return error.status in WORTH_ANOTHER_TRY and not error.final and not error.deadly
    if isinstance(error, AccessRefused):
        return error.passes
    return isinstance(error, ServerUnreachable)
