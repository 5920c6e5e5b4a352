"""A run over several nodes has the results of a run on one machine, whatever happens to the nodes."""

import asyncio

import pytest

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import FakeTorchServe
from support.local_cluster import LocalCluster
from support.odd_library import make_library
from support.patience import PATIENCE

OPTIONS = CaptionOptions(Sampling(every=2), decode_workers=1)


@pytest.fixture(scope="module")
def library(tmp_path_factory, media):
    folder = tmp_path_factory.mktemp("odd") / "library"
    make_library(folder, media)
    return folder


def spec(server, options=OPTIONS):
    return ModelSpec(options, [FoundServer(Server(server.url))], "captioner", 8)


async def on_one_machine(server, sources, out):
    async with CaptionClient([Server(server.url)], "captioner") as client:
        return await Run([CaptionTrack(client, OPTIONS)], out).run(sources)


async def test_records_are_those_of_one_machine(library, tmp_path):
    async with FakeTorchServe() as server:
        alone = await on_one_machine(server, [str(library)], tmp_path / "one")
        run = Run(RemoteNodes([spec(server)], LocalCluster("a", "b")), tmp_path / "many")
        summary = await asyncio.wait_for(run.run([str(library)]), PATIENCE)
    assert (summary.failed, summary.snapshot.sources) == (alone.failed, alone.snapshot.sources)
    for name in ("annotations.jsonl", "run.json", "failures.txt"):
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert all(node.sources_done for node in summary.snapshot.nodes)
