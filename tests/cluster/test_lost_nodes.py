"""Nodes come and go while a run lasts, and its records are those of a run on one machine."""

import asyncio
from collections import Counter

import pytest

from reelscribe.cluster import messages
from reelscribe.cluster.session import NodeLost
from reelscribe.results.ledger import Ledger
from support.cluster_runs import cluster_run, completed, sent
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.local_cluster import LocalCluster, LocalNode


def records(out) -> bytes:
    return (out / "annotations.jsonl").read_bytes()


def done_by(summary) -> dict[str, int]:
    return {node.name: node.sources_done for node in summary.snapshot.nodes}


async def test_a_node_that_dies_half_way_comes_again_and_what_it_had_saved_is_not_sent_again(
    sources, expected, tmp_path
):
    cluster = LocalCluster("a")

    async def die_at_the_fifth(request):
        if len(server.received) == 5:
            cluster.alive["a"].die()
        return await captions(request)

    async with FakeTorchServe(die_at_the_fifth) as server:
        summary = await completed(cluster_run(server, tmp_path, cluster), sources)
    assert records(tmp_path) == expected
    assert (summary.failed, summary.snapshot.nodes_lost, summary.snapshot.sources_done) == (0, 1, 10)
    times = Counter(sent(server))
    assert len(times) == 10
    assert times.total() <= 10 + 2  # as many sources were leased at once


async def test_a_node_that_joins_half_way_gets_work(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a")
    async with FakeTorchServe(gate) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster), sources))
        await gate.wait_for(2)  # all that is leased to the first node
        cluster.join("b")
        await gate.wait_for(2)
        gate.open.set()
        summary = await running
    assert records(tmp_path) == expected
    assert all(done >= 2 for done in done_by(summary).values())
    assert sum(done_by(summary).values()) == 10


class Zombie(LocalNode):
    """A node that was given up for dead, and works on."""

    given_up = False

    async def listen(self):
        said = await super().listen()
        if self.given_up:
            raise NodeLost("it does not answer")
        return said

    async def end(self) -> None:
        if not self.given_up:
            await super().end()


async def test_a_node_that_was_given_up_and_works_on_changes_nothing(sources, expected, tmp_path):
    cluster, zombies = LocalCluster("a", node=Zombie), []
    zombie_answers, zombie_answered = asyncio.Event(), asyncio.Event()

    async def answer(request):
        if len(server.received) > 2:
            return await captions(request)
        if len(server.received) == 2:
            zombies.append(cluster.alive["a"])
            zombies[0].given_up = True
        await zombie_answers.wait()
        zombie_answered.set()
        return await captions(request)

    async with FakeTorchServe(answer) as server:
        summary = await completed(cluster_run(server, tmp_path, cluster), sources)
        zombie_answers.set()
        await zombie_answered.wait()
        (zombie,) = zombies
        while not any(isinstance(each, messages.Call) and each.method == "save_batch" for each in await zombie.node.listen()):
            pass
        await zombie.node.end()
    assert records(tmp_path) == expected
    assert (summary.snapshot.nodes_lost, done_by(summary)) == (1, {"a": 10})


class Fragile(LocalNode):
    """A node that dies of a source."""

    async def tell(self, mail) -> None:
        if any(isinstance(each, messages.Lease) and each.path.endswith("100.mkv") for each in mail):
            self.die()
        await super().tell(mail)


@pytest.mark.parametrize("nodes", [("a",), ("a", "b")])
async def test_a_source_that_every_node_dies_of_is_told_and_all_others_are_done(sources, expected, tmp_path, nodes):
    cluster = LocalCluster(*nodes, node=Fragile)
    async with FakeTorchServe() as server:
        summary = await completed(cluster_run(server, tmp_path, cluster), sources)
    assert (summary.snapshot.sources_done, summary.failed, summary.snapshot.nodes_lost) == (10, 1, 5)
    ((path, kind, message),) = summary.snapshot.failures
    assert (path, kind) == (f"{sources}/100.mkv", "MediaError")
    assert message.startswith("5 nodes were lost while they worked on it, 3 of them on nothing else")
    others = [line for line in records(tmp_path).splitlines() if b"100.mkv" not in line]
    assert others == [line for line in expected.splitlines() if b"100.mkv" not in line]


class Hopeless(LocalNode):
    """A node that dies of every source."""

    async def tell(self, mail) -> None:
        self.die()
        await super().tell(mail)


async def test_a_node_that_does_nothing_but_die_is_given_up(sources, tmp_path):
    async with FakeTorchServe() as server:
        with pytest.raises(Exception, match=r"node a: lost 3 times in a row: it died"):
            await completed(cluster_run(server, tmp_path, LocalCluster("a", node=Hopeless)), sources)


async def test_a_node_that_is_lost_while_its_sources_are_looked_up_is_lost_with_its_leases(
    sources, expected, tmp_path, monkeypatch
):
    cluster, look_up = LocalCluster("a"), Ledger.look_up
    async with FakeTorchServe() as server:
        await completed(cluster_run(server, tmp_path, LocalCluster("a"), limit=3), sources)

        async def lose_it_first(ledger, *arguments):
            monkeypatch.setattr(Ledger, "look_up", look_up)
            dying = cluster.alive["a"]
            dying.die()
            while cluster.alive.get("a") is dying:
                await asyncio.sleep(0)
            return await look_up(ledger, *arguments)

        monkeypatch.setattr(Ledger, "look_up", lose_it_first)
        summary = await completed(cluster_run(server, tmp_path, cluster, limit=10), sources)
    assert records(tmp_path) == expected
    assert summary.snapshot.nodes_lost == 1
