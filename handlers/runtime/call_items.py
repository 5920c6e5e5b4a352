"""The items of all requests of a call, on their way from reading through the device to their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from reelscribe.errors import RequestError

Items = Any
"""The items of one request, or a slice of them: a list, or an array with the items along its first axis."""

Place = tuple[int, int]
"""Where an item comes from: the index of its request, and its index in that request."""


class CallItems:
    """Which items wait for the device, which are still being read, and what came of the others.

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
        """Whether requests are still being read."""
        return bool(self._reading)

    def __getitem__(self, place: Place) -> Any:
        """The item at a place."""
        i, k = place
        return self._items[i][k]

    def receive(self, *, block: bool = False) -> None:
        """Have the items wait that have been read since the last time.

        Args:
            block: Whether to wait until another request has been read, if none has.

        Raises:
            Exception: What the future of a request raised, other than a RequestError, which is kept as its result.
        """
        if not self._reading:
            return
        done, _ = wait(self._reading, None if block else 0, FIRST_COMPLETED)
        for future in [future for future in self._reading if future in done]:
            i = self._reading.pop(future)
            try:
                self._add(i, future.result())
            except RequestError as error:
                self._failed[i] = error
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

    def _add(self, i: int, items: Items) -> None:
        self._items[i] = items
        self._results[i] = [None] * len(items)
        self.waiting.extend((i, k) for k in range(len(items)))

    def _sort(self) -> None:
        length = self._length
        if length is not None:
            self.waiting = deque(sorted(self.waiting, key=lambda place: -length(self[place])))
