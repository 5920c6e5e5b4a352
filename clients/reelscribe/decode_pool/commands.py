"""Commands to read a source, what a decode process answers, and the shared memory in which frames and samples lie.

This is the base of `frames.py`, `clips.py`, `windows.py` and `audio.py`. A parent sends a command, which says what to
read and how. It gets facts about the opened file, and then batches, whose frames or samples lie in slots of shared
memory. The memory is an anonymous file (`memfd_create`): it disappears with the processes that use it, and pages that
were never written take no memory.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.contract.source import AudioInfo, RangedCopy, Span, VideoInfo
from reelscribe.errors import UsageError
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import SavedSource

Portion = Literal["all", "first", "later"]
"""The part of a source that a process reads: all that is asked for; all that is asked for up to the first entry point
that it finds; or a portion that begins at an entry point, up to the next one."""


@dataclass(frozen=True, kw_only=True)
class DecodedBatch(ABC):
    """A range of the chosen frames or the clips of a video, or of the samples of its audio, with what is to be sent."""

    first: int
    """Number of the first frame, clip or sample."""
    stop: int
    """Number of the first frame, clip or sample after the batch."""
    anchor: int | None = None
    """`Span.anchor` of a span that begins at `stop`."""
    slot: int | None
    """Number of the slot that holds the frames or samples to send; None if there are none."""
    slots: Slots
    """The shared memory that has the slot."""

    @property
    @abstractmethod
    def items(self) -> Any:
        """Items to send, as an operation of the client takes them; there may be none."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the frames or samples to send, in bytes."""

    @abstractmethod
    def _copied(self) -> dict[str, Any]:
        """Return the fields that are views of the slot, as copies."""

    def release(self) -> None:
        """Give back the slot. The frames or samples in it must not be used afterwards."""
        if self.slot is not None:
            self.slots.give_back(self.slot)

    def copy_if_small(self) -> Self:
        """Return this batch or, if it fills at most half of its slot, a copy; then the slot is given back.

        Sources of a few frames would otherwise take all slots long before a request is full.
        """
        return self if 2 * self.nbytes > self.slots.slot_bytes else self.copy_out()

    def copy_out(self) -> Self:
        """Return a copy of this batch whose items are not in its slot, which is given back."""
        if self.slot is None:
            return self
        copied = replace(self, **self._copied(), slot=None)
        self.release()
        return copied


class Opened(ABC):
    """Facts about a source that a process has opened."""

    info: VideoInfo | AudioInfo
    """Description of the stream."""
    why_incomplete: str | None
    """Why frames or samples are missing; None if the file is complete."""
    entry_points: Sequence[int] = ()
    """Numbers of the frames at which other processes may begin, ascending; empty if one must read them all."""
    by_substitute: bool = False
    """True if another decoder reads it than the one that was chosen, which cannot."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """Number of chosen frames, clips or samples; None as long as it is not known."""

    @abstractmethod
    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the source from `first` to before `stop`, as a fraction (0 to 1) and in seconds."""

    def share_of(self, batch: DecodedBatch | SavedBatch) -> tuple[float, float]:
        """Return the part of the source that a batch is, as a fraction (0 to 1) and in seconds."""
        return self.share(batch.first, batch.stop)

    @abstractmethod
    def to_save(self) -> SavedSource:
        """Return what the ledger keeps."""


OpenedT = TypeVar("OpenedT", bound=Opened)
BatchT = TypeVar("BatchT", bound=DecodedBatch)


class ReadCommand(ABC, Generic[OpenedT, BatchT]):
    """A command to read a source, and the parser of its replies."""

    ranges: RangedCopy | None = None
    """The copy of the source, if it has only what was fetched; None for a whole copy, and for a file."""

    def for_portion(self, portion: Portion, opened: OpenedT | None) -> Self:  # noqa: ARG002 - few sources have several
        """Return the command to read a portion of the source, with what is known about it, if it has portions."""
        return self

    def after_failure(self) -> Self:
        """Return the command for another attempt, after a process has died or hung."""
        return self

    @abstractmethod
    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of the source to read, in ascending order."""

    @abstractmethod
    def parse_opened(self, reply: dict[str, Any]) -> OpenedT:
        """Parse the content of an "opened" reply."""

    @abstractmethod
    def parse_batch(self, reply: dict[str, Any], opened: OpenedT, slots: Slots) -> BatchT:
        """Parse the content of a "batch" reply. Its frames or samples are views of the slot."""


class Slots:
    """A fixed number of equally large slots of shared memory."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        """Reserve the memory.

        Args:
            count: Number of slots.
            slot_bytes: Size of each slot in bytes.
        """
        self.count, self.slot_bytes = count, slot_bytes
        self.memory = SharedMemory(count * slot_bytes)
        # Imported here, because decode processes import this module too and start faster without asyncio.
        import asyncio

        # Last in, first out, so that slots are reused and no more memory is allocated than is in use at the same time.
        self._free = asyncio.LifoQueue[int]()
        for slot in reversed(range(count)):
            self._free.put_nowait(slot)

    def allocate(self, slots: int) -> None:
        """Allocate the memory of so many slots, before they are used, so that a lack of memory shows at the start."""
        np.frombuffer(self.memory.view, np.uint8, min(slots, self.count) * self.slot_bytes)[:: mmap.PAGESIZE] = 0

    async def take(self) -> int:
        """Wait for a free slot, and return its number."""
        return await self._free.get()

    def give_back(self, slot: int) -> None:
        """Make a slot free again; it may be overwritten from now on."""
        self._free.put_nowait(slot)

    def array(self, slot: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the beginning of a slot as an array, without a copy."""
        return np.ndarray(shape, dtype, self.memory.view, offset=slot * self.slot_bytes)

    def close(self) -> None:
        """Close the file. The memory remains as long as processes map it or arrays view it."""
        self.memory.close()


MAX_REQUEST_BYTES = 8 * 10**6
"""Largest size of a request in bytes, unless it holds a single larger item. TorchServe transfers bodies of 2 to 24 MB
equally fast, and larger ones more slowly; smaller requests balance the load better."""

MAX_FRAMES_PER_REQUEST = 32
"""Default limit on the number of frames in a request."""

MAX_CLIPS_PER_REQUEST = 8
"""Default number of clips in one request."""

MAX_CHUNKS_PER_REQUEST = 8
"""Default number of chunks of audio in one request: 8 MB for chunks of 30 s. The size of device batches is up to the
server."""

MAX_WINDOWS_PER_REQUEST = 8
"""Largest number of windows in one request: 3 MB, which a core takes half a minute for, and a GPU much less."""


def request_bytes(item_bytes: int, max_items: int) -> int:
    """Compute the size of a slot that holds a request.

    Args:
        item_bytes: Largest size of an item, which is a frame or a chunk, in bytes.
        max_items: Largest number of items in the request; at least 1.

    Returns:
        The size of `max_items` items in bytes, but at most MAX_REQUEST_BYTES, unless a single item is larger.

    Raises:
        UsageError: `max_items` is less than 1.
    """
    if max_items < 1:
        raise UsageError(f"items per request: expected 1 or more, got {max_items}")
    return max(item_bytes, min(MAX_REQUEST_BYTES, max_items * item_bytes))


def items_per_request(slot_bytes: int, item_bytes: int, max_items: int) -> int:
    """Compute the number of items of a size that fit into a slot.

    Args:
        slot_bytes: Size of the slot in bytes.
        item_bytes: Size of an item, which is a frame or a chunk, in bytes.
        max_items: Largest number of items in the request; at least 1.

    Returns:
        A number from 1 to `max_items`.
    """
    return max(1, min(max_items, slot_bytes // item_bytes))
