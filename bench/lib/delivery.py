"""Times whole caption runs, and their parts by themselves: decoding and transport.

limits.py and scaling.py use it with different files, servers and options.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lib.report import Spread
from reelscribe._cores import LEAST_PROCESSES, usable_cores
from reelscribe.client.endpoint import Answer, Server
from reelscribe.client.in_flight import Permit
from reelscribe.client.models import CaptionClient
from reelscribe.client.operations import ItemAnswer, Items, Operation
from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.source import Span
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frames import DecodedFrameBatch, ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.medium import Options
from servers.emulated import FRAME
from servers.torchserve import Serving

RESOLUTIONS = ((480, 270), (640, 360), (1280, 720), (1920, 1080))
FRAMES_PER_REQUEST = 32
CALL_SECONDS = 0.05
"""Seconds within which the answers of a call come."""


@dataclass(frozen=True)
class Delivered:
    """Figures of one whole run."""

    files: int
    frames: int
    requests: int
    """Number of requests that were answered."""
    seconds: float
    """From the start of the run, before any decode process, to its end, when all records are written."""
    steady_rate: float
    """Frames per second from the first answers to the last."""
    client_cpu_seconds: float
    """CPU seconds of the client's process and the decode processes."""
    server_cpu_seconds: float
    """CPU seconds of Java and the workers."""

    @property
    def per_second(self) -> float:
        """Frames per second of the whole run, its start and its end included."""
        return self.frames / self.seconds

    @property
    def cores(self) -> float:
        """How many cores were busy on average."""
        return (self.client_cpu_seconds + self.server_cpu_seconds) / self.seconds

    @property
    def client_cpu_per_thousand(self) -> float:
        """CPU seconds of the client for 1,000 frames."""
        return 1000 * self.client_cpu_seconds / self.frames

    @property
    def server_cpu_per_thousand(self) -> float:
        """CPU seconds of the server for 1,000 frames."""
        return 1000 * self.server_cpu_seconds / self.frames


class TimedClient(CaptionClient):
    """A client that records when each request was answered."""

    def __init__(self, servers: Sequence[Server], model: str) -> None:
        super().__init__(servers, model)
        self.answers: list[tuple[float, int]] = []
        """Time and number of frames of each answer."""

    async def request(
        self, operation: Operation[Items, ItemAnswer], items: Items, permit: Permit | None = None
    ) -> list[ItemAnswer | RequestRefused]:
        """Return the answers of a request, and record when they came."""
        answers = await super().request(operation, items, permit)
        self.answers.append((time.monotonic(), len(answers)))
        return answers


def rate_after_start(events: Sequence[tuple[float, int]], at_once: int) -> float:
    """Items per second after the first events.

    `at_once` devices or processes begin together, so their first events also come together. The rate is measured from
    the last of these first events. Two devices that each process 32 frames a second:

    >>> rate_after_start([(10.0, 32), (10.0, 32), (11.0, 32), (11.0, 32), (12.0, 32), (12.0, 32)], at_once=2)
    64.0

    A short run has a rate as soon as there are two events:

    >>> rate_after_start([(1.0, 32), (3.0, 8)], at_once=4)
    4.0

    Args:
        events: Times in seconds and the number of items that came then; two or more.
        at_once: How many devices or processes work at the same time.
    """
    start = max(1, min(at_once, len(events) - 1))
    return sum(count for _, count in events[start:]) / (events[-1][0] - events[start - 1][0])


def deliver(servings: Sequence[Serving], paths: Sequence[Path | str], out: Path, options: CaptionOptions) -> Delivered:
    """Caption the files, write the records to the empty folder `out`, and return the figures of the run."""
    client_before, server_before = client_cpu_seconds(), _server_cpu_seconds(servings)
    start = time.monotonic()
    client, summary = asyncio.run(_run(servings, paths, out, options))
    seconds = time.monotonic() - start
    assert summary.failed == 0, f"{summary.failed} files failed; see {out}"
    return Delivered(
        files=len(paths),
        frames=summary.snapshot.frames,
        requests=len(client.answers),
        seconds=seconds,
        steady_rate=rate_after_start(client.answers, max(client.workers, decode_processes(options))),
        client_cpu_seconds=client_cpu_seconds() - client_before,
        server_cpu_seconds=_server_cpu_seconds(servings) - server_before,
    )


EVERY_FRAME = CaptionOptions(Sampling(every=1))


@dataclass(frozen=True)
class WholeRun:
    """A run of the same files to the same servers, which `report.take_turns` repeats."""

    servings: Sequence[Serving]
    paths: Sequence[Path | str]
    options: CaptionOptions = EVERY_FRAME
    runs: list[Delivered] = field(default_factory=list)

    def __call__(self) -> float:
        """Run it once more; returns the frames per second from its first answers to the last."""
        with tempfile.TemporaryDirectory() as out:
            self.runs.append(deliver(self.servings, self.paths, Path(out), self.options))
        return self.runs[-1].steady_rate

    def spread(self, figure: Callable[[Delivered], float]) -> Spread:
        """One figure of all runs."""
        return Spread(tuple(map(figure, self.runs)))


def decode_processes(options: Options) -> int:
    """Number of decode processes for these options."""
    return options.workers or max(LEAST_PROCESSES, usable_cores())


def decode_alone(paths: Sequence[Path], options: CaptionOptions) -> float:
    """Frames per second of the decode processes after their first batches, when their frames are discarded."""
    events: list[tuple[float, int]] = []

    async def read_all() -> None:
        async with DecodePool(decode_processes(options), FRAMES_PER_REQUEST * FRAME.nbytes, 4) as pool:

            async def read(path: Path) -> None:
                task = VideoTask(str(path), FRAME, resize=options.resize, decoder=options.decoder)
                parts = pool.read(ReadFrames(task, FRAMES_PER_REQUEST), [Span()])
                async with aclosing(parts):
                    async for part in parts:
                        if isinstance(part, DecodedFrameBatch):
                            events.append((time.monotonic(), len(part.frames)))
                            part.release()

            await asyncio.gather(*map(read, paths))
            assert not pool.substituted, "the decoder cannot read the files"

    asyncio.run(read_all())
    return rate_after_start(events, decode_processes(options))


async def transport_alone(serving: Serving, in_flight: int, seconds: float) -> float:
    """Frames per second of full requests, `in_flight` at a time, to a model that takes no time."""
    frames = np.zeros((FRAMES_PER_REQUEST, FRAME.height, FRAME.width, 3), np.uint8)
    async with TimedClient([Server(serving.url, serving.token)], serving.model) as client:
        end = time.monotonic() + seconds

        async def keep_sending() -> None:
            while time.monotonic() < end:
                await client.caption(frames)

        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        return rate_after_start(client.answers, in_flight)


@dataclass(frozen=True)
class FullLoad:
    """Figures of some time in which servers were kept busy."""

    per_second: float
    """Items per second from the first request to the last answer."""
    steady_rate: float
    """The same, from when the first permits had been used until the last request was sent."""
    busy: float
    """Fraction of the time (0 to 1) between the first request and the last answer that workers spent in the handler."""
    call_items: float
    """Mean number of items of a call."""
    handler_seconds: float
    """Mean time of a call in the handler, in seconds."""
    tail_seconds: float
    """From when the last request was sent until the last answer, in seconds."""
    limit: int
    """Limit on the number of requests in flight at the end."""
    retries: int
    """Number of requests that were sent again."""


async def full_load(serving: Serving, size: InputSize, items: int, requests: int, *, shared: bool = False) -> FullLoad:
    """Keep a server busy with requests of black frames, as many at a time as the client's own limit allows.

    Args:
        serving: The server and the model.
        size: Size of the frames.
        items: Number of frames of a request.
        requests: Number of requests.
        shared: Whether the frames lie in shared memory, where a server on this machine reads them.
    """
    shape = (items, size.height, size.width, 3)
    memory = SharedMemory(int(np.prod(shape)))
    frames = np.ndarray(shape, np.uint8, memory.view)
    if not shared:
        frames = frames.copy()
    answers: list[tuple[float, Answer]] = []
    sent: list[float] = []
    async with CaptionClient([Server(serving.url, serving.token)], serving.model) as client:
        client.on_answer = lambda answer: answers.append((time.monotonic(), answer))
        await client.describe()
        client.expect_requests(items)
        with client.sharing(memory):
            began = time.monotonic()
            await asyncio.gather(*(_caption(client, frames, sent) for _ in range(requests)))
        limit, retries, workers = client.in_flight.limit, client.retries, client.workers
    memory.close()
    return _figures(began, sent, answers, limit, retries, workers)


async def _caption(client: CaptionClient, frames: FrameArray, sent: list[float]) -> None:
    with await client.permit() as permit:
        sent.append(time.monotonic())
        await client.caption(frames, permit)


def _steady_rate(events: Sequence[tuple[float, int]], limit: int, last_sent: float) -> float:
    """Return items per second, counted in whole calls, whose answers come together."""
    began = events[min(limit, len(events) // 2) - 1][0]
    items = sum(items for when, items in events if began + CALL_SECONDS < when <= last_sent + CALL_SECONDS)
    return items / max(last_sent - began, CALL_SECONDS)


def _figures(
    began: float, sent: Sequence[float], answers: Sequence[tuple[float, Answer]], limit: int, retries: int, workers: int
) -> FullLoad:
    items = sum(answer.items for _, answer in answers)
    calls = sum(answer.items / answer.call_items for _, answer in answers)
    ended = max(when for when, _ in answers)
    return FullLoad(
        per_second=items / (ended - began),
        call_items=items / calls,
        steady_rate=_steady_rate(sorted((when, answer.items) for when, answer in answers), limit, sent[-1]),
        busy=sum(answer.compute_seconds for _, answer in answers) / workers / (ended - began),
        handler_seconds=sum(answer.compute_seconds for _, answer in answers) / calls,
        tail_seconds=ended - sent[-1],
        limit=limit,
        retries=retries,
    )


async def _run(
    servings: Sequence[Serving], paths: Sequence[Path | str], out: Path, options: CaptionOptions
) -> tuple[TimedClient, Summary]:
    servers = [Server(serving.url, serving.token) for serving in servings]
    async with TimedClient(servers, servings[0].model) as client:
        return client, await Run([CaptionTrack(client, options)], out).run([*map(str, paths)])


def client_cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _server_cpu_seconds(servings: Sequence[Serving]) -> float:
    times = [process.cpu_times() for serving in servings for process in serving.instance.processes()]
    return sum(time.user + time.system for time in times)
