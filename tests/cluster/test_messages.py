"""What driver and nodes tell each other at once stays small, so that Ray sends it with the call."""

import asyncio
import logging
import os
import pickle

from reelscribe._tasks import Reservations
from reelscribe.cluster.mail import Call, Failed, Said, cut
from reelscribe.cluster.remote_node import NodeSpec, RemoteNode, version
from reelscribe.cluster.session import NodeSession
from reelscribe.errors import UsageError
from reelscribe.reporting.time_left import SourceSize
from reelscribe.results.ledger import Ledger
from reelscribe.run.messages import Lease
from reelscribe.run.node import Destination
from support.patience import PATIENCE

RAY_BYTES = 100 * 1024
"""Size up to which Ray sends an argument or a result with the call."""


def test_a_queue_is_cut_in_order_and_nothing_is_lost():
    queue = [Lease(f"/library/{number}/video.mp4", SourceSize("video", 1), sha256="0" * 64) for number in range(3000)]
    expected, pieces = list(queue), []
    while queue:
        pieces.append(cut(queue))
    assert [lease for piece in pieces for lease in piece] == expected
    assert max(len(pickle.dumps(piece)) for piece in pieces) < RAY_BYTES
    assert len(pieces) < 20


def test_an_item_that_is_too_large_goes_alone():
    queue = ["small", "x" * 200_000, "small too"]
    assert [cut(queue), cut(queue), cut(queue), cut(queue)] == [["small"], ["x" * 200_000], ["small too"], []]


class Asking:
    """A node that makes many calls at once, and keeps what it is told."""

    name = "a"

    def __init__(self, calls):
        self.calls, self.left, self.told = calls, len(calls), []
        self.all_told = asyncio.Event()

    async def version(self):
        return version()

    async def begin(self, spec):
        pass

    async def listen(self):
        if not self.calls:
            await asyncio.Event().wait()
        calls, self.calls = self.calls, []
        return calls

    async def tell(self, letters):
        self.told.append(letters)
        self.left -= sum(len(answers.values) for answers in letters)
        if not self.left:
            self.all_told.set()


async def test_answers_to_many_calls_are_told_in_pieces(tmp_path):
    node = Asking([Call(number, "job", (f"{number:064}", 1)) for number in range(2000)])
    async with Ledger(tmp_path) as ledger:
        await ledger.settings_id({"model": "m"})
        session = NodeSession(node, NodeSpec([], ""), Destination(ledger, tmp_path), Reservations(), lambda _: None)
        running = asyncio.create_task(session.run(print, print))
        await asyncio.wait_for(node.all_told.wait(), PATIENCE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [number for mail in node.told for number, _ in mail[0].values] == list(range(2000))
    assert max(len(pickle.dumps(mail)) for mail in node.told) < RAY_BYTES


class Talking:
    """A track that has much to say before it fails."""

    servers = ()

    def on(self, servers):
        return self

    async def open(self, stack):
        for number in range(2000):
            logging.getLogger("reelscribe").info("message %d of many, %s", number, "x" * 100)
        raise UsageError("enough")


async def test_what_a_node_has_to_say_is_listened_to_in_pieces():
    node, heard = RemoteNode(), []
    await node.begin(NodeSpec([Talking()], os.getcwd()))
    while len([message for mail in heard for message in mail]) < 2001:
        heard.append(await asyncio.wait_for(node.listen(), PATIENCE))
    await node.end()
    assert {type(message) for mail in heard for message in mail} == {Said, Failed}
    assert max(len(pickle.dumps(mail)) for mail in heard) < RAY_BYTES
