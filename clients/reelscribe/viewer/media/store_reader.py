"""Reads sources in stores for players: no more than they take, and only the version that the run has read."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore

from reelscribe.errors import MediaError, SourceChanged, StoreUnavailable, UsageError
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.stores import Stores
from reelscribe.viewer.media.media_files import MediaNotNow, MediaRefused

MOST_READINGS = 16
"""Largest number of connections over which sources are read at the same time."""

_STALL_SECONDS, _ATTEMPTS = 10.0, 2  # somebody waits


class StoreReader:
    """Reads sources in stores with the user's credentials. Any thread may use it; all calls wait for the store.

    Results may be somebody else's, so that they name a web server does not mean that the user has named it.
    """

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        """Open nothing yet.

        Args:
            hosts: The hosts of web servers that the user has named: they may be in private networks, and get what
                ~/.netrc has for them.
        """
        self._stores = Stores(_STALL_SECONDS, _ATTEMPTS, hosts)
        self._places = BoundedSemaphore(MOST_READINGS)

    def check(self, stored: StoredObject) -> None:
        """Check that a source is still what the run has read.

        Args:
            stored: The source as the run has read it.

        Raises:
            MediaRefused: It is not, or cannot be read, or not now.
        """
        with _refusals(stored.address):
            if self._stores.of(stored.address).info(stored.address).stat != stored.stat:
                raise SourceChanged

    def read(self, stored: StoredObject, start: int) -> Generator[bytes, None, None]:
        """Yield the content of a source from a byte on, in pieces; closing the generator closes the connection.

        Args:
            stored: The source as the run has read it.
            start: The byte.

        Raises:
            MediaRefused: It is not any more what the run has read, or cannot be read, or not now.
        """
        if not self._places.acquire(blocking=False):
            raise MediaNotNow(
                f"{stored.address} cannot be played now: {MOST_READINGS} sources in stores are being played already;"
                " close the page of one"
            )
        try:
            with _refusals(stored.address):
                yield from self._stores.of(stored.address).read(stored, start)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close all connections that nothing is being read over."""
        self._stores.close()


@contextmanager
def _refusals(address: str) -> Iterator[None]:
    """Turn the errors of stores into refusals, which say what they are about."""
    try:
        yield
    except SourceChanged:
        raise MediaRefused(f"{address} has changed since the run; run it again to read it") from None
    except StoreUnavailable as error:
        raise MediaNotNow(f"{address} cannot be read now: {error}") from None
    except (MediaError, UsageError) as error:
        raise MediaRefused(f"{address} cannot be read: {error}") from None
