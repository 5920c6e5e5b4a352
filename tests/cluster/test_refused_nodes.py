"""Nodes that cannot be used are told by name, and a run goes on with the others, or ends where there is none."""

import asyncio
from dataclasses import replace

import pytest

from reelscribe.cluster.remote_node import version
from reelscribe.errors import ReelscribeError, ServerError
from support.cluster_runs import AT_ONCE, SHARED, cluster_run, completed, done_by, records
from support.fake_torchserve import DESCRIPTION, FakeTorchServe, Gate
from support.local_cluster import LocalCluster, LocalNode
from support.sending import Messages


class Mixed(LocalNode):
    """A node whose version is an old one if its name says so."""

    async def version(self) -> str:
        return "reelscribe 0.1, Python 3.9" if "old" in self.name else await super().version()


async def test_a_node_of_another_version_is_refused_by_name_and_the_others_go_on(sources, expected, tmp_path):
    async with FakeTorchServe(description=SHARED) as server:
        with Messages() as said:
            summary = await completed(cluster_run(server, tmp_path, LocalCluster("old", "b", node=Mixed)), sources)
    assert records(tmp_path) == expected
    refusal = f"expected {version()}, as where the command runs, got reelscribe 0.1, Python 3.9; install the same there"
    assert f"node old is not used: {refusal}" in said.lines
    assert done_by(summary) == {"old": 0, "b": 10}
    assert [node.state for node in summary.snapshot.nodes] == [f"not used: {refusal}", "ready"]


async def test_where_no_node_has_the_version_the_run_ends_with_the_name_of_the_last(sources, tmp_path):
    async with FakeTorchServe(description=SHARED) as server:
        with pytest.raises(ReelscribeError, match=r"node (very )?old: expected .*, got reelscribe 0\.1"):
            await completed(cluster_run(server, tmp_path, LocalCluster("old", "very old", node=Mixed)), sources)
    assert server.received == []


async def test_where_no_node_reaches_a_server_the_run_ends_with_its_error(sources, tmp_path):
    async with FakeTorchServe(description=SHARED) as server:
        server.model_is_there = False
        with pytest.raises(ServerError, match=r"node a: .*captioner"):
            await completed(cluster_run(server, tmp_path, LocalCluster("a")), sources)


async def test_a_node_whose_server_has_another_model_than_that_of_the_first_is_refused(sources, expected, tmp_path):
    gate, cluster = Gate(), LocalCluster("a")
    async with FakeTorchServe(gate, description=SHARED) as server:
        with Messages() as said:
            running = asyncio.create_task(completed(cluster_run(server, tmp_path, cluster), sources))
            await gate.wait_for(AT_ONCE)
            server.description = replace(DESCRIPTION, revision="of tomorrow")
            cluster.join("b")
            await said.line_with("node b is not used")
            gate.open.set()
            summary = await running
    assert records(tmp_path) == expected
    assert done_by(summary) == {"a": 10, "b": 0}
    refusal = "not used: expected the models and settings of the first node, got another model of captions"
    assert summary.snapshot.nodes[1].state == refusal
