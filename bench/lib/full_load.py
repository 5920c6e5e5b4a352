"""Keeps servers busy with requests of black frames, as fast as the client's own limit allows, and times the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reelscribe.client.endpoint import Answer, Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.shared_memory import SharedMemory
from servers.torchserve import Serving

CALL_SECONDS = 0.05
"""Seconds within which the answers of a call come."""


@dataclass(frozen=True)
class Load:
    """Figures of some time under full load."""

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


async def load(serving: Serving, size: InputSize, items: int, requests: int, *, shared: bool = False) -> Load:
    """Send requests, all of which wait for the client's permits from the start.

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
) -> Load:
    items = sum(answer.items for _, answer in answers)
    calls = sum(answer.items / answer.call_items for _, answer in answers)
    ended = max(when for when, _ in answers)
    return Load(
        per_second=items / (ended - began),
        call_items=items / calls,
        steady_rate=_steady_rate(sorted((when, answer.items) for when, answer in answers), limit, sent[-1]),
        busy=sum(answer.compute_seconds for _, answer in answers) / workers / (ended - began),
        handler_seconds=sum(answer.compute_seconds for _, answer in answers) / calls,
        tail_seconds=ended - sent[-1],
        limit=limit,
        retries=retries,
    )
