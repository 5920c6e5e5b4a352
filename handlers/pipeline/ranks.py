"""Transfers between the ranks of a model: each has a timeout, and each failure is a StageLost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from reelscribe.errors import StageLost

SLICED_BYTES = 64 << 10
"""Smaller tensors are not sliced: an all-gather would cost more than it saves."""

_TAGS = 1 << 31
_SOURCE_LINE = re.compile(r"^\[[^\]]*\] *")
"""The place in its source that gloo puts before each message."""


class Peer:
    """Another rank, and the transfers with it."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None, seconds: float, name: str | None) -> None:
        """Describe the other rank.

        Args:
            rank: Its global rank.
            group: The process group to use; None is the default group.
            seconds: Timeout of transfers, in seconds.
            name: What messages call the rank.
        """
        self._rank, self._group, self._seconds = rank, group, seconds
        self._name = name or f"rank {rank} of the model"

    def issue(
        self, operation: Callable[..., dist.Work | None], tensors: Sequence[Tensor], tags: Iterator[int]
    ) -> list[dist.Work]:
        """Issue the transfers of all tensors that are not empty at once.

        Args:
            operation: `dist.isend` or `dist.irecv`.
            tensors: What to send, or the buffers to receive into.
            tags: A counter for each direction. As each tensor has its own tag, none is mistaken for another.

        Returns:
            The transfers in progress, for `finish`.

        Raises:
            StageLost: The other rank is gone.
        """
        transfers = [
            dist.P2POp(operation, tensor, self._rank, self._group, next(tags) % _TAGS)
            for tensor in tensors
            if len(tensor)
        ]
        if not transfers:
            return []
        with _failures_of(self._name):
            return dist.batch_isend_irecv(transfers)

    def deadline(self, seconds: float | None) -> float:
        """The monotonic time in `seconds` seconds; if None, after the timeout of transfers."""
        return time.monotonic() + (self._seconds if seconds is None else seconds)

    def finish(self, works: Sequence[dist.Work], deadline: float) -> None:
        """Wait for transfers until `deadline`, a monotonic time. Raises StageLost."""
        _finish(works, deadline, self._name)

    def lost(self, reason: str) -> StageLost:
        """Make the error that says what went wrong with this rank."""
        return _lost(self._name, reason)


class Slices:
    """Divides large tensors among the ranks of a stage, each of which transfers one slice.

    Attributes:
        count: Number of slices, which is the number of ranks of the stage.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """`group` has all ranks of this rank's own stage; None if this rank is the only one."""
        self._group = group
        self.count, self._index = (1, 0) if group is None else (group.size(), group.rank())

    def own(self, nbytes: int) -> slice:
        """The bytes of a tensor of `nbytes` bytes that this rank exchanges with its counterpart."""
        if nbytes < SLICED_BYTES:
            return slice(nbytes)
        size = self.room(nbytes) // self.count
        return slice(self._index * size, min((self._index + 1) * size, nbytes))

    def room(self, nbytes: int) -> int:
        """Size in bytes of the buffer for a tensor of `nbytes` bytes: all slices are as large as the first."""
        return nbytes if nbytes < SLICED_BYTES else -(-nbytes // self.count) * self.count

    def gather(self, buffers: Sequence[Tensor], deadline: float) -> None:
        """Fill the buffers with the slices that the other ranks of this stage received. Raises StageLost."""
        if self.count == 1:
            return
        sliced = [buffer.view(self.count, -1).unbind() for buffer in buffers if len(buffer) >= SLICED_BYTES]
        name = "another rank of this stage"
        with _failures_of(name):
            works = [
                dist.all_gather(list(slices), slices[self._index], group=self._group, async_op=True)
                for slices in sliced
            ]
        _finish(works, deadline, name)


def _finish(works: Sequence[dist.Work], deadline: float, name: str) -> None:
    with _failures_of(name):
        for work in works:
            # Zero would select the process group's own timeout.
            work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))


@contextmanager
def _failures_of(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the only class of errors that torch.distributed raises
        reason = _SOURCE_LINE.sub("", str(error).splitlines()[0])
        raise _lost(name, f"is gone, or did not respond in time ({reason})") from error


def _lost(name: str, reason: str) -> StageLost:
    return StageLost(f"{name} {reason}; both ranks have to restart")
