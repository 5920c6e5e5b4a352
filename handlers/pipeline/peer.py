"""Transfers with the other rank of a model: each has a timeout, and each failure is a StageLost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from reelscribe.errors import StageLost

_TAGS = 1 << 31
_SOURCE_LINE = re.compile(r"^\[[^\]]*\] *")
"""The place in its source that gloo puts before each message."""


class Peer:
    """Another rank, and the transfers with it."""

    def __init__(self, rank: int, seconds: float, name: str | None) -> None:
        """Describe the other rank.

        Args:
            rank: Its global rank.
            seconds: Timeout of transfers, in seconds.
            name: What messages call the rank.
        """
        self._rank, self._seconds = rank, seconds
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
            dist.P2POp(operation, tensor, self._rank, tag=next(tags) % _TAGS) for tensor in tensors if len(tensor)
        ]
        if not transfers:
            return []
        with self._failures():
            return dist.batch_isend_irecv(transfers)

    def finish(self, works: Sequence[dist.Work], seconds: float | None) -> None:
        """Wait for transfers for at most `seconds` seconds; if None, for the timeout of transfers. Raises StageLost."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        with self._failures():
            for work in works:
                # Zero would select the process group's own timeout.
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def lost(self, reason: str) -> StageLost:
        """Make the error that says what went wrong with this rank."""
        return StageLost(f"{self._name} {reason}; both ranks have to restart")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # the only class of errors that torch.distributed raises
            reason = _SOURCE_LINE.sub("", str(error).splitlines()[0])
            raise self.lost(f"is gone, or did not respond in time ({reason})") from error
