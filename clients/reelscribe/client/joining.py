"""Join batches of several sources to one request, and give each its own answers.

A source of a few frames does not fill a request. Requests and device batches of one frame are slow, so batches that
come one after the other are joined. A full request is sent as soon as there is a permit; nothing delays it. One that
others may still join is sent as soon as it is `join_seconds` old, or nothing more is being prepared, and no request
like it is in flight (see `in_flight.py`). So a busy server gets full requests, and one that has nothing to do waits no
longer than that for what there is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Generic

from reelscribe._tasks import cancel_all, resolve
from reelscribe.client.in_flight import Permit
from reelscribe.client.models import ModelClient
from reelscribe.client.operations import ItemAnswer, Items, Operation
from reelscribe.errors import RequestRefused, ServerUnreachable, is_of_one_source


@dataclass
class _Request(Generic[Items, ItemAnswer]):
    """A request that is being formed."""

    group: object
    """`Operation.group` of the batches that are joined."""
    parts: list[Items] = field(default_factory=list)
    answers: list[asyncio.Future[list[ItemAnswer | RequestRefused]]] = field(default_factory=list)
    """The answers to each part."""
    items: int = 0
    nbytes: int = 0
    is_due: bool = False
    """True if it has waited for long enough."""
    is_closed: bool = False
    """True if nothing may join it any more."""
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is sent or given up."""


class JoinedRequests(Generic[Items, ItemAnswer]):
    """Joins batches to requests to one model, within the limits of a request."""

    def __init__(
        self, client: ModelClient[Any], operation: Operation[Items, ItemAnswer], *, max_items: int, max_bytes: int
    ) -> None:
        """Set the limits; a single batch may exceed them.

        Args:
            client: The open client of the model.
            operation: What the model is asked.
            max_items: Largest number of items in a joined request.
            max_bytes: Largest size of the items of a joined request, in bytes.
        """
        self._client, self._operation = client, operation
        self._in_flight, self._max_items, self._max_bytes = client.in_flight, max_items, max_bytes
        self._forming: _Request[Items, ItemAnswer] | None = None
        self._sent = 0
        """Number of requests in flight."""
        self._turn = asyncio.Lock()
        self._requests: dict[asyncio.Task[None], _Request[Items, ItemAnswer]] = {}

    async def add(self, batch: Items) -> asyncio.Future[list[ItemAnswer | RequestRefused]]:
        """Wait until a request has room for a batch, and join it.

        At most one request waits for its permit, so a caller that waits for this does not prepare much more than can be
        sent.

        Args:
            batch: The items, at least one. They must not change until the future is done.

        Returns:
            A future with the answer to each item, or the error because of which it has none. It raises ServerError as
            a call of the client does.
        """
        items, nbytes, group = len(batch), self._operation.nbytes(batch), self._operation.group(batch)
        async with self._turn:  # in the order of the calls
            request = self._forming
            if request and not self._has_room(request, items, nbytes, group):
                self._close(request)
                await request.began.wait()
            request = self._forming
            if request is None:
                request = self._forming = _Request(group)
                task = asyncio.create_task(self._send(request))
                self._requests[task] = request
                task.add_done_callback(self._end)
                asyncio.get_running_loop().call_later(self._operation.join_seconds, self._mark_due, request)
            answers: asyncio.Future[list[ItemAnswer | RequestRefused]] = asyncio.get_running_loop().create_future()
            request.parts.append(batch)
            request.answers.append(answers)
            request.items, request.nbytes = request.items + items, request.nbytes + nbytes
            if request.items >= self._max_items or request.nbytes >= self._max_bytes:
                self._close(request)
            return answers

    def flush(self) -> None:
        """Send what there is as soon as no request is in flight, because nothing more is being prepared."""
        if self._forming:
            self._mark_due(self._forming)

    async def close(self) -> None:
        """Give up the requests that are not answered yet, and wait until they have ended."""
        await cancel_all(self._requests)

    def _has_room(self, request: _Request[Items, ItemAnswer], items: int, nbytes: int, group: object) -> bool:
        return (
            not request.is_closed
            and request.group == group
            and request.items + items <= self._max_items
            and request.nbytes + nbytes <= self._max_bytes
        )

    def _close(self, request: _Request[Items, ItemAnswer]) -> None:
        """Let nothing more join a request, which may then be sent beside others."""
        request.is_closed = True
        self._in_flight.grant()

    def _mark_due(self, request: _Request[Items, ItemAnswer]) -> None:
        """Let a request be sent although more could join it, if no other is in flight."""
        request.is_due = True
        self._in_flight.grant()

    async def _send(self, request: _Request[Items, ItemAnswer]) -> None:
        try:
            permit = await self._in_flight.acquire(partial(self._send_below, request))
            self._begin(request)
            with permit, self._counted():
                if self._in_flight.is_stopped:  # it was formed before, and nothing more is to be sent
                    raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")
                answers = await self._answers(request.parts, permit)
        except Exception as error:  # noqa: BLE001 - any error must reach those who wait for the answers
            for future in request.answers:
                resolve(future, error)
        else:
            for future, of_part in zip(request.answers, answers, strict=True):
                resolve(future, of_part)

    def _send_below(self, request: _Request[Items, ItemAnswer]) -> float:
        """Return the number of requests of the client in flight below which a request may be sent."""
        may_be_sent = request.is_closed or (request.is_due and not self._sent)
        return math.inf if may_be_sent else 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request as one in flight."""
        self._sent += 1
        try:
            yield
        finally:
            self._sent -= 1

    def _begin(self, request: _Request[Items, ItemAnswer]) -> None:
        """Let the next request be formed, because this one is sent or given up."""
        if self._forming is request:
            self._forming = None
        request.began.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(task)
        self._begin(request)
        for future in request.answers:
            future.cancel()  # those that have no answer, because the task was cancelled

    async def _answers(
        self, parts: Sequence[Items], permit: Permit
    ) -> Sequence[list[ItemAnswer | RequestRefused] | Exception]:
        """Return the answers to each part, or its error."""
        answers = await self._together(parts, permit)
        if len(parts) == 1:
            return [answers]
        if isinstance(answers, Exception):  # it must not be that of the sources that were joined with one
            return [await self._together([part], permit) for part in parts]
        ends = [0, *accumulate(map(len, parts))]
        split = [answers[first:stop] for first, stop in pairwise(ends)]
        # What the server refuses in one source must not be refused in those that were joined with it. Frames over which
        # workers died need no second try, as they were found one by one, nor do answers without a text, which have
        # status 200 and are of one frame alone.
        return [
            await self._together([part], permit)
            if any(
                isinstance(each, RequestRefused) and not each.kills_workers and each.status != 200 for each in of_part
            )
            else of_part
            for part, of_part in zip(parts, split, strict=True)
        ]

    async def _together(self, parts: Sequence[Items], permit: Permit) -> list[ItemAnswer | RequestRefused] | Exception:
        """Return the answers to parts in one request, or its error, if that is about their sources alone."""
        try:
            joined = self._operation.join(parts) if len(parts) > 1 else parts[0]
            return await self._client.request(self._operation, joined, permit)
        except Exception as error:
            if not is_of_one_source(error):
                raise
            return error
