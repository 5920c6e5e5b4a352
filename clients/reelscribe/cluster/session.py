"""What the driver has with one node, from its start to its end; and what it needs of nodes and their cluster.

The leases of a node belong to its session. When the driver gives a node up, the session is over: nobody reads what the
node says from then on, so a node that was given up for dead and is not changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, Self

from reelscribe._tasks import Reservation, cancel_all
from reelscribe.cluster import messages
from reelscribe.cluster.figures import NodeFigures
from reelscribe.cluster.messages import Message
from reelscribe.cluster.node import NodeSpec, version
from reelscribe.cluster.serving import Archive, Archives
from reelscribe.errors import NodeRefused
from reelscribe.results.ledger import Ledger
from reelscribe.run.store import Store

SILENCE_SECONDS = 30.0
"""Seconds without an answer of a node after which it is given up. A node that is well answers every second."""

COMING_SECONDS = 60.0
"""Seconds for which a node that starts, or was lost, is waited for where others cannot do something."""

LOSSES_IN_A_ROW = 3
"""Number of times that a node may be lost without having done a source, until it is not started again. Losses with a
source that is suspected to be the cause do not count.
"""

_METHODS = frozenset(name for name in vars(Store) if not name.startswith("_")) - {"find_digest", "hold"}
"""The methods of the ledger that a node may call: those of `Store`. Digests come with leases, and `hold` is no call."""


class NodeLost(Exception):
    """A node has died, or does not answer any more."""


class NodeHandle(Protocol):
    """A node, as the driver reaches it. Its methods raise NodeLost; `node.Node` describes those of the same names."""

    name: str
    """What people know the machine by; it is the same when a node is started there again."""

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
    """One node at work."""

    def __init__(
        self,
        node: NodeHandle,
        figures: NodeFigures,
        ledger: Ledger,
        *,
        heard: Callable[[NodeSession, Message], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """Prepare a session.

        Args:
            node: The node.
            figures: What is told of it.
            ledger: The ledger, for the calls of the node.
            heard: Called with each message of the node that is no call.
            broken: Called with the error of a call, after which the run cannot go on.
        """
        self.node, self.figures = node, figures
        self.is_ready = False
        """Whether sources can be leased to it."""
        self.decode_processes = 0
        self._ledger, self._heard, self._broken = ledger, heard, broken
        self._asked: deque[tuple[int, asyncio.Future[Any]]] = deque()
        """The numbers of the calls that the ledger has not answered yet, which answers in this order."""
        self._has_asked = asyncio.Event()
        self._answers: list[tuple[int, Any]] = []
        self._outbox: list[Message] = []
        self._has_mail = asyncio.Event()
        self._holds: dict[int, tuple[str, Reservation]] = {}
        """The contents that the node has reserved or waits for, by the numbers of its calls."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    def send(self, *mail: Message) -> None:
        """Tell the node messages, soon and in order."""
        self._outbox += mail
        self._has_mail.set()

    async def run(self, spec: NodeSpec, archives: Archives | None = None) -> None:
        """Open the node, and listen to it until it is lost. This returns only by an error.

        Args:
            spec: What it shall do.
            archives: The archives that it serves by itself; None if other servers do.

        Raises:
            NodeLost: The node has died, or does not answer any more.
            NodeRefused: The node has another version.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            theirs = await self.node.version()
            if theirs != version():
                raise NodeRefused(
                    f"expected {version()}, as where the command runs, got {theirs}; install the same there"
                )
            if archives:
                await archives.send(self.node, self._answered)
            await self._answered(self.node.begin(spec))
            tasks = [asyncio.create_task(self._send_mail()), asyncio.create_task(self._collect_answers())]
            while True:
                for task in tasks:
                    if task.done():
                        task.result()
                for message in await self._answered(self.node.listen()):
                    self._take(message)
        finally:
            for content, reservation in self._holds.values():
                self._ledger.reservations.release(content, reservation)
            self._holds.clear()
            await cancel_all(tasks)

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
                answers = messages.cut(self._answers, messages.MOST_BYTES // 2)
                mail = messages.cut(self._outbox, messages.MOST_BYTES // 2)
                await self._answered(self.node.tell([*([messages.Answers(answers)] if answers else []), *mail]))

    def _take(self, message: Message) -> None:
        if not isinstance(message, messages.Call):
            self._heard(self, message)
        elif message.method == "hold":
            self._hold(message.number, *message.arguments)
        elif message.method == "release" and (held := self._holds.pop(message.arguments[0], None)):
            self._ledger.reservations.release(*held)
        elif message.method in _METHODS:
            self._asked.append((message.number, getattr(self._ledger, message.method)(*message.arguments)))
            self._has_asked.set()
        else:
            raise NodeLost(f"it called {message.method!r}, which no node may call")

    def _hold(self, number: int, sha256: str) -> None:
        reservation = self._ledger.reservations.reserve(sha256)
        self._holds[number] = sha256, reservation
        reservation.add_done_callback(lambda _: self._answer(number, None))

    async def _collect_answers(self) -> None:
        """Take the answers of the ledger, as many at once as it gives: with a callback for each they take longer."""
        while True:
            await self._has_asked.wait()
            self._has_asked.clear()
            while self._asked:
                await asyncio.wait([self._asked[0][1]])
                while self._asked and self._asked[0][1].done():
                    number, future = self._asked.popleft()
                    if error := future.exception():
                        self._broken(error)
                    else:
                        self._answer(number, future.result())

    def _answer(self, number: int, value: Any) -> None:
        self._answers.append((number, value))
        self._has_mail.set()


class ComingNodes:
    """The nodes that may be ready soon: those that start, and those that were lost and may start again."""

    def __init__(self) -> None:
        """Begin without nodes."""
        self._until: dict[str, float] = {}
        """Until when each node is waited for, by the clock of the loop."""
        self._losses: Counter[str] = Counter()
        """How often each node was lost since it has done a source."""

    def names(self) -> set[str]:
        """Return the names of the nodes that have not been waited for in vain."""
        now = asyncio.get_running_loop().time()
        return {name for name, until in self._until.items() if until > now}

    def expect(self, name: str) -> None:
        """Note that a node starts."""
        self._until[name] = asyncio.get_running_loop().time() + COMING_SECONDS

    def forget(self, name: str) -> None:
        """Note that a node is ready, or never will be."""
        self._until.pop(name, None)

    def has_done_a_source(self, name: str) -> None:
        """Note that a node is of use."""
        self._losses[name] = 0

    def lost(self, name: str, *, with_suspect: bool) -> bool:
        """Note that a node was lost, maybe by the fault of a suspect. Returns whether it may start again."""
        self._losses[name] += not with_suspect
        if self._losses[name] >= LOSSES_IN_A_ROW:
            return False
        self.expect(name)
        return True
