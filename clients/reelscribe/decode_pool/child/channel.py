"""The decode process's end of its connection to the parent; `watched_process.py` holds the other end."""

from __future__ import annotations

import json
import mmap
import sys
import time
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

HEARTBEAT_SECONDS = 1.0
"""Shortest time between two heartbeats."""

QUEUED_REPLIES = 8
"""Largest number of replies that are sent together."""


class WorkerChannel:
    """Receives commands, sends replies, and gives access to the slots of shared memory that the process fills.

    Commands and replies are JSON objects; `main.py` lists them.
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
