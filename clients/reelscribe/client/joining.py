"""Join batches of several sources to one request, and give each its own answers.

A source of a few frames does not fill a request. Requests and device batches of one frame are slow, so batches that
come one after the other are joined. A full request is sent as soon as there is a permit; nothing delays it. One that
others may still join is sent as soon as it is `join_seconds` old, or nothing more is being prepared, and no request is
in flight (see `in_flight.py`). So a busy server gets full requests, and one that has nothing to do waits no longer than
that for what there is.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from reelscribe._tasks import cancel_all
from reelscribe.client.in_flight import InFlight, Permit
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.errors import RequestRefused, ServerUnreachable

Items = TypeVar("Items")
"""The items of a batch: an array of frames, or a sequence of chunks."""
T = TypeVar("T")
"""The answer to an item."""


@dataclass
class _Request(Generic[Items, T]):
    """A request that is being formed."""

    kind: object
    """What batches must have in common to be joined."""
    parts: list[Items] = field(default_factory=list)
    answers: list[asyncio.Future[list[T | RequestRefused]]] = field(default_factory=list)
    """The answers to each part."""
    items: int = 0
    nbytes: int = 0
    is_old: bool = False
    """Whether it has waited for long enough."""
    is_closed: bool = False
    """Whether nothing may join it any more."""
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is sent or given up."""

    def may_be_sent_beside(self) -> float:
        """Return the number of requests in flight below which this one may be sent."""
        return math.inf if self.is_closed else int(self.is_old)


class JoinedRequests(ABC, Generic[Items, T]):
    """Joins batches to requests to one model, within the limits of a request."""

    join_seconds: ClassVar[float] = 0.05
    """Time for which a request that is not full waits for more to join it, in seconds. Where sources are decoded as
    fast as their items are answered, requests are full before that. Where decoding is slower, the server is idle
    anyway."""

    def __init__(self, in_flight: InFlight, *, max_items: int, max_bytes: int) -> None:
        """Set the limits; a single batch may exceed them.

        Args:
            in_flight: The permits of the model's client.
            max_items: Largest number of items in a joined request.
            max_bytes: Largest size of the items of a joined request, in bytes.
        """
        self._in_flight, self._max_items, self._max_bytes = in_flight, max_items, max_bytes
        self._forming: _Request[Items, T] | None = None
        self._turn = asyncio.Lock()
        self._requests: dict[asyncio.Task[None], _Request[Items, T]] = {}

    async def add(self, batch: Items) -> asyncio.Future[list[T | RequestRefused]]:
        """Wait until a request has room for a batch, and join it.

        At most one request waits for its permit, so a caller that waits for this does not prepare much more than can be
        sent.

        Args:
            batch: The items, at least one. They must not change until the future is done.

        Returns:
            A future with the answer to each item, or the error because of which it has none. It raises ServerError as
            a call of the client does.
        """
        items, nbytes, kind = self._measure(batch)
        async with self._turn:  # in the order of the calls
            request = self._forming
            if request and not self._has_room(request, items, nbytes, kind):
                self._close(request)
                await request.began.wait()
            request = self._forming
            if request is None:
                request = self._forming = _Request(kind)
                task = asyncio.create_task(self._send(request))
                self._requests[task] = request
                task.add_done_callback(self._end)
                asyncio.get_running_loop().call_later(self.join_seconds, self._grow_old, request)
            answers: asyncio.Future[list[T | RequestRefused]] = asyncio.get_running_loop().create_future()
            request.parts.append(batch)
            request.answers.append(answers)
            request.items, request.nbytes = request.items + items, request.nbytes + nbytes
            if request.items >= self._max_items or request.nbytes >= self._max_bytes:
                self._close(request)
            return answers

    def wait_no_longer(self) -> None:
        """Send what there is as soon as no request is in flight, because nothing more is being prepared."""
        if self._forming:
            self._grow_old(self._forming)

    async def close(self) -> None:
        """Give up the requests that are not answered yet, and wait until they have ended."""
        await cancel_all(self._requests)

    @abstractmethod
    def _measure(self, batch: Items) -> tuple[int, int, object]:
        """Return the number of items, their size in bytes, and what joined batches must have in common."""

    @abstractmethod
    def _join(self, parts: Sequence[Items]) -> Items:
        """Return all items in one batch."""

    @abstractmethod
    async def _predict(self, batch: Items, permit: Permit) -> list[T | RequestRefused]:
        """Call the client's method for a batch."""

    def _has_room(self, request: _Request[Items, T], items: int, nbytes: int, kind: object) -> bool:
        return (
            not request.is_closed
            and request.kind == kind
            and request.items + items <= self._max_items
            and request.nbytes + nbytes <= self._max_bytes
        )

    def _close(self, request: _Request[Items, T]) -> None:
        """Let nothing more join a request, which may then be sent beside others."""
        request.is_closed = True
        self._in_flight.grant()

    def _grow_old(self, request: _Request[Items, T]) -> None:
        """Let a request be sent although more could join it, if no other is in flight."""
        request.is_old = True
        self._in_flight.grant()

    async def _send(self, request: _Request[Items, T]) -> None:
        try:
            permit = await self._in_flight.acquire(request.may_be_sent_beside)
            self._begin(request)
            with permit:
                if self._in_flight.is_stopped:  # it was formed before, and nothing more is to be sent
                    raise ServerUnreachable("the request was not sent, because the client was told to stop waiting")
                answers = await self._answers(request.parts, permit)
        except Exception as error:  # noqa: BLE001 - any error must reach those who wait for the answers
            for future in request.answers:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # marks it as retrieved: asyncio would log a warning if nobody waits any more
        else:
            for future, of_part in zip(request.answers, answers, strict=True):
                if not future.done():
                    future.set_result(of_part)

    def _begin(self, request: _Request[Items, T]) -> None:
        """Let the next request be formed, because this one is sent or given up."""
        if self._forming is request:
            self._forming = None
        request.began.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(task)
        self._begin(request)
        for future in request.answers:
            future.cancel()  # those that have no answer, because the task was cancelled

    async def _answers(self, parts: Sequence[Items], permit: Permit) -> list[list[T | RequestRefused]]:
        """Return the answers to each part."""
        if len(parts) == 1:
            return [await self._predict(parts[0], permit)]
        answers = iter(await self._predict(self._join(parts), permit))
        split = [[next(answers) for _ in range(self._measure(part)[0])] for part in parts]
        for k, part in enumerate(parts):
            # What the server refuses in one source must not be refused in those that were joined with it. Frames over
            # which workers died need no second try: they were found one by one.
            if any(isinstance(answer, RequestRefused) and not answer.deadly for answer in split[k]):
                split[k] = await self._predict(part, permit)
        return split


class JoinedFrames(JoinedRequests[FrameArray, Any]):
    """Joins frames of the same size, (N, height, width, 3) uint8 RGB, to requests to a captioner."""

    def __init__(self, client: CaptionClient, *, max_items: int, max_bytes: int) -> None:
        """Set the limits.

        Args:
            client: The open client of the captioner.
            max_items: Largest number of frames in a joined request.
            max_bytes: Largest size of the frames of a joined request, in bytes.
        """
        super().__init__(client.in_flight, max_items=max_items, max_bytes=max_bytes)
        self._client = client

    def _measure(self, batch: FrameArray) -> tuple[int, int, object]:
        return len(batch), batch.nbytes, batch.shape[1:]

    def _join(self, parts: Sequence[FrameArray]) -> FrameArray:
        return np.concatenate(parts)

    async def _predict(self, batch: FrameArray, permit: Permit) -> list[Any]:
        return await self._client.caption(batch, permit)


class JoinedChunks(JoinedRequests[Sequence[SampleArray], ChunkTranscript]):
    """Joins chunks, (samples,) int16 mono each, to requests to a speech model."""

    def __init__(
        self,
        client: SpeechClient,
        sample_rate: int,
        options: TranscriptionOptions,
        *,
        max_items: int,
        max_bytes: int,
    ) -> None:
        """Set the limits.

        Args:
            client: The open client of the speech model.
            sample_rate: Sample rate of all chunks, in Hz.
            options: Language, task and word times of all requests.
            max_items: Largest number of chunks in a joined request.
            max_bytes: Largest size of the chunks of a joined request, in bytes.
        """
        super().__init__(client.in_flight, max_items=max_items, max_bytes=max_bytes)
        self._client, self._sample_rate, self._options = client, sample_rate, options

    def _measure(self, batch: Sequence[SampleArray]) -> tuple[int, int, object]:
        return len(batch), sum(chunk.nbytes for chunk in batch), None

    def _join(self, parts: Sequence[Sequence[SampleArray]]) -> Sequence[SampleArray]:
        return [chunk for part in parts for chunk in part]

    async def _predict(self, batch: Sequence[SampleArray], permit: Permit) -> list[ChunkTranscript | RequestRefused]:
        return await self._client.transcribe(batch, self._sample_rate, self._options, permit)


class JoinedClips(JoinedRequests[Sequence[Clip], ClipDescription]):
    """Joins clips to requests to a clip model."""

    join_seconds = 0.5
    """Clips are decoded and described some ten times as slowly as frames, so it takes longer until they fill a request;
    but a device batch of 8 clips takes little longer than one of 2."""

    def __init__(self, client: ClipClient, *, max_items: int, max_bytes: int) -> None:
        """Set the limits.

        Args:
            client: The open client of the clip model.
            max_items: Largest number of clips in a joined request.
            max_bytes: Largest size of the frames of a joined request, in bytes.
        """
        super().__init__(client.in_flight, max_items=max_items, max_bytes=max_bytes)
        self._client = client

    def _measure(self, batch: Sequence[Clip]) -> tuple[int, int, object]:
        return len(batch), sum(clip.frames.nbytes for clip in batch), None

    def _join(self, parts: Sequence[Sequence[Clip]]) -> Sequence[Clip]:
        return [clip for part in parts for clip in part]

    async def _predict(self, batch: Sequence[Clip], permit: Permit) -> list[ClipDescription | RequestRefused]:
        return await self._client.describe_clips(batch, permit)
