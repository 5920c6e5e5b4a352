"""A TorchServe on each node, from model archives that the driver sends to each machine once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from reelscribe.archive.cache import ArchiveCache
from reelscribe.archive.model_store import stored_models

if TYPE_CHECKING:
    from reelscribe.server.owned_server import OwnedServer

CHUNK_BYTES = 2**24
"""Bytes of an archive in one message."""


class Archive(NamedTuple):
    """A model archive, by its content."""

    name: str
    """File name."""
    sha256: str


class Archives:
    """The model archives of a folder on the driver's machine."""

    def __init__(self, model_store: Path) -> None:
        """Find the archives.

        Args:
            model_store: Folder of archives, all of which are served.

        Raises:
            StartupError: There is no archive, or one is damaged.
        """
        self._paths = {model.path: _digest(model.path) for model in stored_models(model_store, "all")}

    @property
    def all(self) -> list[Archive]:
        """The archives, in the order of their models."""
        return [Archive(path.name, sha256) for path, sha256 in self._paths.items()]

    async def send(self, node: Receiving, answered: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        """Send a node the archives that its machine lacks.

        Args:
            node: The node.
            answered: Awaits each answer of the node, or raises an error if it takes too long.
        """
        lacking = await answered(node.lacking(list(self._paths.values())))
        for path, sha256 in self._paths.items():
            if sha256 not in lacking:
                continue
            with path.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    await answered(node.receive(Archive(path.name, sha256), chunk))
            await answered(node.receive(Archive(path.name, sha256), b""))


class Receiving(Protocol):
    """A receiver of archives."""

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Return the digests of the archives that the machine does not have."""

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        """Take the next bytes of an archive; none at its end."""


class Receiver:
    """Receives archives on a node, one after the other; see `Receiving`."""

    def __init__(self) -> None:
        """Begin with the archives that earlier runs have left on the machine."""
        self._cache = ArchiveCache()
        self._until_complete = ExitStack()
        self._receiving: Archive | None = None

    async def lacking(self, digests: Collection[str]) -> list[str]:
        """Return the digests of the archives that the machine does not have."""
        return await asyncio.to_thread(lambda: [sha256 for sha256 in digests if not self._cache.has(sha256)])

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        """Take the next bytes of an archive; none at its end."""
        await asyncio.to_thread(self._receive, archive, chunk)

    def _receive(self, archive: Archive, chunk: bytes) -> None:
        if self._receiving != archive:
            self._receiving = archive
            self._write = self._until_complete.enter_context(self._cache.receive(archive.sha256, archive.name))
        if chunk:
            self._write(chunk)
        else:
            self._receiving = None
            self._until_complete.close()

    @asynccontextmanager
    async def serving(self, archives: Sequence[Archive]) -> AsyncGenerator[OwnedServer, None]:
        """Serve archives on this machine alone until the block ends, or this process does."""
        from reelscribe.server.owned_server import owned_server  # nodes that serve nothing need not have its packages

        async with AsyncExitStack() as stack:
            paths = [stack.enter_context(self._cache.use(archive.sha256)) for archive in archives]
            yield await stack.enter_async_context(owned_server(paths))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
