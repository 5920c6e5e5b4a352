"""Nodes come, go and hang while a run lasts, and its records are those of a run on one machine."""

import asyncio
from collections import Counter

import pytest

from reelscribe.cluster import mail
from reelscribe.cluster.session import SILENCE_SECONDS
from reelscribe.errors import UsageError
from reelscribe.run import messages
from reelscribe.run.lost_nodes import NodeLost
from support.cluster_runs import AT_ONCE, SHARED, cluster_run, completed, done_by, records, sent
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.local_cluster import LocalCluster, LocalNode
from support.patience import LoopClock


async def test_a_node_that_dies_half_way_comes_again_and_what_it_had_saved_is_not_sent_again(
    sources, expected, tmp_path
):
    cluster = LocalCluster("a")

    async def die_at_the_fifth(request):
        if len(server.received) == 5:
            cluster.alive["a"].die()
        return await captions(request)

    async with FakeTorchServe(die_at_the_fifth, description=SHARED) as server:
        summary = await completed(cluster_run(server, tmp_path, cluster), sources)
    assert records(tmp_path) == expected
    assert (summary.failed, summary.snapshot.nodes_lost, summary.snapshot.sources_done) == (0, 1, 10)
    times = Counter(sent(server))
    assert len(times) == 10
    assert times.total() <= 10 + AT_ONCE


async def test_a_node_that_hangs_is_given_up_and_comes_again(sources, expected, tmp_path, monkeypatch):
    clock, gate, cluster = LoopClock(monkeypatch), Gate(), LocalCluster("a")
    async with FakeTorchServe(gate, description=SHARED) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster), sources))
        await gate.wait_for(AT_ONCE)
        cluster.alive["a"].hang()
        gate.open.set()
        await clock.advance(SILENCE_SECONDS)
        summary = await running
    assert records(tmp_path) == expected
    assert (summary.failed, summary.snapshot.nodes_lost) == (0, 1)


async def test_a_node_that_joins_half_way_gets_work(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a")
    async with FakeTorchServe(gate, description=SHARED) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster), sources))
        await gate.wait_for(AT_ONCE)
        cluster.join("b")
        await gate.wait_for(AT_ONCE)
        gate.open.set()
        summary = await running
    assert records(tmp_path) == expected
    assert all(done >= AT_ONCE for done in done_by(summary).values())
    assert sum(done_by(summary).values()) == 10


class Zombie(LocalNode):
    """A node that works on when the driver has given it up."""

    is_given_up = False

    async def listen(self):
        said = await super().listen()
        if self.is_given_up:
            raise NodeLost("it does not answer")
        return said

    async def end(self) -> None:
        if not self.is_given_up:
            await super().end()


async def test_a_node_that_was_given_up_and_works_on_changes_nothing(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a", node=Zombie)
    async with FakeTorchServe(gate, description=SHARED) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster), sources))
        await gate.wait_for(AT_ONCE)
        zombie = cluster.alive["a"]
        zombie.is_given_up = True
        server.answer = captions  # to whom comes next; the zombie's requests wait at the gate
        summary = await running
        gate.open.set()
        while not any(isinstance(said, mail.Call) for said in await zombie.node.listen()):
            pass  # until it saves what it got
        await zombie.node.end()
    assert records(tmp_path) == expected
    assert (summary.snapshot.nodes_lost, done_by(summary)) == (1, {"a": 10})


class Fragile(LocalNode):
    """A node that dies of a source."""

    async def tell(self, letters) -> None:
        if any(isinstance(each, messages.Lease) and each.path.endswith("100.mkv") for each in letters):
            self.die()
        await super().tell(letters)


async def test_a_source_that_nodes_die_of_is_told_and_tried_again_by_the_next_run(sources, expected, tmp_path):
    names = [sources / "100.mkv", sources / "120.mkv"]  # leased together, and nothing else is left
    lines = [line for line in expected.splitlines() if b"100.mkv" in line or b"120.mkv" in line]
    async with FakeTorchServe(description=SHARED) as server:
        summary = await completed(cluster_run(server, tmp_path, LocalCluster("a", node=Fragile)), *names)
        assert records(tmp_path).splitlines()[1:] == lines[1:]
        again = await completed(cluster_run(server, tmp_path, LocalCluster("a")), *names)
    assert (records(tmp_path).splitlines(), again.failed) == (lines, 0)
    assert (summary.snapshot.sources_done, summary.failed, summary.snapshot.nodes_lost) == (2, 1, 5)
    ((path, kind, message),) = summary.snapshot.failures
    assert (path, kind) == (str(names[0]), "MediaError")
    assert message.startswith("5 nodes were lost while they worked on it, 3 of them on nothing else")


class Hopeless(LocalNode):
    """A node that dies of whatever it is told."""

    async def tell(self, letters) -> None:
        self.die()
        await super().tell(letters)


async def test_a_node_that_does_nothing_but_die_is_given_up(sources, tmp_path):
    cluster = LocalCluster("a", node=Hopeless)
    async with FakeTorchServe(description=SHARED) as server:
        with pytest.raises(UsageError, match=r"node a: lost 3 times in a row: it died"):
            await completed(cluster_run(server, tmp_path, cluster), sources)
    assert len(cluster.all) == 3
