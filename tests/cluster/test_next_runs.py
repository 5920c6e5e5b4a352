"""Runs over many machines that end before all is done, and runs after them that do the rest."""

import asyncio
import resource
from contextlib import contextmanager

import pytest

from reelscribe.errors import OutputError
from reelscribe.run import messages
from support.cluster_runs import AT_ONCE, SHARED, cluster_run, completed, records, sent
from support.fake_torchserve import FakeTorchServe, Gate, captions, refused
from support.local_cluster import LocalCluster


async def test_the_limit_is_on_sources_that_are_not_done_yet(sources, expected, tmp_path):
    async with FakeTorchServe(description=SHARED) as server:
        for limit, done in ((3, 3), (4, 7), (4, 10)):
            summary = await completed(cluster_run(server, tmp_path, LocalCluster("a", "b"), limit=limit), sources)
            assert (summary.interrupted, len(sent(server))) == (False, done)
    assert records(tmp_path) == expected


async def test_a_stopped_run_saves_what_is_in_flight_and_the_next_one_does_the_rest(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a", "b")
    async with FakeTorchServe(gate, description=SHARED) as server:
        run = cluster_run(server, tmp_path, cluster)
        running = asyncio.create_task(completed(run, sources))
        await gate.wait_for(2 * AT_ONCE)
        run.stop()
        for node in cluster.all:
            await node.hears(messages.Stop)
        gate.open.set()
        stopped = await running
        assert (stopped.interrupted, len(sent(server))) == (True, 2 * AT_ONCE)
        rest = await completed(cluster_run(server, tmp_path, LocalCluster("a")), sources)
    assert records(tmp_path) == expected
    assert (rest.interrupted, rest.snapshot.sources_done, len(sent(server))) == (False, 10, 10)


async def test_a_run_that_is_stopped_before_there_is_a_node_ends(sources, tmp_path):
    async with FakeTorchServe(description=SHARED) as server:
        run = cluster_run(server, tmp_path, LocalCluster())
        run.stop()
        assert (await completed(run, sources)).interrupted


async def test_what_the_server_refused_is_tried_again_by_a_run_that_is_asked_to(sources, expected, tmp_path):
    async def refuse_100(request):
        return refused(422, "FramesError", "no good") if 100 in request.names() else await captions(request)

    async with FakeTorchServe(refuse_100, description=SHARED) as server:
        assert (await completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources)).failed == 1
        server.answer, server.received = captions, []
        assert (await completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources)).failed == 1
        assert server.received == []
        again = await completed(cluster_run(server, tmp_path, LocalCluster("a", "b"), retry_failed=True), sources)
    assert records(tmp_path) == expected
    assert (again.failed, sent(server)) == (0, [100])


@contextmanager
def full_disk(size: int):
    """What a full disk is to this process: files that cannot grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_ends_the_run_and_the_next_one_completes_it(sources, expected, tmp_path):
    gate = Gate()
    async with FakeTorchServe(description=SHARED) as server:
        await completed(cluster_run(server, tmp_path, LocalCluster("a"), limit=3), sources)
        server.answer = gate
        running = asyncio.create_task(completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources))
        await gate.wait_for(2 * AT_ONCE)
        with full_disk((tmp_path / "ledger.sqlite-wal").stat().st_size):
            gate.open.set()
            with pytest.raises(OutputError, match=r"ledger\.sqlite: cannot be written"):
                await running
        again = len(sent(server))
        summary = await completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources)
    assert records(tmp_path) == expected
    assert (summary.failed, summary.snapshot.sources_done) == (0, 10)
    assert again <= 3 + 2 * AT_ONCE
    assert len(sent(server)) <= 10 + 2 * AT_ONCE
