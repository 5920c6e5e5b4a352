"""How our clients send requests: where frames are in memory, or the frames as to a server on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from reelscribe import wire
from reelscribe.contract import shared_memory
from reelscribe.contract.shared_memory import SharedMemory


@contextmanager
def through_network() -> Iterator[None]:
    """Let clients send frames, as if every server were on another machine."""
    with patch.object(shared_memory, "machine", lambda: ""):
        yield


def size_sent(body: Sequence[wire.Segment], memories: Sequence[SharedMemory]) -> int:
    """Return how many bytes a client sends for a body to a server on this machine.

    Args:
        body: The packed request.
        memories: The shared memory that servers on this machine can read.
    """
    reference = shared_memory.refer(body, memories) if shared_memory.machine() else None
    return wire.size_of(list(body)) if reference is None else len(reference)
