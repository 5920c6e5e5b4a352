"""Reads small videos through a pool of decode processes, and keeps all that comes."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frames import DecodedFrameBatch, OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from support.decoding import decode_processes
from support.patience import PATIENCE

SIZE = InputSize(64, 48)


def task_of(path: Path) -> VideoTask:
    return VideoTask(str(path), SIZE)


def new_pool(*, workers: int = 1, batches_held: int = 1) -> DecodePool:
    return DecodePool(workers, 5 * SIZE.nbytes, batches_held)


class Received:
    """What has come from the pool. Batches are released, and hold copies of their frames."""

    def __init__(self) -> None:
        self.opened: list[OpenedVideo] = []
        self.batches: list[DecodedFrameBatch] = []
        self.pids: list[int] = []
        """The processes that were running when each batch came."""

    async def take(self, *arguments, **options) -> "Received":
        """Like `_take`, but a deadlock ends the test."""
        return await asyncio.wait_for(self._take(*arguments, **options), PATIENCE)

    async def _take(self, pool, task, *spans, most=5, reuse=False, after_each=lambda batch: None) -> "Received":
        async with aclosing(pool.read(ReadFrames(task, most, reuse), spans or [Span()])) as batches:
            async for batch in batches:
                if isinstance(batch, OpenedVideo):
                    self.opened.append(batch)
                else:
                    self.pids += [process.pid for process in decode_processes()]
                    self.batches.append(replace(batch, frames=batch.frames.copy()))
                    batch.release()
                    after_each(batch)
        return self

    @property
    def ordinals(self) -> list[int]:
        return [ordinal for batch in self.batches for ordinal in range(batch.first, batch.stop)]

    @property
    def frames(self) -> np.ndarray:
        return np.concatenate([batch.frames for batch in self.batches])

    @property
    def levels(self) -> list[int]:
        """The grey levels of the frames, which tell them apart."""
        return [round(frame.mean()) for frame in self.frames]

    def outline(self) -> list[tuple]:
        """The batches without their frames, which show where they lie."""
        fields = ("first", "stop", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor")
        return [tuple(getattr(batch, field) for field in fields) for batch in self.batches]


async def decode_all(task: VideoTask, *spans: Span, most: int = 5, reuse: bool = False) -> Received:
    async with new_pool() as pool:
        return await Received().take(pool, task, *spans, most=most, reuse=reuse)
