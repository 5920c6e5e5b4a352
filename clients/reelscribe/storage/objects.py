"""A store and its objects. Stores can list objects, tell the size and the version of one, read it, put one, and
delete one.

A store is asked in threads, as its calls wait. Whatever fails for a while is `StoreUnavailable`, worth another try;
everything else is a MediaError, which says what to do.
"""

from __future__ import annotations

import codecs
import datetime
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from time import sleep
from typing import IO, Any, NamedTuple, TypeVar

from reelscribe.contract.source import version_key
from reelscribe.errors import MediaError, StoreUnavailable

T = TypeVar("T")

READ_BYTES = 2**16
"""Number of bytes that are read at once."""

CONNECT_SECONDS = 10.0
"""Seconds within which a connection must be made."""

STALL_SECONDS = 60.0
"""Seconds without progress after which a connection is given up, unless others are chosen."""

ATTEMPTS = 8
"""Number of times that a request is sent until the store does not fail, with pauses that grow, unless another is
chosen."""

FIRST_PAUSE, MOST_PAUSE = 0.25, 15.0
"""Seconds between the first two of these, and the most."""

MOST_DEPTH = 100
"""Depth of values beside a source, in lists and archives; what reads records later has limits, too."""

MOST_SIZE = 2**62
"""Largest size of an object that is believed, in bytes."""

CONNECTIONS = 32
"""Largest number of connections to a store at the same time."""


class StoredObject(NamedTuple):
    """An object of a store, or a file on a web server, as it is now."""

    address: str
    """Its address, the name of the source."""
    size: int
    """Its size in bytes."""
    version: str
    """What changes whenever its content does, as its ETag; empty if the server tells nothing like it."""
    modified: float | None = None
    """When it was written, in seconds since 1970; None if that was not told."""
    extra: str | None = None
    """What lies beside it in its archive, as a JSON object; None for nothing."""
    problem: str = ""
    """Why a member of an archive cannot be read; empty for what can."""

    @property
    def stat(self) -> str:
        """The version and the size as one text, which the ledger keeps in the place of a `file_stat`."""
        return f"{self.size} {self.version}".rstrip()

    @property
    def key(self) -> str:
        """The `VERSION_KEY` of its content, of which not every byte has been read."""
        return version_key(self.address, self.size, self.version)

    @classmethod
    def from_stat(cls, address: str, stat: str) -> StoredObject:
        """Return the object that had a `stat`."""
        size, _, version = stat.partition(" ")
        return cls(address, int(size), version)


class ObjectStore(ABC):
    """A store. Any thread may call it, several at the same time."""

    @abstractmethod
    def info(self, address: str) -> StoredObject:
        """Return the size and the version of an object.

        Raises:
            MediaError: There is none, or it may not be read.
            StoreUnavailable: The store does not answer.
        """

    def list(self, address: str) -> Iterator[StoredObject]:
        """Yield all objects whose addresses begin like this, in the order of their keys, as they are found.

        Raises:
            MediaError: They may not be listed, or this kind of store cannot list.
            StoreUnavailable: The store does not answer.
        """
        raise MediaError(f"{address}: expected what can be listed")

    def glance(self, address: str) -> Iterator[StoredObject]:
        """Yield what `list` does, as soon as it can be found, in any order, and maybe without what lies beside it.

        There may also be some that `list` leaves out, as others replace them.

        Raises:
            MediaError: They may not be listed, or this kind of store cannot list.
            StoreUnavailable: The store does not answer.
        """
        return self.list(address)

    @abstractmethod
    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object from a byte on, up to another one, in pieces.

        Args:
            stored: The object with its size and version.
            start: The first byte that is wanted; there is such a byte.
            stop: The first byte that is not wanted any more, after `start`; None for all that come.

        Raises:
            SourceChanged: It has another version or size now.
            MediaError: It is gone, or may not be read.
            StoreUnavailable: The connection broke, or the store does not answer.
        """

    def write(self, address: str, content: IO[bytes], replaced: StoredObject | None) -> str:  # noqa: ARG002
        """Put an object, whole or not at all.

        Args:
            address: Its address.
            content: Its content, a file that can be read again from its beginning.
            replaced: The object that is there and may be replaced, whatever is there if it has no version; None if
                nothing may be there.

        Returns:
            The version of the new object.

        Raises:
            SourceChanged: Something else is there now, which stays.
            MediaError: It may not be written, or this kind of store cannot be written to.
            StoreUnavailable: The connection broke, or the store does not answer.
        """
        raise MediaError("expected an object in a store, as nothing can be written to web servers and archives")

    def delete(self, address: str) -> None:  # noqa: ARG002
        """Delete an object, if it is there.

        Raises:
            MediaError: It may not be deleted, or this kind of store cannot be written to.
            StoreUnavailable: The connection broke, or the store does not answer.
        """
        raise MediaError("expected an object in a store, as nothing can be deleted on web servers and in archives")

    def close(self) -> None:  # noqa: B027 - few kinds have something to close
        """Close all connections."""


def _waits(pause: float) -> bool:
    sleep(pause)
    return False


def retried(work: Callable[[], T], attempts: int = ATTEMPTS, give_up: Callable[[float], bool] = _waits) -> T:
    """Work, again and again while a store is not available.

    Args:
        work: The work.
        attempts: How many times at the most.
        give_up: Waits for so many seconds, and returns whether nobody needs the work any more.

    Raises:
        StoreUnavailable: The store was not available at the last attempt, or nobody needs the work.
    """
    for attempt in range(attempts - 1):
        try:
            return work()
        except StoreUnavailable:
            if give_up(min(MOST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)):  # noqa: S311
                raise
    return work()


def byte_range(start: int, stop: int | None) -> str:
    """Return the value of the header `Range` that asks for bytes from one on, up to another one or to the end."""
    return f"bytes={start}-{'' if stop is None else stop - 1}"


def byte_order(begin: bytes) -> tuple[int, str]:
    """Return the length of the byte-order mark with which a text begins, and the encoding that it names, or UTF-8."""
    for mark, encoding in _MARKS.items():
        if begin.startswith(mark):
            return len(mark), encoding
    return 0, "utf-8"


_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # it begins like the mark after it
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def json_value(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return a value that comes from a file beside a source as one that JSON has.

    Args:
        value: The value.
        depth: How deep it may be nested.

    Raises:
        ValueError: It is nested more deeply.
    """
    if not depth:
        raise ValueError(f"expected values that are nested at most {MOST_DEPTH} deep")
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {json_value(str(key)): json_value(each, depth - 1) for key, each in value.items()}
        case list() | tuple():
            return [json_value(each, depth - 1) for each in value]
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return str(value)
