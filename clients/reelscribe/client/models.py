"""Clients of captioners and speech models, which return an answer or an error for each frame or chunk."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from reelscribe import wire
from reelscribe.client.balancer import OUTAGE_SECONDS, REQUESTS_IN_FLIGHT, Balancer, Outage
from reelscribe.client.endpoint import Answer, Description, Server
from reelscribe.client.in_flight import InFlight, Permit
from reelscribe.contract.clips import Clip, ClipDescription
from reelscribe.contract.frames import FrameArray, FrameCaption, InputSize, frame_batch
from reelscribe.contract.model import CaptionerDescription, ClipModelDescription, SpeechDescription
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.errors import NothingAnswered, RequestRefused, ServerError, brief

T = TypeVar("T")
Items = TypeVar("Items", bound="_Items")

_SILENCE = "a second of silence"


class _Items(Protocol):
    """The items of a request: an array of frames, or a sequence of chunks."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Self: ...


@dataclass(frozen=True)
class _Operation(Generic[Items, T]):
    """A kind of request to a model."""

    pack: Callable[[Items], list[wire.Segment]]
    """Packs items into the body of a request."""
    parse: Callable[[Any, int], list[T]]
    """Parses the JSON of a response to a request with this many items; raises TypeError, KeyError or ValueError for
    JSON that is not such a response."""
    harmless: Items
    """A single item that every working model answers."""
    harmless_name: str
    """Name of the harmless item in error messages."""
    permit: Permit | None
    """Permit of the caller for all that is sent; None if each request takes one."""


class ModelClient(ABC, Generic[Description]):
    """A model on one or several servers. Use it as an asynchronous context manager.

    Callers may await any number of requests concurrently, because the client limits the number of requests in flight.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        model: str,
        *,
        requests_in_flight: int = REQUESTS_IN_FLIGHT,
        request_seconds: float | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        """Open an HTTP session.

        Args:
            servers: The servers; at least one.
            model: Name that the model has on all of them.
            requests_in_flight: Limit on the number of requests in flight. After `describe`, there are at first two for
                each worker, and later more if they raise throughput.
            request_seconds: Timeout of a request in seconds, after which it is sent again; None for the compute time
                that the server allows, plus some time in the queue.
            outage_seconds: Time for which a request waits for servers that are gone or busy, in seconds.
        """
        self.requests_in_flight = requests_in_flight
        """Limit on the number of requests in flight."""
        self.on_answer: Callable[[Answer], None] = lambda _: None
        """Called with every answer."""
        self._balancer = Balancer(
            servers,
            model,
            self._read_description,
            requests_in_flight=requests_in_flight,
            request_seconds=request_seconds,
            outage_seconds=outage_seconds,
        )

    @abstractmethod
    def _read_description(self, value: Any) -> Description:
        """Parse the JSON of a description. Raises ServerError if it describes another kind of model."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._balancer.close()

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

    def stop_waiting(self) -> None:
        """From now on, raise ServerUnreachable where a request would wait for a server or for a permit.

        Requests that have been sent are still answered.
        """
        self._balancer.stop_waiting()

    async def _run(self, items: Items, operation: _Operation[Items, T]) -> list[T | RequestRefused]:
        """Return the answer for each item, or the error because of which it has none.

        A request that kills workers is halved until the items that kill them are found.

        Raises:
            NothingAnswered: The harmless item was not answered either.
            ServerError: No server can be used, or a response is malformed.
        """
        try:
            return [*await self._send(items, operation)]
        except RequestRefused as refusal:
            if refusal.deadly and len(items) > 1:
                half = len(items) // 2
                return [*await self._run(items[:half], operation), *await self._run(items[half:], operation)]
            if not refusal.deadly and not refusal.final:
                raise
            await self._check_harmless(operation, refusal)
            return [refusal] * len(items)

    async def _check_harmless(self, operation: _Operation[Items, T], refusal: RequestRefused) -> None:
        """Raise NothingAnswered if the model does not answer a harmless item either.

        Without this check, a broken server would make all sources of a library fail.
        """
        try:
            await self._send(operation.harmless, operation)
        except RequestRefused as error:
            raise NothingAnswered(
                f"a request failed ({refusal}), and then {operation.harmless_name} too ({error}); see the server's log"
            ) from None

    async def _send(self, items: Items, operation: _Operation[Items, T]) -> list[T]:
        answer = await self._balancer.send(operation.pack(items), len(items), operation.permit)
        try:
            answers = operation.parse(answer.value, len(items))
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(f"answer of {answer.url}: {error}, got {reprlib.repr(answer.value)}") from None
        self.on_answer(answer)
        return answers


class CaptionClient(ModelClient[CaptionerDescription]):
    """A captioner on one or several servers. Use it as an asynchronous context manager."""

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
        frames = frame_batch(frames)
        description = self._balancer.description
        size = description.input_size.for_video(224, 224) if description else InputSize(224, 224)
        black = np.zeros((1, size.height, size.width, 3), np.uint8)
        return await self._run(frames, _Operation(_pack_frames, _parse_captions, black, "a black frame", permit))

    def _read_description(self, value: Any) -> CaptionerDescription:
        return CaptionerDescription.from_json(value)


class SpeechClient(ModelClient[SpeechDescription]):
    """A speech model on one or several servers. Use it as an asynchronous context manager."""

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
            options: Language, task and word times; None for the model's own settings.
            permit: A permit from `permit`, which the caller gives back; None to wait for one.

        Returns:
            For each of the N chunks, its transcript, or the error because of which it has none.

        Raises:
            NothingAnswered: A second of silence was not answered either.
            ServerError: No server can be used, or a response is malformed.
        """
        settings: dict[Any, Any] = {"sample_rate": sample_rate, **(options.to_json() if options else {})}

        def pack(chunks: Sequence[SampleArray]) -> list[wire.Segment]:
            return wire.pack({**settings, "chunks": list(chunks)})

        silence: Sequence[SampleArray] = [np.zeros(sample_rate, np.int16)]
        operation = _Operation(pack, partial(_parse_transcripts, self._languages(options)), silence, _SILENCE, permit)
        return await self._run(chunks, operation)

    def _languages(self, options: TranscriptionOptions | None) -> frozenset[str | None] | None:
        """Return what an answer may name as its language; None for anything, before `describe`."""
        known = self._balancer.description
        asked = options.language if options else None
        return frozenset({*known.languages, known.language, asked, None}) if known else None

    def _read_description(self, value: Any) -> SpeechDescription:
        return SpeechDescription.from_json(value)


class ClipClient(ModelClient[ClipModelDescription]):
    """A clip model on one or several servers. Use it as an asynchronous context manager."""

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
        description = self._balancer.description
        size = description.budget.frame_size(4, 224, 224) if description else InputSize(224, 224)
        black = Clip(np.zeros((4, size.height, size.width, 3), np.uint8), [0.0, 0.5, 1.0, 1.5])
        harmless: Sequence[Clip] = [black]
        return await self._run(clips, _Operation(_pack_clips, _parse_descriptions, harmless, "a black clip", permit))

    def _read_description(self, value: Any) -> ClipModelDescription:
        return ClipModelDescription.from_json(value)


def _pack_frames(frames: FrameArray) -> list[wire.Segment]:
    return wire.pack({"frames": frames})


def _parse_captions(value: Any, count: int) -> list[FrameCaption]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f'expected a list of {count} captions with "text" and "avg_logprob"')
    return [FrameCaption.from_json(caption) for caption in value]


def _pack_clips(clips: Sequence[Clip]) -> list[wire.Segment]:
    trees: list[Any] = [clip.to_wire() for clip in clips]
    return wire.pack({"clips": trees})


def _parse_descriptions(value: Any, count: int) -> list[ClipDescription]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"expected a list of {count} descriptions")
    return [ClipDescription.from_json(description) for description in value]


def _parse_transcripts(languages: Collection[str | None] | None, value: Any, count: int) -> list[ChunkTranscript]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"expected a list of {count} transcripts")
    transcripts = [ChunkTranscript.from_json(transcript) for transcript in value]
    for transcript in transcripts:
        if languages is not None and transcript.language not in languages:
            raise ValueError(f"language: expected one that the model has described, not {brief(transcript.language)}")
    return transcripts
