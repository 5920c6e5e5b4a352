"""Frames of many requests run through a model in batches that suit the device, and come back request by request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from reelscribe.errors import OutOfDeviceMemory
from reelscribe.media import FrameArray

logger = logging.getLogger(__name__)

Captions = list[str]
Run = Callable[[list[FrameArray]], Captions]
"""Captions of all frames of some arrays, each (N, H, W, 3), in order."""


class DeviceBatches:
    """Joins and splits requests into batches of up to `size` frames.

    When the device runs out of memory, `size` is halved for good and the batch runs again in smaller ones.
    """

    def __init__(self, run: Run, size: int) -> None:
        self._run = run
        self.size = size

    def map(self, requests: Sequence[FrameArray]) -> list[Captions | OutOfDeviceMemory]:
        """The captions of each request, or why it has none. Requests are (N, H, W, 3), each of its own size."""
        results: list[Captions | OutOfDeviceMemory] = [[] for _ in requests]
        frames = [(i, k) for i, request in enumerate(requests) for k in range(len(request))]
        at = 0
        while at < len(frames):
            batch = frames[at : at + self.size]
            try:
                captions = self._run(_slices(requests, batch))
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                # The traceback holds the tensors that were too many.
                error.__traceback__ = None
                torch.cuda.empty_cache()
                if len(batch) > 1:
                    self.size = len(batch) // 2
                    logger.warning("out of device memory at %d frames; device_batch is now %d", len(batch), self.size)
                    continue
                self._give_up(results, requests, batch[0][0])
            else:
                for (i, _), caption in zip(batch, captions, strict=True):
                    result = results[i]
                    if isinstance(result, list):
                        result.append(caption)
            at += len(batch)
        return results

    @staticmethod
    def _give_up(results: list[Captions | OutOfDeviceMemory], requests: Sequence[FrameArray], i: int) -> None:
        height, width = requests[i].shape[1:3]
        results[i] = OutOfDeviceMemory(
            f"one frame of {width} x {height} does not fit the device; send smaller frames or use a larger device"
        )


def _slices(requests: Sequence[FrameArray], batch: list[tuple[int, int]]) -> list[FrameArray]:
    """The frames of `batch`, (request, frame) pairs in order, as one view for each request."""
    spans: dict[int, tuple[int, int]] = {}
    for i, k in batch:
        spans[i] = (spans.get(i, (k, k))[0], k + 1)
    return [requests[i][first:last] for i, (first, last) in spans.items()]


def _is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU's allocator raises a RuntimeError that only its words tell apart."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator" in str(error) and "memory" in str(error)
