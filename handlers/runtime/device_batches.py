"""Runs the items of several requests through a model in batches that suit the device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch

from reelscribe.errors import OutOfDeviceMemory
from runtime.metrics import Counters

logger = logging.getLogger(__name__)

Items = Any
"""The items of one request, or a slice of them: a list, or an array with the items along its first axis."""

SubmitBatch = Callable[[list[Items]], Any]
"""Starts to compute a batch, given as slices of requests, and returns a handle for `CollectBatch`.

With a second stage in another process, it returns while that stage still computes earlier batches.
"""

CollectBatch = Callable[[Any], list[Any]]
"""Waits for the results of a submitted batch, and returns them in the order of its items."""

Place = tuple[int, int]
"""Where an item comes from: the index of its request, and its index in that request."""


class DeviceBatches:
    """Joins and splits requests into device batches of up to `size` items.

    When the device runs out of memory, the batch runs again in two halves. If both fit, `size` becomes that of a half.
    If a single item does not fit, only its request fails.

    Attributes:
        size: The most items of a device batch.
    """

    def __init__(
        self,
        collect: CollectBatch,
        size: int,
        *,
        submit: SubmitBatch = list,
        in_flight: int = 1,
        item: str = "item",
        length: Callable[[Any], int] | None = None,
        most_padding: float = 1.0,
        counters: Counters | None = None,
    ) -> None:
        """Set up batches for one model.

        Args:
            collect: Returns the results of a submitted batch.
            size: The most items of a device batch.
            submit: Starts a batch. By default it does nothing, and `collect` gets the list of slices itself.
            in_flight: The most batches that are submitted and not yet collected.
            item: What messages call an item, in the singular.
            length: The length of an item. If given, the longest items run first, next to items of similar length.
            most_padding: Limit (0 to 1) for the part of a batch that is padding, if items are padded to the longest.
            counters: Counts batches, items and device time, including those of batches that did not fit.
        """
        self._collect = collect
        self._item = item
        self._length = length
        self._most_padding = most_padding
        self._counters = counters or Counters()
        self._submit = submit
        self._in_flight = in_flight
        self.size = size

    def map(self, requests: Sequence[Items]) -> list[list[Any] | OutOfDeviceMemory]:
        """Run all items of all requests through the model.

        Args:
            requests: The items of each request.

        Returns:
            For each request, either the results of its items in their order, or an OutOfDeviceMemory.

        Raises:
            Exception: Whatever `submit` or `collect` raises, other than running out of memory. The batches in flight
                are collected first.
        """
        results: list[list[Any]] = [[None] * len(request) for request in requests]
        failed: dict[int, OutOfDeviceMemory] = {}
        waiting = deque(self._in_order(requests))
        in_flight: deque[tuple[list[Place], Any]] = deque()
        try:
            while waiting or in_flight:
                while waiting and len(in_flight) < self._in_flight:
                    batch = [waiting.popleft() for _ in range(self._next_size(requests, waiting))]
                    in_flight.append((batch, self._submit_batch(requests, batch)))
                batch, pending = in_flight.popleft()
                for (i, k), result in zip(batch, self._collect_batch(requests, batch, pending), strict=True):
                    if result is None and i not in failed:
                        failed[i] = self._does_not_fit()
                        waiting = deque(place for place in waiting if place[0] != i)
                    results[i][k] = result
        finally:
            self._discard(pending for _, pending in in_flight)
        return [failed.get(i, results[i]) for i in range(len(requests))]

    def _in_order(self, requests: Sequence[Items]) -> list[Place]:
        """All items, in the order in which they run."""
        places = [(i, k) for i, request in enumerate(requests) for k in range(len(request))]
        length = self._length
        if length is not None:
            places.sort(key=lambda place: -length(requests[place[0]][place[1]]))
        return places

    def _next_size(self, requests: Sequence[Items], waiting: Sequence[Place]) -> int:
        """The number of items of the next batch, which are the first of `waiting`."""
        most = min(self.size, len(waiting))
        length = self._length
        if length is None or self._most_padding >= 1:
            return most
        lengths = [length(requests[i][k]) for i, k in islice(waiting, most)]
        # If no item is shorter than this, no more than that part of all is padding.
        shortest = (1 - self._most_padding) * lengths[0]
        return next((k for k, each in enumerate(lengths) if each < shortest), most)

    def _submit_batch(self, requests: Sequence[Items], batch: list[Place]) -> Any:
        """The handle of a submitted batch, or None if it did not fit."""
        self._counters.add("device_batches")
        self._counters.add("device_items", len(batch))
        return self._unless_out_of_memory(self._submit, _slices(requests, batch))

    def _collect_batch(self, requests: Sequence[Items], batch: list[Place], pending: Any) -> list[Any]:
        """A result for each item of a submitted batch; None for an item that does not fit even alone."""
        results = None if pending is None else self._unless_out_of_memory(self._collect, pending)
        if results is not None:
            return list(results)
        if len(batch) == 1:
            return [None]
        half = (len(batch) + 1) // 2
        results = [
            result
            for part in (batch[:half], batch[half:])
            for result in self._collect_batch(requests, part, self._submit_batch(requests, part))
        ]
        if None not in results and half < self.size:
            self.size = half
            logger.warning("out of device memory at %d %ss; device_batch is now %d", len(batch), self._item, half)
        return results

    def _discard(self, pending_batches: Iterable[Any]) -> None:
        """Collect the other batches of a failed call; otherwise, the next call would have to wait for them."""
        for pending in pending_batches:
            try:
                if pending is not None:
                    self._collect(pending)
            except Exception:  # the call already raises its first error
                logger.exception("another %s batch of a failed call failed too", self._item)

    def _unless_out_of_memory(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """What `step` returns, or None if the device has too little memory for it."""
        try:
            with self._counters.timed("device_seconds"):
                return step(argument)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # The traceback refers to the batch's tensors, so their memory could not be freed.
            error.__traceback__ = None
        torch.cuda.empty_cache()
        return None

    def _does_not_fit(self) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(
            f"one {self._item} alone does not fit the device; send smaller ones or use a larger device"
        )


def _slices(requests: Sequence[Items], batch: list[Place]) -> list[Items]:
    """Return the items of `batch` in order, as few slices as possible. A slice of an array is a view."""
    slices: list[Items] = []
    first = 0
    for at in range(1, len(batch) + 1):
        (i, k), (_, start) = batch[at - 1], batch[first]
        if at == len(batch) or batch[at] != (i, k + 1):
            slices.append(requests[i][start : k + 1])
            first = at
    return slices


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device, CPU or GPU, has too little memory.

    CUDA has an exception class for that; torch's CPU allocator raises a RuntimeError that only its message identifies.
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return "DefaultCPUAllocator" in str(error) and "memory" in str(error)
