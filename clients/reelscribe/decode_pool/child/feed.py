"""Batches on their way to the parent: what is read of a file fills a slot, which is sent when it is full.

`frames.py`, `clips.py` and `audio.py` say what their batches are made of. The replies are::

    {"opened": {...}}                                    facts about the file; some kinds send them again at its end
    {"batch": {"first", "stop", "anchor", "slot", ...}}  everything from number `first` to before `stop`
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from reelscribe.decode_pool.child.channel import WorkerChannel
from reelscribe.errors import MediaError

Read = TypeVar("Read")
"""A frame, a clip or a chunk as the decoder returns it."""


class _File(Protocol):
    def check(self) -> None:
        """Raise SourceChanged if the file may have other bytes than were digested."""


class _Keeper(Protocol):
    failure: str | None
    """Why thumbnails cannot be kept; None if they are."""


class Feed:
    """Sends what is read of a file in batches, each of which fills a slot at most."""

    def __init__(
        self, channel: WorkerChannel, file: _File, lists: Sequence[str], first: int = 0, anchor: int | None = None
    ) -> None:
        """Begin with an empty batch.

        Args:
            channel: Connection to the parent.
            file: The open file.
            lists: Names of the lists that a batch has.
            first: Number with which the batch begins.
            anchor: `Span.anchor` of a span that begins there.
        """
        self._channel, self._file, self._names = channel, file, lists
        self.anchor = anchor
        """`Span.anchor` of a span that begins at `stop`."""
        self._begin(first)

    def _begin(self, first: int) -> None:
        self.first = self.stop = first
        self.used = 0
        """Number of bytes in the slot."""
        self._slot: int | None = None
        self.lists: dict[str, list[Any]] = {name: [] for name in self._names}
        """The lists of the batch, by their names."""

    def send_all(self, read: Iterable[Read], add: Callable[[Read], None]) -> None:
        """Add what is read, one after the other, and send it. An error comes after the batch of what was before it."""
        try:
            for each in read:
                self._channel.heartbeat()
                add(each)
        except MediaError:
            self.end()
            raise
        self.end()

    def write(self, values: NDArray[Any]) -> None:
        """Append an array to the slot, after waiting for one to fill if the batch has none."""
        if self._slot is None:
            self._slot = self._channel.take_slot()
        self._channel.array(self._slot, values.shape, values.dtype, self.used)[...] = values
        self.used += values.nbytes

    def end(self, next_first: int | None = None, *, is_full: bool = False) -> None:
        """Send the batch unless it is empty, and begin the next one.

        Args:
            next_first: Number with which the next one begins; None for that with which this one ends.
            is_full: Whether more will come. Otherwise the batch is sent with the next reply, which is often the end.

        Raises:
            SourceChanged: The batch may be of other bytes.
        """
        self._file.check()
        batch = {"first": self.first, "stop": self.stop, "anchor": self.anchor, "slot": self._slot, **self.lists}
        if is_full:
            self._channel.send(batch=batch)
        elif self.stop > self.first:
            self._channel.queue(batch=batch)
        self._begin(self.stop if next_first is None else next_first)


def queue_opened(channel: WorkerChannel, file: _File, **opened: Any) -> None:
    """Queue facts about a file. Raises SourceChanged if they may be of other bytes."""
    file.check()
    channel.queue(opened=opened)


def queue_warning(channel: WorkerChannel, keeper: _Keeper | None) -> None:
    """Queue a warning if thumbnails could not be kept."""
    if keeper and keeper.failure:
        channel.queue(warning=keeper.failure)
