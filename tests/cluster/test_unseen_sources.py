"""Sources that some nodes cannot see, as they lie where only other machines can read them."""

import re

import pytest

from reelscribe.run import node
from support.cluster_runs import cluster_run, completed, lines_without, on_one_machine, records, sent
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster


@pytest.fixture
def hide(monkeypatch):
    """Hide 100.mkv from the nodes for the first looks of so many, and from the driver never."""

    def hide_for(looks: int) -> None:
        why_unseen, left = node.why_unseen, [looks]

        def unseen_if_hidden(path):
            if not path.endswith("100.mkv") or not left[0]:
                return why_unseen(path)
            left[0] -= 1
            return "No such file or directory"

        monkeypatch.setattr(node, "why_unseen", unseen_if_hidden)

    return hide_for


async def test_what_one_node_cannot_see_goes_to_another(sources, expected, tmp_path, hide):
    hide(1)
    cluster = LocalCluster("a", "b")
    async with FakeTorchServe() as server:
        summary = await completed(cluster_run(server, tmp_path, cluster), sources)
    assert records(tmp_path) == expected
    assert (summary.failed, summary.snapshot.sources_done) == (0, 10)
    assert sorted(cluster.nodes_of("100.mkv")) == ["a", "b"]


async def test_what_only_the_driver_sees_fails_with_the_name_of_a_node_until_a_later_run(
    sources, expected, tmp_path, hide
):
    hide(2)
    async with FakeTorchServe() as server:
        summary = await completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources)
        ((path, kind, message),) = summary.snapshot.failures
        assert (path, kind) == (f"{sources}/100.mkv", "MediaError")
        assert re.match(
            r"it cannot be seen on the node [ab] \(No such file or directory\), nor on 1 other, only where the command"
            r" runs; mount its folder at the same path on all nodes, and run the command again",
            message,
        )
        assert lines_without("100.mkv", records(tmp_path)) == lines_without("100.mkv", expected)
        assert (await completed(cluster_run(server, tmp_path, LocalCluster("a", "b")), sources)).failed == 0
    assert records(tmp_path) == expected
    assert len(sent(server)) == 10


async def test_what_nobody_can_see_is_a_missing_file_as_on_one_machine(sources, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "gone.mkv").symlink_to(library / "nowhere.mkv")
    (library / "there.mkv").symlink_to(sources / "100.mkv")
    async with FakeTorchServe() as server:
        summary = await completed(cluster_run(server, tmp_path / "many", LocalCluster("a", "b")), library)
    assert (await on_one_machine(tmp_path / "one", library)).failed == summary.failed == 1
    assert records(tmp_path / "many") == records(tmp_path / "one")
