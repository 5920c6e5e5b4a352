"""What the driver of a run over many machines and its nodes tell each other. No frame and no audio is among it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from reelscribe import errors
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.errors import ReelscribeError
from reelscribe.reporting.meter import Snapshot
from reelscribe.results.jobs import Job
from reelscribe.results.records import Kind

MOST_BYTES = 90_000
"""Largest size of what is told at once, pickled. Ray sends up to 100 KiB with a call, and keeps more in its store."""

_MOST_ITEMS = 512
"""Largest number of items that are told at once."""

T = TypeVar("T")


def cut(queue: list[T], most_bytes: int = MOST_BYTES) -> list[T]:
    """Remove as many items from the beginning of a queue as can be told at once, and return them.

    Args:
        queue: What is to be told, in order.
        most_bytes: Largest size of what is returned, pickled. A larger item is returned alone.

    Returns:
        The first items, at least one unless the queue is empty.
    """
    items = queue[:_MOST_ITEMS]
    while len(items) > 1 and len(pickle.dumps(items)) > most_bytes:
        del items[len(items) // 2 :]
    del queue[: len(items)]
    return items


# From the driver to a node.


class Lease(NamedTuple):
    """A source that a node shall annotate, with what the ledger knows about it."""

    path: str
    stat: str | None = None
    """The `file_stat` of the file when its digest was saved; None if it never was."""
    sha256: str | None = None
    jobs: Mapping[int, Job] = {}
    """The jobs of this content that there are already, by the numbers of their settings."""
    is_done: bool = False
    """Whether all jobs of the run are among them, and the run leaves them as they are."""
    unseen_elsewhere: bool = False
    """Whether nobody can see the file, the driver included, so that its error is that of a file that is not there."""


class Answers(NamedTuple):
    """The answers to calls of the ledger, by the numbers of the calls. What the calls have saved is on the disk."""

    values: Sequence[tuple[int, Any]]


class Share(NamedTuple):
    """How many requests of each model may be in flight from this node, as nodes share the servers."""

    requests_in_flight: int


class Tokens(NamedTuple):
    """The tokens for the servers, in the order of the servers, whenever one has changed."""

    texts: Sequence[str | None]


class GiveBack(NamedTuple):
    """The node shall give back up to so many leases of sources that it has not begun."""

    most: int


class Stop(NamedTuple):
    """The node shall save what is in flight and give back everything else."""


# From a node to the driver.


class Ready(NamedTuple):
    """The node has opened its models."""

    tracks: Sequence[tuple[Kind, str]]
    """Kind of each track, and its model with its settings as `settings_text` returns them."""
    decode_processes: int

    def difference(self, first: Ready) -> str | None:
        """Return how its tracks differ from those of the first node; None if they are equal."""
        if list(self.tracks) == list(first.tracks):
            return None
        different: list[str] = []
        for (kind, text), (_, other) in zip(self.tracks, first.tracks, strict=False):
            ours, theirs = json.loads(text), json.loads(other)
            names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            different += [f"{name} of {kind}" for name in names]
        return f"expected the models and settings of the first node, got another {', '.join(different) or 'kind'}"


class Call(NamedTuple):
    """A call of a method of the ledger."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class Finished(NamedTuple):
    """A leased source is done, and the ledger knows."""

    source: Source
    error: SourceError | None
    known: bool
    """Whether an earlier run had done it."""


class Unseen(NamedTuple):
    """A leased source cannot be seen from the node."""

    path: str
    why: str


class GivenBack(NamedTuple):
    """Leased sources that the node has not done and will not do."""

    paths: Sequence[str]


class Report(NamedTuple):
    """The figures of the node."""

    snapshot: Snapshot
    replaced_processes: int


class Said(NamedTuple):
    """A message for the user, at a level of `logging`."""

    level: int
    text: str


class Lost(NamedTuple):
    """The node cannot go on, but it may when it is started again."""

    why: str


class Failed(NamedTuple):
    """The node cannot go on: the name and the message of an exception of reelscribe."""

    kind: str
    message: str

    def error(self) -> ReelscribeError:
        """Return the exception, or one that says the same where its type needs more than a text."""
        try:
            error = getattr(errors, self.kind, ReelscribeError)(self.message)
        except TypeError:
            return errors.ServerError(self.message)
        return error if isinstance(error, ReelscribeError) else ReelscribeError(self.message)


ToNode = Lease | Answers | Share | Tokens | GiveBack | Stop
FromNode = Ready | Call | Finished | Unseen | GivenBack | Report | Said | Lost | Failed
Message = ToNode | FromNode
