"""What a node does with what its driver tells it."""

import asyncio
from types import SimpleNamespace

from reelscribe._track_specs import ShotSpec
from reelscribe.cluster import mail, remote_node
from reelscribe.cluster.remote_node import NodeSpec, RemoteNode
from reelscribe.reporting.time_left import SourceSize
from reelscribe.run import messages
from reelscribe.run.tracks.shots import ShotOptions
from support.patience import PATIENCE


async def said(node: RemoteNode, kind):
    """Listen to a node until it says a message of a kind, and answer what it asks meanwhile."""
    while True:
        for message in await asyncio.wait_for(node.listen(), PATIENCE):
            if isinstance(message, kind):
                return message
            if isinstance(message, mail.Call):
                await node.tell([mail.Answers([(message.number, 1)])])


async def test_a_lease_that_is_asked_back_in_the_mail_that_brought_it_is_given_back(sources):
    node, path = RemoteNode(), str(sources / "100.mkv")
    await node.begin(NodeSpec([ShotSpec(ShotOptions())], str(sources)))
    await said(node, messages.Ready)
    await node.tell([messages.Lease(path, SourceSize("video", 1)), messages.GiveBack(1)])
    assert await said(node, messages.GivenBack) == messages.GivenBack([path])
    await node.end()


async def test_a_node_that_got_archives_for_long_does_not_end_when_it_begins(sources, monkeypatch):
    ended, clock = [], SimpleNamespace(monotonic=lambda: clock.seconds, seconds=0.0)
    monkeypatch.setattr("reelscribe.cluster.remote_node.time", clock)
    monkeypatch.setattr("os._exit", ended.append)
    node = RemoteNode()
    clock.seconds += 2 * remote_node.FENCE_SECONDS
    await node.begin(NodeSpec([ShotSpec(ShotOptions())], str(sources)))
    for _ in range(10):  # the node begins before the driver listens
        await asyncio.sleep(0)
    await node.end()
    assert not ended


async def test_a_node_decides_by_its_own_cores_and_those_it_was_given_how_many_processes_decode(sources, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    for most_cores, processes in ((None, 64), (5, 5), (100, 64)):
        node = RemoteNode()
        await node.begin(NodeSpec([ShotSpec(ShotOptions())], str(sources), most_cores=most_cores))
        (track,) = (await said(node, messages.Ready)).tracks
        assert (track.workers, track.why_workers) == (processes, f"{processes} cores")
        await node.end()
