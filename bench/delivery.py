"""A library of textured clips, delivered by the whole client to servers, and decoded alone: timed.

limits.py and scaling.py vary what is delivered to what.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import decord
import numpy as np

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.model import CaptionerDescription
from reelscribe.contract.source import Span
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, FrameReading
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import RequestRefused
from reelscribe.run.bulk import BulkRun, Captions, Summary
from reelscribe.run.options import CaptionOptions
from report import Spread
from resize import write_clip
from serving import FRAME, Serving

RESOLUTIONS = ((480, 270), (640, 360), (1280, 720), (1920, 1080))
PREBATCH = 32
"""Frames of a request."""


@dataclass(frozen=True)
class Delivered:
    """What a whole run did, and what it took."""

    files: int
    frames: int
    seconds: float
    """From its start, with no decode process there, to its end, with all records written."""
    between: float
    """Frames per second between the first answers and the last."""
    client_cpu_seconds: float
    """Of its process and the decode processes."""
    server_cpu_seconds: float
    """Of Java and the workers."""
    stall_longest_ms: int

    @property
    def per_second(self) -> float:
        """Frames, its start and its end included."""
        return self.frames / self.seconds

    @property
    def cores(self) -> float:
        """How many were busy on average."""
        return (self.client_cpu_seconds + self.server_cpu_seconds) / self.seconds

    @property
    def client_cpu_per_thousand(self) -> float:
        """Seconds for 1,000 frames."""
        return 1000 * self.client_cpu_seconds / self.frames

    @property
    def server_cpu_per_thousand(self) -> float:
        """Seconds for 1,000 frames."""
        return 1000 * self.server_cpu_seconds / self.frames


class TimedClient(CaptionClient):
    """Notes when each request was answered."""

    def __init__(self, servers: Sequence[Server], model: str) -> None:
        super().__init__(servers, model)
        self.answers: list[tuple[float, int]] = []
        """Time and number of frames."""
        self.workers = 1

    async def describe(self) -> CaptionerDescription:
        """As its parent does it."""
        description = await super().describe()
        self.workers = description.workers
        return description

    async def caption(self, frames: FrameArray) -> list[str | RequestRefused]:
        """As its parent does it."""
        captions = await super().caption(frames)
        self.answers.append((time.monotonic(), len(captions)))
        return captions


def rate_after_start(events: Sequence[tuple[float, int]], at_once: int) -> float:
    """What comes per second after the first of two or more events, each of them a time and a number.

    Those that work `at_once` begin together, so their first events come together, too: the last of them is the first.
    """
    start = max(1, min(at_once, len(events) - 1))
    return sum(count for _, count in events[start:]) / (events[-1][0] - events[start - 1][0])


def make_sources(folder: Path, width: int, height: int, clip_frames: int, frames: int) -> Path:
    """So many frames, in several files: the same clip with other bytes at its end."""
    folder.mkdir(parents=True)
    write_clip(folder / "clip-0.mp4", width, height, clip_frames)
    clip = (folder / "clip-0.mp4").read_bytes()
    for k in range(1, frames // clip_frames):
        (folder / f"clip-{k}.mp4").write_bytes(clip + k.to_bytes(8, "big") + b"free")
    return folder


def deliver(servings: Sequence[Serving], paths: Sequence[Path], out: Path, options: CaptionOptions) -> Delivered:
    """Caption the files into the folder `out`, in which there is nothing yet."""
    client_before, server_before = _client_cpu_seconds(), _server_cpu_seconds(servings)
    start = time.monotonic()
    client, summary = asyncio.run(_run(servings, paths, out, options))
    seconds = time.monotonic() - start
    assert summary.failed == 0, f"{summary.failed} files failed; see {out}"
    return Delivered(
        files=len(paths),
        frames=summary.snapshot.frames,
        seconds=seconds,
        between=rate_after_start(client.answers, max(client.workers, options.decode_workers)),
        client_cpu_seconds=_client_cpu_seconds() - client_before,
        server_cpu_seconds=_server_cpu_seconds(servings) - server_before,
        stall_longest_ms=summary.snapshot.stall_longest_ms,
    )


@dataclass(frozen=True)
class Whole:
    """The same run again and again, for `report.take_turns`."""

    servings: Sequence[Serving]
    paths: Sequence[Path]
    options: CaptionOptions = field(default_factory=CaptionOptions)
    runs: list[Delivered] = field(default_factory=list)

    def __call__(self) -> float:
        """One more; frames per second between its answers."""
        with tempfile.TemporaryDirectory() as out:
            self.runs.append(deliver(self.servings, self.paths, Path(out), self.options))
        return self.runs[-1].between

    def spread(self, figure: Callable[[Delivered], float]) -> Spread:
        """Of one figure of all runs."""
        return Spread(tuple(map(figure, self.runs)))


def decode_alone(paths: Sequence[Path], options: CaptionOptions) -> float:
    """Frames per second that the decode processes give, after their first parts, when nothing is done with them."""
    events: list[tuple[float, int]] = []

    async def read_all() -> None:
        async with DecodePool(options.decode_workers, PREBATCH * FRAME.nbytes, 4) as pool:

            async def read(path: Path) -> None:
                task = VideoTask(str(path), FRAME, resize=options.resize)
                parts = pool.read(FrameReading(task, PREBATCH), [Span()])
                async with aclosing(parts):
                    async for part in parts:
                        if isinstance(part, DecodedFrameBatch):
                            events.append((time.monotonic(), len(part.frames)))
                            part.release()

            await asyncio.gather(*map(read, paths))

    asyncio.run(read_all())
    return rate_after_start(events, options.decode_workers)


def decord_alone(paths: Sequence[Path], options: CaptionOptions) -> float:
    """Frames per second that decord gives at the model's size, after its first; a worker is a reader of one thread."""
    events: list[tuple[float, int]] = []

    def read(path: Path) -> None:
        reader = decord.VideoReader(str(path), width=FRAME.width, height=FRAME.height, num_threads=1)
        for _ in range(len(reader)):
            reader.next().asnumpy()
            events.append((time.monotonic(), 1))

    with ThreadPoolExecutor(options.decode_workers) as readers:  # it computes outside of Python's lock
        list(readers.map(read, paths))
    return rate_after_start(events, options.decode_workers)


async def transport_alone(serving: Serving, in_flight: int, seconds: float) -> float:
    """Frames per second of full requests, `in_flight` at a time, to a model that takes no time."""
    frames = np.zeros((PREBATCH, FRAME.height, FRAME.width, 3), np.uint8)
    async with TimedClient([Server(serving.url, serving.token)], serving.model) as client:
        end = time.monotonic() + seconds

        async def keep_sending() -> None:
            while time.monotonic() < end:
                await client.caption(frames)

        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        return rate_after_start(client.answers, in_flight)


async def _run(
    servings: Sequence[Serving], paths: Sequence[Path], out: Path, options: CaptionOptions
) -> tuple[TimedClient, Summary]:
    servers = [Server(serving.url, serving.token) for serving in servings]
    async with TimedClient(servers, servings[0].model) as client:
        return client, await BulkRun([Captions(client, options)], out).run([*map(str, paths)])


def _client_cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _server_cpu_seconds(servings: Sequence[Serving]) -> float:
    times = [process.cpu_times() for serving in servings for process in serving.instance.processes()]
    return sum(time.user + time.system for time in times)
