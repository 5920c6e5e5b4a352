"""Frames of many requests run through a model in batches that suit the device, and come back request by request."""

from __future__ import annotations

import logging
from collections import deque
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

    When the device runs out of memory, the batch runs again in halves; if both fit, it was the number of frames that
    was too large, and `size` stays at the half. If one frame alone does not fit, its request is given up.
    """

    def __init__(self, run: Run, size: int) -> None:
        self._run = run
        self.size = size

    def map(self, requests: Sequence[FrameArray]) -> list[Captions | OutOfDeviceMemory]:
        """The captions of each request, or why it has none. Requests are (N, H, W, 3), each of its own size."""
        captions: list[Captions] = [[] for _ in requests]
        given_up: dict[int, OutOfDeviceMemory] = {}
        waiting = deque((i, k) for i, request in enumerate(requests) for k in range(len(request)))
        while waiting:
            batch = [waiting.popleft() for _ in range(min(self.size, len(waiting)))]
            for (i, _), caption in zip(batch, self._halving(requests, batch), strict=True):
                if caption is None and i not in given_up:
                    given_up[i] = _does_not_fit(requests[i])
                    waiting = deque(frame for frame in waiting if frame[0] != i)
                elif caption is not None:
                    captions[i].append(caption)
        return [given_up.get(i, captions[i]) for i in range(len(requests))]

    def _halving(self, requests: Sequence[FrameArray], batch: list[tuple[int, int]]) -> list[str | None]:
        """A caption for each frame of the batch, None for one that does not fit even alone."""
        try:
            return list(self._run(_slices(requests, batch)))
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            # The traceback holds the tensors that were too many.
            error.__traceback__ = None
        torch.cuda.empty_cache()
        if len(batch) == 1:
            return [None]
        half = (len(batch) + 1) // 2
        captions = self._halving(requests, batch[:half]) + self._halving(requests, batch[half:])
        if None not in captions and half < self.size:
            self.size = half
            logger.warning("out of device memory at %d frames; device_batch is now %d", len(batch), half)
        return captions


def _does_not_fit(request: FrameArray) -> OutOfDeviceMemory:
    height, width = request.shape[1:3]
    return OutOfDeviceMemory(
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
