"""What nodes share while they work: contents of several names, requests in flight, and the last sources."""

import asyncio
import shutil

from reelscribe.run import messages
from support.cluster_runs import AT_ONCE, cluster_run, completed, done_by, on_one_machine, records, sent
from support.fake_torchserve import FakeTorchServe, Gate, captions
from support.local_cluster import LocalCluster


async def test_copies_are_annotated_once_also_when_two_nodes_have_them(sources, tmp_path):
    library, gate, cluster = tmp_path / "library", Gate(), LocalCluster("a")
    library.mkdir()
    names = [library / f"{number}.mkv" for number in range(4)]
    for name, level in zip(names, (100, 120, 100, 140), strict=True):
        shutil.copy(sources / f"{level}.mkv", name)
    async with FakeTorchServe(gate) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path / "many", cluster), *names))
        await gate.wait_for(AT_ONCE)
        cluster.join("b")
        await gate.wait_for(1)  # that of 3.mkv, as 2.mkv waits for its copy on the first node
        assert cluster.nodes_of("0.mkv") + cluster.nodes_of("2.mkv") == ["a", "b"]
        gate.open.set()
        summary = await running
    assert len(sent(server)) == 3
    assert summary.snapshot.sources_copies == 1
    await on_one_machine(tmp_path / "one", *names)
    assert records(tmp_path / "many") == records(tmp_path / "one")


async def test_requests_in_flight_are_shared_out_when_a_node_joins_or_is_lost(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a")
    async with FakeTorchServe(gate) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster, requests_in_flight=2), sources))
        await gate.wait_for(AT_ONCE)
        cluster.join("b")
        await gate.wait_for(1)
        first, second = cluster.all
        assert await second.hears(messages.Share) == [messages.Share(2)]
        assert gate.most_waiting == AT_ONCE + 1  # though the second node has as many sources as the first
        second.die()
        shares = await first.hears(messages.Share, 3)
        assert shares[:3] == [messages.Share(1), messages.Share(2), messages.Share(1)]
        gate.open.set()
        await running
    assert records(tmp_path) == expected


async def test_at_the_end_sources_move_from_a_slow_node_to_an_idle_one(sources, expected, tmp_path, monkeypatch):
    # A node that has done a source within so short a time gets all others at once.
    monkeypatch.setattr("reelscribe.run.driver.TICK_SECONDS", 0.01)
    cluster, may_go_on = LocalCluster("a"), asyncio.Event()

    async def answer(request):
        if len(server.received) == 2:  # of the first node, which is slow from now on
            await may_go_on.wait()
        return await captions(request)

    async with FakeTorchServe(answer) as server:
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster, requests_in_flight=1), sources))
        for _ in range(2):
            await server.arrivals.get()
        await cluster.alive["a"].hears(messages.Lease, 10)
        cluster.join("b")
        for _ in range(5):
            await server.arrivals.get()
        may_go_on.set()
        summary = await running
    assert records(tmp_path) == expected
    assert len(sent(server)) == 10
    assert done_by(summary)["b"] >= 5
