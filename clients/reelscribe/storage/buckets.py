"""What stores with buckets have in common: lists that end, conditions, and errors that say what to do.

A kind of store is a subclass. It sends one request in each of its methods with the library of its vendor, and tells
what the error of that library is about.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import IO, ClassVar, Literal, NamedTuple, TypeVar

from reelscribe._web_addresses import parse_web_address
from reelscribe.errors import MALFORMED, MediaError, NoSuchObject, SourceChanged, StoreUnavailable, UsageError, brief
from reelscribe.storage.address import ObjectAddress, split_object
from reelscribe.storage.objects import MOST_SIZE, ObjectStore, StoredObject

T = TypeVar("T")

_MOST_EMPTY_PAGES = 1000
"""Number of pages of a list in a row that may have no object."""

REPLACED = "something else, or what an earlier attempt sent, was put there meanwhile; run the same command again"
CHANGED = "it was changed while it was being read; run the same command again"
"""What is said of an object that is not any more what it was when a run, or a request, began."""

Action = Literal["read", "list", "write", "delete"]


class Vendor(NamedTuple):
    """The words of a vendor, for messages."""

    name: str
    """Its name."""
    store: str
    """What it calls its stores."""
    scheme: str
    """The scheme of addresses in them."""
    bucket: str
    """What it calls a bucket."""
    sign_in: str
    """How to sign in."""
    rights: dict[Action, str]
    """The right that each action needs."""
    endpoints: tuple[str, ...]
    """Beginnings of the names of environment variables with addresses that are sent credentials."""

    @property
    def example(self) -> str:
        """An address of an object."""
        return f"{self.scheme}://{self.bucket}/key"

    def unusable(self, reason: str) -> UsageError:
        """Return what is said of settings that cannot be used, without names and passwords of addresses in a reason."""
        reason = re.sub(r"(//|: )\S*@", r"\1***@", reason)  # botocore puts an address without a scheme after a colon
        return UsageError(
            f"{self.scheme}://: the settings of {self.name} cannot be used: {brief(reason)}; {self.sign_in}"
        )

    def check_addresses(self, used: str | None = None) -> None:
        """Check the addresses of the environment, or the one that the vendor's library uses.

        Raises:
            UsageError: One is none, or has a name and password.
        """
        named = {name: text for name, text in os.environ.items() if text and name.startswith(self.endpoints)}
        for name, text in named.items() if used is None else [(f"the address in the settings of {self.name}", used)]:
            try:
                parse_web_address(text)
            except ValueError as error:
                raise UsageError(f"{self.scheme}://: {name}: {error}") from None


class Entry(NamedTuple):
    """What a store tells of an object."""

    key: str
    size: int
    """Its size in bytes."""
    version: str
    """What changes whenever its content does."""
    modified: datetime | None
    """When it was written."""


class BucketStore(ObjectStore):
    """A store with buckets; see `ObjectStore`."""

    vendor: ClassVar[Vendor]
    library_errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of the vendor's library."""

    def __init__(self, attempts: int, *, is_anonymous: bool) -> None:
        """Say how requests are sent.

        Args:
            attempts: Number of times that a request is sent until the store does not fail.
            is_anonymous: Whether requests have no credentials.
        """
        self._attempts, self._is_anonymous = attempts, is_anonymous

    @abstractmethod
    def _head(self, place: ObjectAddress) -> Entry:
        """Return what an object is now."""

    @abstractmethod
    def _page(self, place: ObjectAddress, token: str | None) -> tuple[list[Entry], str | None]:
        """Return a page of the list of objects whose keys begin like one, and the token of the next page."""

    @abstractmethod
    def _put(self, place: ObjectAddress, content: IO[bytes], replaced: StoredObject | None) -> str:
        """Put an object, on the condition that what is there may be replaced; return its version."""

    @abstractmethod
    def _remove(self, place: ObjectAddress) -> None:
        """Delete an object, if it is there."""

    @abstractmethod
    def _explained(self, error: Exception, action: Action, bucket: str) -> MediaError:
        """Return what an error of the vendor's library means."""

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of an object."""
        place = self._split(address)
        return _stored(address, self._asked("read", address, lambda: self._head(place)))

    def list(self, address: str) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin like that of an address."""
        start = address[: len(address) - len(split_object(address).key)].rstrip("/")
        for entry in _each_once(self._entries(address)):
            yield _stored(f"{start}/{entry.key}", entry)

    def _entries(self, address: str) -> Iterator[Entry]:
        """Yield what is on all pages of a list."""
        place, token, empty = split_object(address), None, 0
        while True:
            page, token = self._asked("list", address, partial(self._page, place, token))
            empty = 0 if page else empty + 1
            if empty > _MOST_EMPTY_PAGES:
                raise MediaError("expected a list of objects, got pages without any, and no end")
            yield from page
            if not token:
                return

    def write(self, address: str, content: IO[bytes], replaced: StoredObject | None) -> str:
        """Put an object, on the condition that what is there is still what may be replaced, or nothing."""
        return self._asked("write", address, partial(self._put, self._split(address), content, replaced))

    def delete(self, address: str) -> None:
        """Delete an object, if it is there."""
        self._asked("delete", address, partial(self._remove, self._split(address)))

    def _split(self, address: str) -> ObjectAddress:
        place = split_object(address)
        if not place.key:
            raise MediaError(
                f"expected the address of a {self.vendor.bucket} and an object, as {self.vendor.example},"
                f" got {brief(address)}"
            )
        return place

    def _asked(self, action: Action, address: str, work: Callable[[], T]) -> T:
        """Send a request, and return what comes of it."""
        with self._errors(action, address):
            return work()

    @contextmanager
    def _errors(self, action: Action, address: str) -> Iterator[None]:
        """Turn the errors of the vendor's library into ours."""
        try:
            yield
        except self.library_errors as error:
            raise self._explained(error, action, split_object(address).bucket) from None
        except MALFORMED as error:
            raise MediaError(f"expected answers of {self.vendor.store}, got others: {brief(str(error))}") from None

    def _no_bucket(self, bucket: str) -> MediaError:
        """Return what is said of a bucket that is not there."""
        return MediaError(f"the store has no {self.vendor.bucket} {brief(bucket)}; check the name")

    def _refused(self, status: int, code: str, action: Action) -> MediaError:
        """Return what an answer of the store with a status and a code means that is no success."""
        vendor = self.vendor
        if action == "write" and status in (404, 409, 412):
            return SourceChanged(REPLACED)
        if status == 404:
            return NoSuchObject("no such object in the store; check the address")
        if status == 403 or (status == 401 and self._is_anonymous):
            who = "nobody, as no credentials were found" if self._is_anonymous else "you"
            return MediaError(
                f"permission denied by the store to {who}; {vendor.sign_in}, or ask for {vendor.rights[action]} on it"
            )
        if status == 401:
            return MediaError(f"the store does not take the credentials ({brief(code)}); {vendor.sign_in}")
        if status == 412:
            return SourceChanged(CHANGED)
        if status == 416:
            return SourceChanged("it was cut while it was being read; run the same command again")
        if status in (408, 429) or status >= 500:
            return StoreUnavailable(f"the store failed with {status} {brief(code)}, {self._attempts} times in a row")
        return MediaError(f"the store refused with {status} {brief(code)}")


def _each_once(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield what is in a list; raise MediaError if it begins anew, instead of going on for ever."""
    looked_for, next_look = "", 1
    for number, entry in enumerate(entries, 1):
        if entry.key == looked_for:
            raise MediaError(f"expected a list with each object once, got {brief(entry.key)} again, and no end")
        if number == next_look:  # with ever larger distances, so that any circle is found, and nothing is kept
            looked_for, next_look = entry.key, 2 * number
        yield entry


def _stored(address: str, entry: Entry) -> StoredObject:
    if not isinstance(entry.size, int) or not 0 <= entry.size <= MOST_SIZE:
        raise MediaError(f"expected the size of an object, got {brief(entry.size)}")
    try:
        modified = entry.modified.timestamp() if isinstance(entry.modified, datetime) else None
    except (ValueError, OverflowError):  # it was before the year 1, or after 9999, where the clock of this machine is
        modified = None
    return StoredObject(address, entry.size, entry.version, modified)
