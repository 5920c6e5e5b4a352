"""Runs the items of several requests through a model in batches that suit the device."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Any

import torch

from reelscribe.errors import OutOfDeviceMemory, RequestError, RequestFailed, StageFailed, StageLost, StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.metrics import Counters

Items = Any
"""The items of one request, or a slice of them: a list, or an array with the items along its first axis."""

Place = tuple[int, int]
"""Where an item comes from: the index of its request, and its index in that request."""

logger = logging.getLogger(__name__)

_CUDA_FAILED = re.compile(r"(second stage: \w+: )?CUDA (error|failed)")

SubmitBatch = Callable[[list[Items]], Any]
"""Starts to compute a batch, given as slices of requests, and returns a handle for `CollectBatch`.

With a second stage in another process, it returns while that stage still computes earlier batches.
"""

CollectBatch = Callable[[Any], list[Any]]
"""Waits for the results of a submitted batch, and returns them in the order of its items."""


class CallItems:
    """The items of all requests of a call, on their way from reading through the device to their results.

    Attributes:
        waiting: The items that have been read and not yet taken, in the order in which they are to run.
    """

    def __init__(self, requests: Sequence[Items | Future[Items]], length: Callable[[Any], int] | None) -> None:
        """Begin a call.

        Args:
            requests: The items of each request, or a future of them.
            length: The length of an item. If given, the longest items run first, next to items of similar length.
        """
        self.waiting: deque[Place] = deque()
        self._length = length
        self._items: list[Items] = [[]] * len(requests)
        self._results: list[list[Any]] = [[]] * len(requests)
        self._lengths: dict[Place, float] = {}
        self._failed: dict[int, RequestError] = {}
        self._reading: dict[Future[Items], int] = {}
        for i, request in enumerate(requests):
            if isinstance(request, Future):
                self._reading[request] = i
            else:
                self._add(i, request)
        self._sort()

    @property
    def reading(self) -> bool:
        """True while requests are still being read."""
        return bool(self._reading)

    def __getitem__(self, place: Place) -> Any:
        """The item at a place."""
        i, k = place
        return self._items[i][k]

    def receive(self, *, block: bool = False) -> None:
        """Have the items wait that have been read since the last time.

        Args:
            block: Whether to wait until another request has been read, if none has.
        """
        if not self._reading:
            return
        done, _ = wait(self._reading, None if block else 0, FIRST_COMPLETED)
        for future in [future for future in self._reading if future in done]:
            self._add(self._reading.pop(future), future)
        if done:
            self._sort()

    def cancel(self) -> None:
        """Drop the requests whose reading has not begun; only a call that failed still has any."""
        for future in self._reading:
            future.cancel()

    def take(self, count: int) -> list[Place]:
        """Take the first items that wait."""
        return [self.waiting.popleft() for _ in range(count)]

    def slices(self, places: list[Place]) -> list[Items]:
        """Return these items in order, as few slices as possible. A slice of an array is a view."""
        slices: list[Items] = []
        first = 0
        for at in range(1, len(places) + 1):
            (i, k), (_, start) = places[at - 1], places[first]
            if at == len(places) or places[at] != (i, k + 1):
                slices.append(self._items[i][start : k + 1])
                first = at
        return slices

    def finish(self, place: Place, result: Any) -> None:
        """Keep the result of an item."""
        i, k = place
        self._results[i][k] = result

    def fail(self, place: Place, error: RequestError) -> None:
        """Keep the error of an item as the result of its whole request, whose other items need not run."""
        self._failed.setdefault(place[0], error)
        self.waiting = deque(other for other in self.waiting if other[0] != place[0])

    def results(self) -> list[list[Any] | RequestError]:
        """For each request, the results of its items in their order, or its error."""
        return [self._failed.get(i, results) for i, results in enumerate(self._results)]

    def length(self, place: Place) -> float:
        """The length of the item at a place; only where items have one."""
        return self._lengths[place]

    def _add(self, i: int, request: Items | Future[Items]) -> None:
        """Have the items of a request wait; what goes wrong with them is the result of that request."""
        try:
            items = request.result() if isinstance(request, Future) else request
            places = [(i, k) for k in range(len(items))]
            if self._length is not None:
                self._lengths.update((place, self._length(items[place[1]])) for place in places)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is that of this request
            self._failed[i] = own_error(error)
            return
        self._items[i] = items
        self._results[i] = [None] * len(items)
        self.waiting.extend(places)

    def _sort(self) -> None:
        if self._length is not None:
            self.waiting = deque(sorted(self.waiting, key=lambda place: -self.length(place)))


class DeviceBatches:
    """Joins and splits requests into device batches of up to `size` items.

    When the device runs out of memory, the batch runs again in two halves. If both fit, `size` becomes that of a half.
    If a single item does not fit, only its request fails. When a batch fails for any other reason, the items of each
    request run again by themselves, once: whatever one request brings, it does not cost those that were joined with it.

    Attributes:
        size: The most items of a device batch.
        steps: The compiled steps of the model, if it has some.
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
        steps: CompiledSteps | None = None,
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
            steps: The compiled steps of the model, whose caches are freed when the device runs out of memory.
        """
        self.steps = steps
        self._collect = collect
        self._item = item
        self._length = length
        self._most_padding = most_padding
        self._counters = counters or Counters()
        self._submit = submit
        self._in_flight = in_flight
        self.size = size

    def map(self, requests: Sequence[Items | Future[Items]]) -> list[list[Any] | RequestError]:
        """Run all items of all requests through the model.

        While requests are still being read, batches of those that have been read run as soon as they are full.

        Args:
            requests: The items of each request, or a future of them.

        Returns:
            For each request, either the results of its items in their order, or its error: what its future, `submit`
            or `collect` raised, as `own_error` returns it.

        Raises:
            Exception: What `submit` or `collect` raised says that the device or the other stage is lost. The batches in
                flight are collected first.
        """
        call = CallItems(requests, self._length)
        in_flight: deque[tuple[list[Place], Any]] = deque()
        try:
            while call.waiting or call.reading or in_flight:
                while len(in_flight) < self._in_flight and self._is_batch_ready(call, computing=bool(in_flight)):
                    batch = call.take(self._next_size(call))
                    in_flight.append((batch, self._submit_batch(call, batch)))
                if in_flight:
                    batch, pending = in_flight.popleft()
                    for place, result in zip(batch, self._collect_batch(call, batch, pending), strict=True):
                        if isinstance(result, RequestError):
                            call.fail(place, result)
                        else:
                            call.finish(place, result)
        finally:
            call.cancel()
            self._discard(pending for _, pending in in_flight)
        return call.results()

    def warm_up(self, items: Callable[[int], Items] | None) -> None:
        """Compile the steps of the model for all sizes of batches, so that no request waits for that.

        Args:
            items: Makes a number of items; None of a model without such steps.

        Raises:
            StartupError: The model has no steps that can be compiled.
            RequestError: It failed.
        """
        steps = self.steps
        if steps and items:
            for length in reversed(steps.lengths):
                rows, steps.warming_up = self.size, length
                while rows:
                    (result,) = self.map([items(rows)])
                    if isinstance(result, RequestError):
                        raise result
                    rows = min(self.size, 1 << (rows - 1).bit_length() >> 1)  # the next smaller power of two
            steps.warming_up = None
        if not (steps and steps.caches):
            raise StartupError(
                "YAML, handler, compile: expected a model that generates a limited number of tokens (max_new_tokens)"
                " without beams, got none; build the archive without --compile"
            )
        logger.info("compiled steps for these rows and tokens: %s", sorted(steps.caches))

    def _is_batch_ready(self, call: CallItems, *, computing: bool) -> bool:
        """Return whether a full batch or the last one can be submitted; wait for it unless `computing`."""
        call.receive()
        while call.reading and len(call.waiting) < self.size and not computing:
            with self._counters.timed("read_wait_seconds"):
                call.receive(block=True)
        return len(call.waiting) >= (self.size if call.reading else 1)

    def _next_size(self, call: CallItems) -> int:
        """The number of items of the next batch, which are the first that wait."""
        most = min(self.size, len(call.waiting))
        if self._length is None or self._most_padding >= 1:
            return most
        lengths = [call.length(place) for place in islice(call.waiting, most)]
        # If no item is shorter than this, no more than that part of all is padding.
        shortest = (1 - self._most_padding) * lengths[0]
        return next((k for k, each in enumerate(lengths) if each < shortest), most)

    def _submit_batch(self, call: CallItems, batch: list[Place]) -> Any:
        """The handle of a submitted batch, or the error because of which it has none."""
        self._counters.add("device_batches")
        self._counters.add("device_items", len(batch))
        return self._attempt(self._submit, call.slices(batch))

    def _collect_batch(self, call: CallItems, batch: list[Place], pending: Any) -> list[Any]:
        """A result for each item of a submitted batch, or the error that is that of its request."""
        results = pending if isinstance(pending, RequestError) else self._attempt(self._collect, pending)
        if not isinstance(results, RequestError):
            return list(results)
        half = (len(batch) + 1) // 2
        too_large = isinstance(results, OutOfDeviceMemory)
        parts = [batch[:half], batch[half:]] if too_large else _by_request(batch)
        if len(batch) == 1 or len(parts) == 1:
            return [results] * len(batch)
        found: dict[Place, Any] = {}
        for part in parts:
            found.update(zip(part, self._collect_batch(call, part, self._submit_batch(call, part)), strict=True))
        if too_large and half < self.size and not any(isinstance(each, RequestError) for each in found.values()):
            self.size = half
            logger.warning("out of device memory at %d %ss; device_batch is now %d", len(batch), self._item, half)
        return [found[place] for place in batch]

    def _discard(self, pending_batches: Iterable[Any]) -> None:
        """Collect the other batches of a failed call; otherwise, the next call would have to wait for them."""
        for pending in pending_batches:
            try:
                if not isinstance(pending, RequestError):
                    self._collect(pending)
            except Exception:  # the call already raises its first error
                logger.exception("another %s batch of a failed call failed too", self._item)

    def _attempt(self, step: Callable[[Any], Any], argument: Any) -> Any:
        """Run a step, and return its result, or the error of the request if the batch is that of one alone."""
        try:
            with self._counters.timed("device_seconds"):
                return step(argument)
        except Exception as error:
            # The other stage restarts both processes. CUDA computes nothing any more after an error of its own.
            if isinstance(error, StageLost) or (_is_of_device(error) and not is_out_of_memory(error)):
                raise
            if is_out_of_memory(error):
                if self.steps:
                    self.steps.free()
                failure: RequestError = OutOfDeviceMemory(
                    f"one {self._item} alone does not fit the device; send smaller ones or use a larger device"
                )
            else:
                failure = own_error(error)
            # The traceback refers to the batch's tensors, so their memory could not be freed.
            error.__traceback__ = None
        torch.cuda.empty_cache()
        return failure


def own_error(error: Exception) -> RequestError:
    """Return the error that a request is answered with; one that nobody foresaw is logged, and its text is not told.

    Args:
        error: What was raised when a handler worked on this request alone.
    """
    if isinstance(error, RequestError):
        return error
    logger.error("the model or its handler failed", exc_info=error)
    return RequestFailed(
        f"{type(error).__name__}: expected to answer this request, but the model or its handler failed at it; look for"
        " the reason in the server's log"
    )


def _by_request(batch: list[Place]) -> list[list[Place]]:
    """The items of a batch, in lists of those of the same request."""
    requests: dict[int, list[Place]] = {}
    for place in batch:
        requests.setdefault(place[0], []).append(place)
    return [*requests.values()]


def _is_of_device(error: Exception) -> bool:
    """Return whether CUDA reports an error, such as an assertion of a kernel, after which a process cannot use it.

    CTranslate2 and the other stage tell it by their messages alone.
    """
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, (RuntimeError, StageFailed)) and bool(_CUDA_FAILED.match(str(error)))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device, CPU or GPU, has too little memory.

    torch has an exception class for CUDA; its CPU allocator and CTranslate2 raise a RuntimeError that only its message
    identifies.
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    message = str(error)
    return "CUDA failed with error out of memory" in message or (
        "DefaultCPUAllocator" in message and "memory" in message
    )
