"""Clients of captioners, speech models and clip models, which return an answer or an error for each item.

`request` of `ModelClient` sends any operation; the clients below it have a method for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self

from reelscribe.client.balancer import OUTAGE_SECONDS, Balancer, Outage
from reelscribe.client.endpoint import Answer, Description, Server
from reelscribe.client.in_flight import InFlight, Permit
from reelscribe.client.operations import (
    ItemAnswer,
    Items,
    Operation,
    Request,
    captioning,
    describing_clips,
    transcribing,
)
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.descriptions import CaptionerDescription, ClipModelDescription, SpeechDescription
from reelscribe.contract.frames import FrameArray, FrameCaption, frame_batch
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.errors import NothingAnswered, RequestRefused, UsageError


class ModelClient(Generic[Description]):
    """A model on one or several servers. Use it as an asynchronous context manager.

    Callers may await any number of requests concurrently, because the client limits the number of requests in flight.
    `request` sends any operation; the clients below have a method for theirs.
    """

    description_type: type[Description]
    """The description of this kind of model."""

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
        description_type: type[Description] | None = None,
        *,
        requests_in_flight: int | None = None,
        request_seconds: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        """Open an HTTP session.

        Args:
            servers: The servers; at least one.
            model: Name that the model has on all of them.
            description_type: The description of this kind of model; None for that of the class.
            requests_in_flight: Highest limit on the number of requests in flight; None for what the servers take. After
                `describe`, that is those of two calls for each worker that answers, and more if they raise throughput.
            request_seconds: Timeout of a request in seconds, after which it is sent again; None for the compute time
                that the server allows, plus some time in the queue.
            outage_seconds: Time for which a request waits for servers that are gone or busy, in seconds.
        """
        if description_type:
            self.description_type = description_type
        self.on_answer: Callable[[Answer], None] = lambda _: None
        """Called with every answer."""
        self.requests_in_flight = requests_in_flight
        """The highest limit on the number of requests in flight; None for what the servers take."""
        self._servers, self._request_seconds, self._outage_seconds = servers, request_seconds, outage_seconds
        self._balancer = Balancer(
            servers,
            model,
            self.description_type,
            requests_in_flight=requests_in_flight,
            request_seconds=request_seconds,
            outage_seconds=outage_seconds,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._balancer.close()

    def beside(self, model: str) -> ModelClient[Description]:
        """Return a client, to be entered, of another model of this kind on the same servers, with the same limits.

        Args:
            model: Name that the model has on all of them.
        """
        return ModelClient(
            self._servers,
            model,
            self.description_type,
            requests_in_flight=self.requests_in_flight,
            request_seconds=self._request_seconds,
            outage_seconds=self._outage_seconds,
        )

    async def describe(self) -> Description:
        """Request the description of the model from all servers.

        Returns:
            The description, with the workers of all servers and the smallest of their limits.

        Raises:
            ServerError: No server answers. Unlike other requests, this one does not wait for servers, because it is
                sent when a user starts something.
            UsageError: The servers serve different models.
        """
        return await self._balancer.describe()

    @property
    def descriptions(self) -> Sequence[Description]:
        """The description of the model on each server that has sent one."""
        return self._balancer.descriptions

    @property
    def waiting_for(self) -> str | None:
        """Why requests may be waiting: no server can be used, or a worker died and no request was answered since.

        None in normal operation.
        """
        return self._balancer.waiting_for

    @property
    def outage(self) -> Outage | None:
        """The outage because of which requests may be waiting; None in normal operation."""
        return self._balancer.outage

    @property
    def workers(self) -> int:
        """Number of workers that serve the model now, on all servers that can be used; 0 if there is none."""
        return self._balancer.workers

    def expect_requests(self, items: int) -> None:
        """Set the number of items of most requests; until then, they count as full. Call it after `describe`."""
        self._balancer.expect_requests(items)

    @property
    def retries(self) -> int:
        """Number of requests that were sent again."""
        return self._balancer.retries

    async def permit(self) -> Permit:
        """Wait until fewer requests are in flight than the limit allows, and return a permit for one more.

        Calls wait for a permit by themselves. A program that prepares its requests in advance takes the permit first,
        passes it to the call, and gives it back when the call has ended::

            with await client.permit() as permit:
                captions = await client.caption(next_frames(), permit)

        Raises:
            ServerUnreachable: There was no permit when waiting was stopped.
        """
        return await self.in_flight.acquire()

    @property
    def in_flight(self) -> InFlight:
        """The permits for requests; `permit` takes one of them."""
        return self._balancer.in_flight

    @contextmanager
    def sharing(self, memory: SharedMemory) -> Iterator[None]:
        """Let servers on this machine read arrays of requests from a memory, which must last as long as the block."""
        self._balancer.memories.append(memory)
        try:
            yield
        finally:
            self._balancer.memories.remove(memory)

    def stop_waiting(self, *, for_permits: bool = True) -> None:
        """From now on, raise ServerUnreachable where a request would wait for a server or for a permit.

        Requests that have been sent are still answered.

        Args:
            for_permits: Whether requests that would wait for a permit are given up, too.
        """
        self._balancer.stop_waiting(for_permits=for_permits)

    async def request(
        self, operation: Operation[Items, ItemAnswer], items: Items, permit: Permit | None = None
    ) -> list[ItemAnswer | RequestRefused]:
        """Send items in one request, and return the answer for each, or the error because of which it has none.

        A request that kills workers is halved until the items that kill them are found.

        Args:
            operation: What the model is asked.
            items: The items, at least one. They must not change until this returns.
            permit: A permit from `permit`, which the caller gives back; None to wait for one.

        Raises:
            NothingAnswered: The operation's probe was not answered either.
            ServerError: No server can be used, or a response is malformed.
        """
        try:
            return [*await self._send(operation, items, permit)]
        except RequestRefused as refusal:
            if refusal.kills_workers and len(items) > 1:
                half = len(items) // 2
                return [
                    *await self.request(operation, items[:half], permit),
                    *await self.request(operation, items[half:], permit),
                ]
            if not refusal.kills_workers and not refusal.permanent:
                raise
            await self._check_probe(operation, refusal, permit)
            return [refusal] * len(items)

    async def check_accepted(self, operation: Operation[Items, ItemAnswer]) -> None:
        """Ask the model about the probe, if the operation has something that the user has written.

        Args:
            operation: What the model is to be asked.

        Raises:
            UsageError: The model refuses it.
            ServerError: No server can be used, or a response is malformed.
        """
        if operation.plain is None:
            return
        try:
            await self._send(operation, operation.probe, None)
        except RequestRefused as refusal:
            if not refusal.permanent:
                raise
            raise UsageError(str(refusal)) from None

    async def _check_probe(
        self, operation: Operation[Items, ItemAnswer], refusal: RequestRefused, permit: Permit | None
    ) -> None:
        """Raise NothingAnswered if the model does not answer the probe either.

        Without this check, a broken server would make all sources of a library fail.
        """
        try:
            await self._send(operation.plain or operation, operation.probe, permit)
        except RequestRefused as error:
            raise NothingAnswered(
                f"a request failed ({refusal}), and then {operation.probe_name} too ({error}); see the server's log"
            ) from None

    async def _send(
        self, operation: Operation[Items, ItemAnswer], items: Items, permit: Permit | None
    ) -> list[ItemAnswer]:
        answer = await self._balancer.send(Request(operation, items), permit)
        self.on_answer(answer)
        return answer.answers


class CaptionClient(ModelClient[CaptionerDescription]):
    """A captioner on one or several servers. Use it as an asynchronous context manager."""

    description_type = CaptionerDescription

    async def caption(self, frames: FrameArray, permit: Permit | None = None) -> list[FrameCaption | RequestRefused]:
        """Caption frames in one request.

        A request that kills workers is halved until the frames that kill them are found.

        Args:
            frames: (N, height, width, 3) uint8 RGB, or a single frame, (height, width, 3). They must not change until
                this returns.
            permit: A permit from `permit`, which the caller gives back; None to wait for one.

        Returns:
            For each of the N frames, or for the single one, its caption, or the error because of which it has none.

        Raises:
            NothingAnswered: A black frame was not answered either.
            ServerError: No server can be used, or a response is malformed.
            UsageError: The array has another shape or dtype, or is empty.
        """
        return await self.request(captioning(self._balancer.description), frame_batch(frames), permit)


class SpeechClient(ModelClient[SpeechDescription]):
    """A speech model on one or several servers. Use it as an asynchronous context manager."""

    description_type = SpeechDescription

    async def transcribe(
        self,
        chunks: Sequence[SampleArray],
        sample_rate: int,
        options: TranscriptionOptions | None = None,
        permit: Permit | None = None,
    ) -> list[ChunkTranscript | RequestRefused]:
        """Transcribe chunks in one request.

        A request that kills workers is halved until the chunks that kill them are found.

        Args:
            chunks: N arrays of (samples,) int16, mono. They must not change until this returns.
            sample_rate: Sample rate of the chunks, in Hz.
            options: Language, task, word times, vocabulary and beams; None for the model's own settings.
            permit: A permit from `permit`, which the caller gives back; None to wait for one.

        Returns:
            For each of the N chunks, its transcript, or the error because of which it has none.

        Raises:
            NothingAnswered: A second of silence was not answered either.
            ServerError: No server can be used, or a response is malformed.
        """
        operation = transcribing(self._balancer.description, sample_rate, options)
        return await self.request(operation, chunks, permit)


class ClipClient(ModelClient[ClipModelDescription]):
    """A clip model on one or several servers. Use it as an asynchronous context manager."""

    description_type = ClipModelDescription

    async def describe_clips(
        self, clips: Sequence[Clip], permit: Permit | None = None
    ) -> list[ClipDescription | RequestRefused]:
        """Describe clips in one request.

        A request that kills workers is halved until the clips that kill them are found.

        Args:
            clips: N clips. Their frames must not change until this returns.
            permit: A permit from `permit`, which the caller gives back; None to wait for one.

        Returns:
            For each of the N clips, its description, or the error because of which it has none.

        Raises:
            NothingAnswered: A black clip was not answered either.
            ServerError: No server can be used, or a response is malformed.
        """
        return await self.request(describing_clips(self._balancer.description), clips, permit)
