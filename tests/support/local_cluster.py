"""A cluster whose nodes are in this process, with messages that are pickled as between machines, and that can die."""

import asyncio
import pickle

from reelscribe.cluster import mail
from reelscribe.cluster.remote_node import RemoteNode
from reelscribe.run import messages
from reelscribe.run.lost_nodes import NodeLost


class LocalNode:
    """A node of this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = RemoteNode()
        self.told = []
        """All that it was told by the driver."""
        self.ended = asyncio.Event()
        self._is_told = asyncio.Condition()
        self._lost = asyncio.Event()
        self._is_hung = False

    async def version(self) -> str:
        return await self._unless_lost(self.node.version())

    async def lacking(self, digests):
        return await self._unless_lost(self.node.archives.lacking(digests))

    async def receive(self, archive, chunk) -> None:
        await self._unless_lost(self.node.archives.receive(archive, chunk))

    async def begin(self, spec) -> None:
        await self._unless_lost(self.node.begin(sent(spec)))

    async def tell(self, letters) -> None:
        await self._unless_lost(self.node.tell(sent(letters)))
        async with self._is_told:
            self.told += letters
            self._is_told.notify_all()

    async def listen(self):
        said = sent(await self._unless_lost(self.node.listen()))
        # In one process a node hears what the driver logs, which would come back as said by the node, and so on.
        return [message for message in said if not isinstance(message, mail.Said)]

    async def end(self) -> None:
        await self.node.end()
        self.ended.set()

    def die(self) -> None:
        """Answer nothing any more, and end what it does, as a kill would."""
        self._lost.set()

    def hang(self) -> None:
        """Do what it is told, and never answer."""
        self._is_hung = True

    async def hears(self, kind, count: int = 1) -> list:
        """Wait until it was told so many messages of a kind, and return all of them."""
        async with self._is_told:
            await self._is_told.wait_for(lambda: len(self.told_of(kind)) >= count)
        return self.told_of(kind)

    def told_of(self, kind) -> list:
        """The messages of a kind that it was told."""
        return [message for message in self.told if isinstance(message, kind)]

    async def _unless_lost(self, answer):
        lost = asyncio.create_task(self._lost.wait())
        answering = asyncio.ensure_future(answer)
        try:
            await asyncio.wait((lost, answering), return_when=asyncio.FIRST_COMPLETED)
            if self._lost.is_set():
                raise NodeLost("it died")
            if self._is_hung:
                await asyncio.Event().wait()
            return answering.result()
        finally:
            lost.cancel()
            answering.cancel()


class LocalCluster:
    """Nodes by name; `join` adds one. A node that was lost comes again."""

    def __init__(self, *names: str, node=LocalNode) -> None:
        self._node = node
        self._joining = asyncio.Queue()
        self.alive = {}
        self.all = []
        """All nodes that there were, in the order in which they began."""
        for name in names:
            self.join(name)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error) -> None:
        for node in self.alive.values():
            await node.end()

    def join(self, name: str) -> None:
        """Add a node, which the driver gets to know when it asks next."""
        self._joining.put_nowait(name)

    async def nodes(self):
        while True:
            name = await self._joining.get()
            self.alive[name] = self._node(name)
            self.all.append(self.alive[name])
            yield self.alive[name]

    def free(self, name: str) -> None:
        del self.alive[name]
        self.join(name)

    def nodes_of(self, path: str) -> list[str]:
        """The names of the nodes to which a source was leased, by the end of its path, in no certain order."""
        return [node.name for node in self.all for lease in node.told_of(messages.Lease) if lease.path.endswith(path)]


def sent(value):
    """Return what arrives of a message."""
    return pickle.loads(pickle.dumps(value))
