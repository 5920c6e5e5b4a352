"""The decode process's end of its connection to the parent; `watched_process.py` holds the other end.

`ChildChannel` has commands, replies and slots. `Feed` fills slots with what is read of a file, and sends them in
batches; `frames.py`, `clips.py`, `windows.py` and `audio.py` say what their batches are made of. `KeptFile` is the file
that stays open between commands. The replies are::

    {"opened": {...}}                                    facts about the file; some kinds send them again at its end
    {"batch": {"first", "stop", "anchor", "slot", ...}}  everything from number `first` to before `stop`
    ...
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import IO, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from reelscribe.errors import MediaError

OpenFile = TypeVar("OpenFile")
"""A file that is kept open."""
Read = TypeVar("Read")
"""A frame, a clip or a chunk as the decoder returns it."""

HEARTBEAT_SECONDS = 1.0
"""Shortest time between two heartbeats."""

QUEUED_REPLIES = 8
"""Largest number of replies that are sent together."""


class ChildChannel:
    """Receives commands, sends replies, and gives access to the slots of shared memory that the process fills.

    Commands and replies are JSON objects; `child_main.py` lists them.
    """

    def __init__(self, memory: mmap.mmap, slot_bytes: int, commands: IO[str], replies: IO[str]) -> None:
        """Connect to a parent.

        Args:
            memory: The memory that is shared with the parent: slots of `slot_bytes` bytes, one after the other.
            slot_bytes: Size of a slot in bytes.
            commands: Stream to read commands from.
            replies: Stream to write replies to.
        """
        self.slot_bytes = slot_bytes
        self._memory, self._commands, self._replies = memory, commands, replies
        self._queued: list[str] = []
        self._slot: int | None = None
        self._last_reply = 0.0

    def next_command(self) -> dict[str, Any]:
        """Wait for the next command, and return it. A slot that is granted with it or before is kept for `take_slot`.

        The process exits if the parent has closed the stream of commands.
        """
        while True:
            command = self._read_command()
            self._slot = command.pop("slot", self._slot)
            if command:
                return command

    def take_slot(self) -> int:
        """Wait until the parent has granted a slot to fill, and return its number."""
        while self._slot is None:
            self._slot = self._read_command()["slot"]
        slot, self._slot = self._slot, None
        return slot

    def fetch(self, first: int, stop: int) -> None:
        """Wait until the parent has fetched everything from one block of a file to before another into its copy."""
        self.queue(fetch=[first, stop])
        while "fetched" not in (command := self._read_command()):
            self._slot = command["slot"]

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> NDArray[Any]:
        """Return a part of a slot, from so many bytes after its beginning, as an array, without a copy."""
        return np.ndarray(shape, dtype, self._memory, offset=slot * self.slot_bytes + offset)

    def send(self, **reply: Any) -> None:
        """Send a reply, whose JSON has these items, to the parent."""
        self.queue(**reply)
        self._flush()

    def queue(self, **reply: Any) -> None:
        """Send a reply together with the next one, and no later than the next heartbeat or wait for a command.

        The parent reads them at once; to wake up for each would take it longer than decoding a short file.
        """
        self._queued.append(json.dumps(reply))
        if len(self._queued) == QUEUED_REPLIES:
            self._flush()

    def heartbeat(self) -> None:
        """Tell the parent that decoding makes progress, unless a reply was sent less than a second ago."""
        if time.monotonic() - self._last_reply > HEARTBEAT_SECONDS:
            self.send(heartbeat={})

    def _flush(self) -> None:
        if self._queued:
            self._last_reply = time.monotonic()
            self._replies.write(f"[{', '.join(self._queued)}]\n")
            self._replies.flush()
            self._queued = []

    def _read_command(self) -> dict[str, Any]:
        self._flush()
        line = self._commands.readline()
        if not line:
            sys.exit()  # the parent is gone
        command: dict[str, Any] = json.loads(line)
        return command


class KeptFile(Generic[OpenFile]):
    """Holds at most one open file, by the command that it was opened for."""

    def __init__(self) -> None:
        """Begin without a file."""
        self._stack = ExitStack()
        self._key: Any = None
        self._file: OpenFile | None = None

    @property
    def is_open(self) -> bool:
        """True if a file is open."""
        return self._file is not None

    def get(self, key: Any) -> OpenFile | None:
        """Return the file that was opened for this key; None if it is not open."""
        return self._file if key == self._key else None

    def open(self, key: Any, file: AbstractContextManager[OpenFile]) -> OpenFile:
        """Enter a file and keep it, after the one that is open has been closed.

        Args:
            key: What `get` is called with to get it again.
            file: The file, as a context manager that closes it.
        """
        self.close()
        self._file, self._key = self._stack.enter_context(file), key
        return self._file

    def close(self) -> None:
        """Close the file that is open, if there is one."""
        self._stack.close()
        self._file = self._key = None


class _File(Protocol):
    def check(self) -> None:
        """Raise SourceChanged if the file may have other bytes than were digested."""


class _Keeper(Protocol):
    failure: str | None
    """Why thumbnails cannot be kept; None if they are."""


class Feed:
    """Sends what is read of a file in batches, each of which fills a slot at most."""

    def __init__(
        self, channel: ChildChannel, file: _File, lists: Sequence[str], first: int = 0, anchor: int | None = None
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


def queue_opened(channel: ChildChannel, file: _File, **opened: Any) -> None:
    """Queue facts about a file. Raises SourceChanged if they may be of other bytes."""
    file.check()
    channel.queue(opened=opened)


def queue_warning(channel: ChildChannel, keeper: _Keeper | None) -> None:
    """Queue a warning if thumbnails could not be kept."""
    if keeper and keeper.failure:
        channel.queue(warning=keeper.failure)
