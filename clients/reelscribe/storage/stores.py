"""Finds the store of an address."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from reelscribe.errors import UsageError, is_of_one_source, missing_package
from reelscribe.storage.address import is_address, is_member, is_web_address
from reelscribe.storage.objects import ATTEMPTS, CONNECTIONS, STALL_SECONDS, ObjectStore

_BUCKETS = {
    "s3": ("s3", "S3Store", "boto3"),
    "gs": ("google", "GoogleStore", "google-cloud-storage"),
    "az": ("azure", "AzureStore", "azure-storage-blob"),
}
"""The module, the class and the package of the stores with buckets, by their schemes, which are names of extras."""


class Stores:
    """The stores of a run, each opened when an address first needs it. Any thread may use it."""

    def __init__(
        self, stall_seconds: float = STALL_SECONDS, attempts: int = ATTEMPTS, hosts: Sequence[str] | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            attempts: Number of times that a request to a store with buckets is sent until the store does not fail.
            hosts: The hosts of web servers that the user has named; None if the user has named all addresses.
        """
        self._stall_seconds, self._attempts, self._hosts = stall_seconds, attempts, hosts
        self._lock = Lock()
        self._opened: dict[str, ObjectStore] = {}

    def of(self, address: str) -> ObjectStore:
        """Return the store of an address.

        Raises:
            UsageError: A package that it needs is not installed, or settings for it cannot be used.
        """
        kind = _kind(address)
        with self._lock:
            if kind not in self._opened:
                self._opened[kind] = self._open(kind)
            return self._opened[kind]

    def stats(self, addresses: Sequence[str]) -> Sequence[str]:
        """Return the `StoredObject.stat` of objects; empty for one that cannot be read now, which its reader tells.

        Raises:
            UsageError: A package is not installed.
        """
        if not addresses:
            return []
        with ThreadPoolExecutor(CONNECTIONS, "stores") as threads:
            return list(threads.map(self._stat, addresses))

    def _stat(self, address: str) -> str:
        try:
            return self.of(address).info(address).stat
        except Exception as error:
            if not is_of_one_source(error):
                raise
            return ""

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for store in self._opened.values():
                store.close()
            self._opened.clear()

    def _open(self, kind: str) -> ObjectStore:
        # Each is imported when it is first needed, as few runs read from stores, and some kinds need extras.
        if kind == "web":
            from reelscribe.storage.web import WebStore

            return WebStore(self._stall_seconds, self._hosts)
        if kind in ("tar", "file"):
            from reelscribe.storage.archives import FileStore, TarStore

            return TarStore(self.of) if kind == "tar" else FileStore()
        module, store, package = _BUCKETS[kind]
        try:
            opens = getattr(importlib.import_module(f"reelscribe.storage.{module}"), store)
        except ImportError:
            raise UsageError(f"{kind}://: {missing_package(package, kind)}") from None
        opened: ObjectStore = opens(self._stall_seconds, self._attempts)
        return opened


def _kind(name: str) -> str:
    """Return which kind of store a source or an archive is in."""
    if is_member(name):
        return "tar"
    if is_web_address(name):
        return "web"
    return name.partition("://")[0].lower() if is_address(name) else "file"
