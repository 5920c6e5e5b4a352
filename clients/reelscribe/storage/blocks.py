"""Stores whose vendors' libraries send requests with the library requests, and return a range only as a whole.

Such an object is read in blocks, each on the condition that it is still the version that is wanted. Requests are sent
again here, as Google's library counts seconds and not attempts. Only a content that breaks off is asked for twice more
by Azure's library itself, which cannot be told not to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import requests
from requests.adapters import HTTPAdapter

from reelscribe.errors import MediaError, StoreUnavailable
from reelscribe.storage.address import ObjectAddress
from reelscribe.storage.buckets import Action, BucketStore
from reelscribe.storage.objects import CONNECTIONS, StoredObject, retried

T = TypeVar("T")
S = TypeVar("S", bound=requests.Session)

BLOCK_BYTES = 2**21
"""Number of bytes that one request reads at the most. A reader that is not wanted any more ends after one of them."""


class BlockStore(BucketStore):
    """A store that is read in blocks; see `ObjectStore`."""

    @abstractmethod
    def _block(self, place: ObjectAddress, version: str, start: int, stop: int) -> bytes:
        """Return the bytes of an object from one on, up to another one, on the condition that it has a version."""

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object from a byte on, up to another one."""
        place, end = self._split(stored.address), stored.size if stop is None else stop
        while start < end:
            upto = min(start + BLOCK_BYTES, end)
            block = self._asked("read", stored.address, partial(self._block, place, stored.version, start, upto))
            if len(block) != upto - start:
                raise MediaError("expected a store that sends the part that it is asked for, got another one")
            yield block
            start = upto

    def _asked(self, action: Action, address: str, work: Callable[[], T]) -> T:
        """Send a request, again and again while the store is not available."""
        return retried(partial(super()._asked, action, address, work), self._attempts)

    def _broken(self, error: Exception) -> StoreUnavailable:
        """Return what is said of a connection. The text of the error may have the address, and that a signature."""
        return StoreUnavailable(f"the store does not answer, or the connection broke: {type(error).__name__}")


def for_many_threads(session: S) -> S:
    """Return a session with as many connections as a store may have, which never tries again.

    Args:
        session: A session of requests. What it sends is signed by the vendor's library, in whose place requests would
            otherwise put the name and password that ~/.netrc has for the host, or by default for all.
    """
    session.auth = _as_it_is
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS, max_retries=0))
    return session


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
