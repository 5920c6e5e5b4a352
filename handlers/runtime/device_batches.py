"""Items of many requests run through a model in batches that suit the device, and come back request by request."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from reelscribe.errors import OutOfDeviceMemory
from runtime.metrics import Tally

logger = logging.getLogger(__name__)

Items = Any
"""What one request brings, or a slice of it: a list of items, or an array whose first axis they are."""

Run = Callable[[Any], list[Any]]
"""The results of all items of some slices, in order; made of the slices, or of what a `Begin` made of them."""

Begin = Callable[[list[Items]], Any]
"""What can be done of a batch while the one before it still runs elsewhere; it returns what `Run` goes on with."""

Place = tuple[int, int]
"""An item's request and its place there."""


class DeviceBatches:
    """Joins and splits requests into batches of up to `size` items.

    When the device runs out of memory, the batch runs again in halves; if both fit, it was the number of items that
    was too large, and `size` stays at the half. If one item alone does not fit, its request is given up.
    """

    def __init__(
        self,
        run: Run,
        size: int,
        *,
        item: str = "item",
        length: Callable[[Any], int] | None = None,
        tally: Tally | None = None,
        begin: Begin = list,
        in_flight: int = 1,
    ) -> None:
        """`item` is what messages call one. By `length`, the longest run first, with those of about the same length.

        `tally` counts batches, their items and the time they take, those that did not fit included. Up to `in_flight`
        batches have gone through `begin` when the first of them goes on through `run`.
        """
        self._run = run
        self._item = item
        self._length = length
        self._tally = tally or Tally()
        self._begin = begin
        self._in_flight = in_flight
        self.size = size

    def map(self, requests: Sequence[Items]) -> list[list[Any] | OutOfDeviceMemory]:
        """The results of each request's items, in their order, or why it has none.

        What `begin` or `run` raise, other than for want of memory, is raised when nothing of this call runs any more.
        """
        results: list[list[Any]] = [[None] * len(request) for request in requests]
        given_up: dict[int, OutOfDeviceMemory] = {}
        waiting = deque(self._in_order(requests))
        begun: deque[tuple[list[Place], Any]] = deque()
        try:
            while waiting or begun:
                while waiting and len(begun) < self._in_flight:
                    batch = [waiting.popleft() for _ in range(min(self.size, len(waiting)))]
                    begun.append((batch, self._started(requests, batch)))
                batch, started = begun.popleft()
                for (i, k), result in zip(batch, self._finished(requests, batch, started), strict=True):
                    if result is None and i not in given_up:
                        given_up[i] = self._does_not_fit()
                        waiting = deque(place for place in waiting if place[0] != i)
                    results[i][k] = result
        finally:
            self._drop(started for _, started in begun)
        return [given_up.get(i, results[i]) for i in range(len(requests))]

    def _in_order(self, requests: Sequence[Items]) -> list[Place]:
        places = [(i, k) for i, request in enumerate(requests) for k in range(len(request))]
        length = self._length
        if length is not None:
            places.sort(key=lambda place: -length(requests[place[0]][place[1]]))
        return places

    def _started(self, requests: Sequence[Items], batch: list[Place]) -> Any:
        """What `begin` makes of a batch, None if it does not fit."""
        self._tally.add("device_batches")
        self._tally.add("device_items", len(batch))
        return self._attempt(self._begin, _slices(requests, batch))

    def _finished(self, requests: Sequence[Items], batch: list[Place], started: Any) -> list[Any]:
        """A result for each item of a batch that was started, None for one that does not fit even alone."""
        results = None if started is None else self._attempt(self._run, started)
        if results is not None:
            return list(results)
        if len(batch) == 1:
            return [None]
        half = (len(batch) + 1) // 2
        results = [
            result
            for part in (batch[:half], batch[half:])
            for result in self._finished(requests, part, self._started(requests, part))
        ]
        if None not in results and half < self.size:
            self.size = half
            logger.warning("out of device memory at %d %ss; device_batch is now %d", len(batch), self._item, half)
        return results

    def _drop(self, begun: Iterable[Any]) -> None:
        """Wait for batches whose results nobody wants: they would keep those of the next call waiting."""
        for started in begun:
            try:
                if started is not None:
                    self._run(started)
            except Exception:  # of the errors of a call, its first is the one that is raised
                logger.exception("one more %s batch of a call that failed", self._item)

    def _attempt(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """What a step makes; None if the device has too little memory for it."""
        try:
            with self._tally.timed("device_seconds"):
                return step(argument)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # The traceback holds the tensors that were too many.
            error.__traceback__ = None
        torch.cuda.empty_cache()
        return None

    def _does_not_fit(self) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(
            f"one {self._item} alone does not fit the device; send smaller ones or use a larger device"
        )


def _slices(requests: Sequence[Items], batch: list[Place]) -> list[Items]:
    """The items of `batch` in order, as few slices as possible: a slice of an array is a view."""
    slices: list[Items] = []
    first = 0
    for at in range(1, len(batch) + 1):
        (i, k), (_, start) = batch[at - 1], batch[first]
        if at == len(batch) or batch[at] != (i, k + 1):
            slices.append(requests[i][start : k + 1])
            first = at
    return slices


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU's allocator raises a RuntimeError that only its words tell apart."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator" in str(error) and "memory" in str(error)
