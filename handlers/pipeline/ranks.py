"""Transfers with the other ranks of a model: each has a time limit, and what goes wrong with one is a StageLost."""

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
"""Smaller tensors travel whole: an all-gather would cost more than it saves."""

_TAGS = 1 << 31
_SOURCE_LINE = re.compile(r"^\[[^\]]*\] *")
"""Of gloo, before what it says."""


class Peer:
    """The other rank: transfers with it have a time limit, and what goes wrong with them is a StageLost."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None, seconds: float, name: str | None) -> None:
        self._rank, self._group, self._seconds = rank, group, seconds
        self._name = name or f"rank {rank} of the model"

    def issue(
        self, operation: Callable[..., dist.Work | None], tensors: Sequence[Tensor], tags: Iterator[int]
    ) -> list[dist.Work]:
        """Send or receive `tensors` that are not empty, each with the next tag, so that none is taken for another."""
        transfers = [
            dist.P2POp(operation, tensor, self._rank, self._group, next(tags) % _TAGS)
            for tensor in tensors
            if len(tensor)
        ]
        if not transfers:
            return []
        with _watched(self._name):
            return dist.batch_isend_irecv(transfers)

    def deadline(self, seconds: float | None) -> float:
        """On the monotonic clock: in `seconds`, or the link's."""
        return time.monotonic() + (self._seconds if seconds is None else seconds)

    def finish(self, works: Sequence[dist.Work], deadline: float) -> None:
        """Wait for transfers."""
        _finish(works, deadline, self._name)

    def lost(self, reason: str) -> StageLost:
        """The error that names it."""
        return _lost(self._name, reason)


class Slices:
    """How large tensors are shared out among the ranks of a stage."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.parts, self._part = (1, 0) if group is None else (group.size(), group.rank())

    def share(self, nbytes: int) -> slice:
        """Those bytes of a tensor that this rank sends to, or receives from, its counterpart."""
        if nbytes < SLICED_BYTES:
            return slice(nbytes)
        each = self.room(nbytes) // self.parts
        return slice(self._part * each, min((self._part + 1) * each, nbytes))

    def room(self, nbytes: int) -> int:
        """The bytes that a tensor takes here: all slices are as large as the first."""
        return nbytes if nbytes < SLICED_BYTES else -(-nbytes // self.parts) * self.parts

    def gather(self, buffers: Sequence[Tensor], deadline: float) -> None:
        """Have the other ranks of this stage fill in their shares."""
        if self.parts == 1:
            return
        sliced = [buffer.view(self.parts, -1).unbind() for buffer in buffers if len(buffer) >= SLICED_BYTES]
        name = "another rank of this stage"
        with _watched(name):
            works = [
                dist.all_gather(list(slices), slices[self._part], group=self._group, async_op=True) for slices in sliced
            ]
        _finish(works, deadline, name)


def _finish(works: Sequence[dist.Work], deadline: float, name: str) -> None:
    with _watched(name):
        for work in works:
            # Zero would be the group's own limit.
            work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))


@contextmanager
def _watched(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # all that torch.distributed raises
        reason = _SOURCE_LINE.sub("", str(error).splitlines()[0])
        raise _lost(name, f"is gone, or did not get on in time ({reason})") from error


def _lost(name: str, reason: str) -> StageLost:
    return StageLost(f"{name} {reason}; both ranks have to start again")
