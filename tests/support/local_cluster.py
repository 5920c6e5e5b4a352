"""A cluster whose nodes are in this process, with messages that are pickled as between machines, and that can die."""

import asyncio
import pickle

from reelscribe.cluster.node import Node
from reelscribe.cluster.session import NodeLost


class LocalNode:
    """A node of this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = Node()
        self._lost = asyncio.Event()
        self.told = []
        """All that the driver has told it."""

    async def version(self) -> str:
        return await self._unless_lost(self.node.version())

    async def lacking(self, digests):
        return await self._unless_lost(self.node.archives.lacking(digests))

    async def receive(self, archive, chunk) -> None:
        await self._unless_lost(self.node.archives.receive(archive, chunk))

    async def begin(self, spec) -> None:
        await self._unless_lost(self.node.begin(sent(spec)))

    async def tell(self, mail) -> None:
        self.told += mail
        await self._unless_lost(self.node.tell(sent(mail)))

    async def listen(self):
        return sent(await self._unless_lost(self.node.listen()))

    async def end(self) -> None:
        await self.node.end()

    def die(self) -> None:
        """Answer nothing any more, and end what it does, as a kill would."""
        self._lost.set()

    async def _unless_lost(self, answer):
        lost = asyncio.create_task(self._lost.wait())
        answering = asyncio.ensure_future(answer)
        await asyncio.wait((lost, answering), return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if self._lost.is_set():
            answering.cancel()
            raise NodeLost("it died")
        return answering.result()


class LocalCluster:
    """Nodes by name; `join` adds one. A node that was lost comes again, unless `keep_lost`."""

    def __init__(self, *names: str, node=LocalNode) -> None:
        self._node = node
        self._joining = asyncio.Queue()
        self.alive = {}
        for name in names:
            self.join(name)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error) -> None:
        for node in self.alive.values():
            await node.end()

    def join(self, name: str) -> None:
        self._joining.put_nowait(name)

    async def nodes(self):
        while True:
            name = await self._joining.get()
            self.alive[name] = self._node(name)
            yield self.alive[name]

    def free(self, name: str) -> None:
        del self.alive[name]
        self.join(name)


def sent(value):
    """Return what arrives of a message."""
    return pickle.loads(pickle.dumps(value))
