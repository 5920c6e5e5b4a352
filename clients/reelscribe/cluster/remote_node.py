"""A node on another machine: a `run.node.Node` with a link to the ledger, whose messages travel as mail.

The driver calls `begin` once. From then on it calls `tell` with what it has to say, and `listen` for what the node has
to say, which returns when there is something. A node that nobody listens to for FENCE_SECONDS was given up, or its
driver is dead, so it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import reelscribe
from reelscribe._tasks import cancel_all
from reelscribe._track_specs import TrackSpec
from reelscribe.cluster import mail
from reelscribe.cluster.mail import Message
from reelscribe.cluster.serving import Archive, Receiver
from reelscribe.cluster.store_link import StoreLink
from reelscribe.cluster.tokens import LentTokens
from reelscribe.contract.source import content_name
from reelscribe.errors import OutputError, ReelscribeError
from reelscribe.run.messages import Finished, FromNode, GivenBack, Lease, Report
from reelscribe.run.node import Node, enter_tracks, keep_thumbnails
from reelscribe.storage.spool import Spool, SpoolOptions
from reelscribe.thumbnails.store import ThumbnailStore

FENCE_SECONDS = 45.0
"""Seconds without a listener after which a node ends. A driver gives a node up earlier than that."""

LISTEN_SECONDS = 1.0
"""Longest time, in seconds, for which `listen` waits for something to say."""

REPORT_SECONDS = 1.0
"""Seconds between two reports of a node."""


@dataclass(frozen=True)
class NodeSpec:
    """The work of a node."""

    tracks: Sequence[TrackSpec]
    """The specifications of its tracks."""
    folder: str
    """Working folder of the driver, in which the names of sources are meant."""
    tokens: Sequence[str | None] = ()
    """The tokens for the servers of all tracks, in order; None for a server that requires none."""
    archives: Sequence[Archive] = ()
    """The models that a server of the node's own serves; none if the servers of the tracks do."""
    thumbnails: int | None = 0
    """Number of thumbnails of a source, as for `run.node.Destination`."""
    spool: SpoolOptions = field(default_factory=SpoolOptions)
    """The room for copies of sources that are no files; by default in the folder of temporary files."""
    most_cores: int | None = None
    """Largest number of cores for decoding, where that is decided by the cores; None for all of the machine."""


def version() -> str:
    """Return what must be equal on the driver and all nodes, because they exchange Python objects."""
    return f"reelscribe {reelscribe.__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"


class RemoteNode:
    """Annotates sources for a driver on another machine."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._outbox: list[Message] = []
        self._has_mail = asyncio.Event()
        self._link = StoreLink(self._send, self._send_thumbnails)
        self._thumbnails: Thumbnails | None = None
        self._listened = time.monotonic()
        self._main: asyncio.Task[None] | None = None
        self._is_ending = False

    @cached_property
    def archives(self) -> Receiver:
        """Receives the archives of models."""
        return Receiver()

    async def version(self) -> str:
        """Return the `version` of this machine."""
        return version()

    async def begin(self, spec: NodeSpec) -> None:
        """Open the models; `listen` returns Ready when they are open, or Failed."""
        self._listened = time.monotonic()  # archives may have been sent until now, for long
        self._main = asyncio.create_task(self._run(spec))

    async def tell(self, messages: Sequence[Message]) -> None:
        """Take messages of the driver, in order."""
        for message in messages:
            match message:
                case mail.Answers(values):
                    self._link.answered(values)
                case mail.Tokens(texts):
                    self._tokens.write(texts)
                case _:
                    if isinstance(message, Lease):
                        self._link.learn(message)
                    self._node.receive(message)  # type: ignore[arg-type]  # a driver sends no message of a node

    async def listen(self) -> list[Message]:
        """Return messages for the driver: at once if there are any, and otherwise after LISTEN_SECONDS at most."""
        self._listened = time.monotonic()
        if not self._outbox:
            self._has_mail.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_mail.wait(), LISTEN_SECONDS)
        return mail.cut(self._outbox)

    async def end(self) -> None:
        """End all that the node has started; return when it has ended."""
        if self._main:
            if not self._is_ending:
                self._is_ending = True
                self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)

    def _send(self, message: Message) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    def _send_of_node(self, message: FromNode) -> None:
        match message:
            case Finished(source):
                self._link.forget_lease(source.path)
            case GivenBack(paths):
                for path in paths:
                    self._link.forget_lease(path)
        self._send(message)

    def _send_thumbnails(self, key: str) -> None:
        if self._thumbnails:
            for piece in self._thumbnails.take(content_name(key)):
                self._send(piece)

    async def _run(self, spec: NodeSpec) -> None:
        """Open the models, work until cancelled, and close everything."""
        background = [asyncio.create_task(self._fence())]
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(_messages_to(self._send))
                with suppress(OSError):  # then only sources with absolute names can be seen
                    os.chdir(spec.folder)
                await self._open(spec, stack)
                background.append(asyncio.create_task(self._report()))
                await self._node.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must not wait for the node
            notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
            text = str(error) if isinstance(error, ReelscribeError) else f"{notes}{error!r}"
            self._send(mail.Failed(type(error).__name__, text))
        finally:
            await cancel_all(background)

    async def _open(self, spec: NodeSpec, stack: AsyncExitStack) -> None:
        self._tokens = stack.enter_context(LentTokens(spec.tokens))
        specs = self._tokens.used_by(spec.tracks)
        if spec.archives:
            server = await stack.enter_async_context(self.archives.serving(spec.archives))
            server.ended.add_done_callback(self._server_ended)
            specs = [track.on([server.found]) for track in specs]
        tracks = [await track.open(stack) for track in specs]
        await enter_tracks(tracks, stack, spec.most_cores)
        if spec.thumbnails != 0:
            self._thumbnails = stack.enter_context(Thumbnails())
            keep_thumbnails(tracks, self._thumbnails.folder, spec.thumbnails)
        spool = await stack.enter_async_context(Spool(spec.spool))
        self._node = Node(tracks, self._link, self._send_of_node, spool)
        await self._node.begin()

    def _server_ended(self, why: asyncio.Future[str]) -> None:
        if not why.cancelled():
            self._send(mail.Lost(f"its TorchServe has ended: {why.result()}"))

    async def _report(self) -> None:
        """Tell the driver how the node is, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._send(Report(self._node.report()))

    async def _fence(self) -> None:
        """End the process when nobody listens any more; what it might still save would change nothing."""
        while (left := self._listened + FENCE_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - nothing is what is waited for
            await asyncio.sleep(left)
        os._exit(1)


class Thumbnails:
    """The thumbnails that decode processes have kept on a node and the driver does not have yet.

    Use it as a context manager; they are in a temporary folder, which exists as long as the block.
    """

    folder: Path
    """The folder in which decode processes keep them, as in an output folder."""

    def __enter__(self) -> Thumbnails:
        self._temporary = tempfile.TemporaryDirectory(prefix="reelscribe-thumbnails-")
        self.folder = Path(self._temporary.name)
        self._store = ThumbnailStore(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        self._temporary.cleanup()

    def take(self, sha256: str) -> Iterator[mail.ThumbnailPiece]:
        """Yield the thumbnails of a source in pieces, and remove them when all have been taken."""
        for seconds in self._store.times(sha256):
            webp = self._store.read(sha256, seconds) or b""
            for first in range(0, len(webp), mail.PIECE_BYTES):
                piece = webp[first : first + mail.PIECE_BYTES]
                yield mail.ThumbnailPiece(sha256, seconds, piece, is_last=first + len(piece) == len(webp))
        with suppress(OutputError):  # the temporary folder goes with the node
            self._store.forget(sha256)


class _Messages(logging.Handler):
    """Tells the driver what is logged."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._tell = send
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the driver a message, from whatever thread it comes."""
        said = mail.Said(record.levelno, record.getMessage())
        self._loop.call_soon_threadsafe(self._tell, said)


@contextmanager
def _messages_to(send: Callable[[Message], None]) -> Iterator[None]:
    logger, handler = logging.getLogger("reelscribe"), _Messages(send)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
