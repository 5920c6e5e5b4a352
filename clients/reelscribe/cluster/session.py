"""The driver's side of nodes on other machines: a session with each, and all of them as the nodes of a run.

The leases of a node belong to its session. When the driver gives a node up, the session is over: nobody reads what the
node says from then on, so a node that was given up for dead and is not changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol, Self

from reelscribe._tasks import CallBatcher, Reservation, Reservations, cancel_all
from reelscribe._track_specs import TrackSpec
from reelscribe.client.http_session import open_session
from reelscribe.cluster import mail
from reelscribe.cluster.mail import Message
from reelscribe.cluster.remote_node import NodeSpec, version
from reelscribe.cluster.serving import Archive, Archives
from reelscribe.cluster.tokens import CurrentTokens, without_tokens
from reelscribe.errors import NodeRefused, OutputError, ReelscribeError, UsageError, is_of_one_source
from reelscribe.run.lost_nodes import NodeLost
from reelscribe.run.messages import ToNode
from reelscribe.run.node import Destination, OnMessage
from reelscribe.run.store import Store
from reelscribe.thumbnails.store import ThumbnailStore

SILENCE_SECONDS = 30.0
"""Seconds without an answer of a node after which it is given up. A node that is well answers every second."""

_METHODS = frozenset(name for name in vars(Store) if not name.startswith("_")) - {"find_digest", "hold"}
"""The methods of the ledger that a node may call: those of `Store`. Digests come with leases, and `hold` is no call."""

Thumbnail = tuple[str, float, bytes]
"""The digest of a source, the presentation time of one of its pictures in seconds, and the picture as a WebP file."""

_log = logging.getLogger(__name__)


class NodeHandle(Protocol):
    """The calls of a node on another machine, which raise NodeLost; `remote_node.RemoteNode` describes them."""

    name: str
    """The name by which people know the machine; it is the same when a node is started there again."""

    async def version(self) -> str:
        """Return what must be equal on the driver and all nodes. It waits until the cluster has room for the node."""

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Return the digests of the archives that its machine does not have."""

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        """Take the next bytes of an archive; none at its end."""

    async def begin(self, spec: NodeSpec) -> None:
        """Open the models."""

    async def tell(self, mail: Sequence[Message]) -> None:
        """Take messages of the driver, in order."""

    async def listen(self) -> list[Message]:
        """Return messages for the driver."""

    async def end(self) -> None:
        """End the node in an orderly way, or by force where it does not answer. It raises nothing."""


class Cluster(Protocol):
    """The machines of a run. Use it as an async context manager, which ends every node that is left."""

    async def __aenter__(self) -> Self:
        """Connect to the cluster. Raises UsageError if it cannot be used."""

    async def __aexit__(self, *error: Any) -> None:
        """End every node."""

    def nodes(self) -> AsyncIterator[NodeHandle]:
        """Yield each node that can be used, as soon as it can; again after `free`. It does not end by itself."""

    def free(self, name: str) -> None:
        """Note that a node is not used any more, and may be yielded again."""


class NodeSession:
    """One node at work; see `run.node.NodeConnection`."""

    def __init__(
        self,
        node: NodeHandle,
        spec: NodeSpec,
        destination: Destination,
        reservations: Reservations,
        keep_thumbnail: Callable[[Thumbnail], object],
        archives: Archives | None = None,
    ) -> None:
        """Prepare a session.

        Args:
            node: The node.
            spec: What it shall do.
            destination: The place for what it makes.
            reservations: The contents that nodes have reserved.
            keep_thumbnail: Called with each thumbnail that the node has sent.
            archives: The archives that it serves by itself; None if other servers do.
        """
        self._node, self._spec, self._archives = node, spec, archives
        self._store, self._reservations = destination.store, reservations
        self._keep_thumbnail = keep_thumbnail
        self._pieces: dict[tuple[str, float], bytes] = {}
        """The pieces that have come of thumbnails that are not complete."""
        self._asked: deque[tuple[int, asyncio.Future[Any]]] = deque()
        """The numbers of the calls that the ledger has not answered yet, which answers in this order."""
        self._has_asked = asyncio.Event()
        self._answers: list[tuple[int, Any]] = []
        self._outbox: list[Message] = []
        self._has_mail = asyncio.Event()
        self._holds: dict[int, tuple[str, Reservation]] = {}
        """The contents that the node has reserved or waits for, by the numbers of its calls."""

    @property
    def read_report(self) -> None:
        """None, as the node reports its figures by itself."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self._node.name

    def send(self, *messages: ToNode | mail.Tokens) -> None:
        """Tell the node messages, soon and in order."""
        self._outbox += messages
        self._has_mail.set()

    async def run(self, on_message: OnMessage, on_broken: Callable[[BaseException], None]) -> None:
        """Open the node, and listen to it until it is lost; see `NodeConnection.run`.

        Raises:
            NodeLost: The node has died, or does not answer any more.
            NodeRefused: The node has another version.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            theirs = await self._node.version()
            if theirs != version():
                raise NodeRefused(
                    f"expected {version()}, as where the command runs, got {theirs}; install the same there"
                )
            if self._archives:
                await self._archives.send(self._node, self._answered)
            await self._answered(self._node.begin(self._spec))
            tasks = [asyncio.create_task(self._send_mail()), asyncio.create_task(self._collect_answers(on_broken))]
            while True:
                for task in tasks:
                    if task.done():
                        task.result()
                for message in await self._answered(self._node.listen()):
                    self._take(message, on_message)
        finally:
            for content, reservation in self._holds.values():
                self._reservations.release(content, reservation)
            self._holds.clear()
            await cancel_all(tasks)

    async def end(self) -> None:
        """End the node."""
        await self._node.end()

    def as_error_of_the_run(self, error: ReelscribeError) -> ReelscribeError:
        """Return the same error with the name of the node."""
        return mail.Failed(type(error).__name__, f"node {self.name}: {error}").error()

    async def _answered(self, call: Any) -> Any:
        try:
            return await asyncio.wait_for(call, SILENCE_SECONDS)
        except TimeoutError:
            raise NodeLost(f"it has not answered for {SILENCE_SECONDS:.0f} s") from None

    async def _send_mail(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            while self._answers or self._outbox:
                answers = mail.cut(self._answers, mail.MOST_BYTES // 2)
                letters = mail.cut(self._outbox, mail.MOST_BYTES // 2)
                await self._answered(self._node.tell([*([mail.Answers(answers)] if answers else []), *letters]))

    def _take(self, message: Message, on_message: OnMessage) -> None:
        match message:
            case mail.Call(number, "hold", arguments):
                self._hold(number, *arguments)
            case mail.Call(_, "release", (number,)) if number in self._holds:
                self._reservations.release(*self._holds.pop(number))
            case mail.Call(number, method, arguments) if method in _METHODS:
                self._ask(number, method, arguments)
            case mail.Call(_, method):
                raise NodeLost(f"it called {method!r}, which no node may call")
            case mail.ThumbnailPiece():
                self._collect_thumbnail(message)
            case mail.Said(level, text):
                _log.log(level, "node %s: %s", self.name, text)
            case mail.Lost(why):
                raise NodeLost(why)
            case mail.Failed():
                raise message.error()
            case _:
                on_message(message)  # type: ignore[arg-type]  # a node sends no message of a driver

    def _collect_thumbnail(self, piece: mail.ThumbnailPiece) -> None:
        """Pass on a thumbnail when its last piece has come."""
        key = piece.sha256, piece.seconds
        webp = self._pieces.pop(key, b"") + piece.webp
        if piece.is_last:
            self._keep_thumbnail((*key, webp))
        else:
            self._pieces[key] = webp

    def _ask(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Call a method of the ledger. What cannot be saved of one source is an error of that source."""
        try:
            answer = getattr(self._store, method)(*arguments)
        except Exception as error:
            if not is_of_one_source(error):
                raise
            self._answer(number, mail.Failed(type(error).__name__, f"{type(error).__name__}: {error}"))
            return
        self._asked.append((number, answer))
        self._has_asked.set()

    def _hold(self, number: int, sha256: str) -> None:
        reservation = self._reservations.reserve(sha256)
        self._holds[number] = sha256, reservation
        reservation.add_done_callback(lambda _: self._answer(number, None))

    async def _collect_answers(self, on_broken: Callable[[BaseException], None]) -> None:
        """Take the answers of the ledger, as many at once as it gives: with a callback for each they take longer."""
        while True:
            await self._has_asked.wait()
            self._has_asked.clear()
            while self._asked:
                await asyncio.wait([self._asked[0][1]])
                while self._asked and self._asked[0][1].done():
                    number, future = self._asked.popleft()
                    if error := future.exception():
                        on_broken(error)
                    else:
                        self._answer(number, future.result())

    def _answer(self, number: int, value: Any) -> None:
        self._answers.append((number, value))
        self._has_mail.set()


class RemoteNodes:
    """The nodes of a run over many machines; see `run.node.Nodes`."""

    def __init__(self, specs: Sequence[TrackSpec], cluster: Cluster, archives: Archives | None = None) -> None:
        """Describe the nodes.

        Args:
            specs: The specifications of the tracks of each node, at least one.
            cluster: The machines.
            archives: The models that each node serves by itself; None if the servers of `specs` do.
        """
        self._specs, self._cluster, self._archives = specs, cluster, archives
        self._reservations = Reservations()
        self._thumbnails = CallBatcher[Thumbnail, None](self._keep_thumbnails)
        self._store: ThumbnailStore | None = None
        """The place for thumbnails; None before the first node."""
        self._sessions: dict[str, NodeSession] = {}
        self.takes_audio = any(spec.needs_audio for spec in specs)
        self.share_servers = not archives

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            self._tokens = CurrentTokens(self._specs, await stack.enter_async_context(open_session()))
            renewing = asyncio.create_task(self._renew())
            stack.push_async_callback(cancel_all, [renewing])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def connections(self, destination: Destination) -> AsyncIterator[NodeSession]:
        """Yield a session with each node that can be used."""
        self._store = ThumbnailStore(destination.out)
        try:
            async for node in self._cluster.nodes():
                spec = NodeSpec(
                    without_tokens(self._specs),
                    os.getcwd(),
                    await self._tokens.read(),
                    self._archives.all if self._archives else (),
                    destination.thumbnails,
                    destination.spool,
                )
                session = NodeSession(node, spec, destination, self._reservations, self._thumbnails.ask, self._archives)
                self._sessions[node.name] = session
                yield session
        finally:
            await self._thumbnails.end()  # while the folder is still that of this run

    def free(self, name: str) -> None:
        """Note that a node is not used any more, and may be yielded again."""
        self._sessions.pop(name, None)
        self._cluster.free(name)

    async def _keep_thumbnails(self, thumbnails: list[Thumbnail]) -> list[None]:
        await asyncio.to_thread(self._write_thumbnails, thumbnails)
        return [None] * len(thumbnails)

    def _write_thumbnails(self, thumbnails: list[Thumbnail]) -> None:
        assert self._store, "nodes send them"
        for thumbnail in thumbnails:
            # One that cannot be kept is none, as on one machine; a time or digest that cannot be is one, too.
            with suppress(OutputError, UsageError):
                self._store.write(*thumbnail)

    async def _renew(self) -> None:
        """Tell nodes the tokens when they change, until cancelled."""
        async for tokens in self._tokens.changes():
            for session in self._sessions.values():
                session.send(mail.Tokens(tokens))
