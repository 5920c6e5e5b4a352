"""The mail between the driver of a run over many machines and its nodes. No frame and no audio is among it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from reelscribe import errors
from reelscribe.errors import ReelscribeError
from reelscribe.run.messages import FromNode, ToNode

MOST_BYTES = 90_000
"""Largest size of what is told at once, pickled. Ray sends up to 100 KiB with a call, and keeps more in its store."""

PIECE_BYTES = MOST_BYTES // 3
"""Largest size of a piece of a thumbnail."""

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


class Answers(NamedTuple):
    """The answers to calls of the ledger, by the numbers of the calls. What the calls have saved is on the disk."""

    values: Sequence[tuple[int, Any]]


class Tokens(NamedTuple):
    """The tokens for the servers, in the order of the servers, whenever one has changed."""

    texts: Sequence[str | None]


# From a node to the driver.


class Call(NamedTuple):
    """A call of a method of the ledger."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class ThumbnailPiece(NamedTuple):
    """A part of a thumbnail, which is sent in pieces because messages are small."""

    sha256: str
    """Digest of the source's bytes."""
    seconds: float
    """Presentation time of the picture."""
    webp: bytes
    """The next bytes of the WebP file."""
    is_last: bool


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


Message = ToNode | Answers | Tokens | FromNode | Call | ThumbnailPiece | Said | Lost | Failed
