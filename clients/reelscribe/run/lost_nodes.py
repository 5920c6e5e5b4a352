"""Lost nodes: how long a run waits for one that starts or starts again, and when it was lost too often."""

from __future__ import annotations

import asyncio
from collections import Counter

PENDING_SECONDS = 60.0
"""Seconds for which a node that starts, or was lost, is waited for where others cannot do something."""

LOSSES_IN_A_ROW = 3
"""Number of times that a node may be lost without having done a source, until it is not started again. Losses with a
source that is suspected to be the cause do not count.
"""


class NodeLost(Exception):
    """A node has died, or does not answer any more."""


class PendingNodes:
    """The nodes that may be ready soon: those that start, and those that were lost and may start again."""

    def __init__(self) -> None:
        """Begin without nodes."""
        self._until: dict[str, float] = {}
        """Until when each node is waited for, by the clock of the loop."""
        self._losses: Counter[str] = Counter()
        """How often each node was lost since it has done a source."""

    def names(self) -> set[str]:
        """Return the names of the nodes that have not been waited for in vain."""
        now = asyncio.get_running_loop().time()
        return {name for name, until in self._until.items() if until > now}

    def expect(self, name: str) -> None:
        """Note that a node starts."""
        self._until[name] = asyncio.get_running_loop().time() + PENDING_SECONDS

    def forget(self, name: str) -> None:
        """Note that a node is ready, or never will be."""
        self._until.pop(name, None)

    def has_done_a_source(self, name: str) -> None:
        """Note that a node is of use."""
        self._losses[name] = 0

    def lost(self, name: str, *, with_suspect: bool) -> bool:
        """Note that a node was lost, maybe by the fault of a suspect. Returns whether it may start again."""
        self._losses[name] += not with_suspect
        if self._losses[name] >= LOSSES_IN_A_ROW:
            return False
        self.expect(name)
        return True
