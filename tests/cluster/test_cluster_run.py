"""A run over several nodes has the results of a run on one machine, whatever happens to the nodes."""

import asyncio
import json
from contextlib import AsyncExitStack

import numpy as np
import pytest

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.speakers import SpeakerOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from reelscribe.server.server_discovery import FoundServer
from support.audio import RATE, tone, write
from support.fake_torchserve import SPEECH, FakeTorchServe, transcripts
from support.local_cluster import LocalCluster
from support.odd_library import make_library
from support.patience import PATIENCE
from support.speaker_runs import PITCHES, speaker_server, write_talk

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


@pytest.mark.parametrize(
    ("options", "speakers"),
    [
        ([SpeechOptions(channels="separate")], {"channel 1", "channel 2"}),
        ([SpeechOptions(), SpeakerOptions()], {"speaker 1", "speaker 2"}),
    ],
    ids=["by channels", "by voices"],
)
async def test_speakers_are_those_of_one_machine(tmp_path, options, speakers):
    for name in "abc":
        write_talk(tmp_path / f"{name}.flac", (0, 4), (1, 4))
    write(tmp_path / "d.flac", np.stack([tone(hertz, 8) for hertz in PITCHES[:2]]), RATE, "flac", "stereo")
    sources = [str(path) for path in sorted(tmp_path.glob("*.flac"))]
    async with FakeTorchServe(transcripts, description=SPEECH, beside=[speaker_server()]) as server:
        found = [FoundServer(Server(server.url))]
        specs = [ModelSpec(each, found, name, 8) for each, name in zip(options, ("speech", "speakers"), strict=False)]
        async with AsyncExitStack() as stack:
            alone = Run([await spec.open(stack) for spec in specs], tmp_path / "one")
            await asyncio.wait_for(alone.run(sources), PATIENCE)
        many = Run(RemoteNodes(specs, LocalCluster("a", "b")), tmp_path / "many")
        await asyncio.wait_for(many.run(sources), PATIENCE)
    one, other = [(tmp_path / name / "annotations.jsonl").read_bytes() for name in ("one", "many")]
    assert one == other
    records = [json.loads(line) for line in one.splitlines()]
    timed = [each for record in records for each in (*record["segments"], *record.get("turns", ()))]
    assert {each.get("speaker") for each in timed} >= speakers
