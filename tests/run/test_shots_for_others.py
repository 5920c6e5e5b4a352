"""Clips and frames of the shots that a model finds in the same run."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from reelscribe._track_specs import ModelSpec, ShotSpec, TrackSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import UsageError
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.clips import ClipOptions
from reelscribe.run.tracks.shots import ShotOptions
from reelscribe.server.server_discovery import FoundServer
from support.clip_runs import clip_server
from support.fake_torchserve import FakeTorchServe, refused
from support.local_cluster import LocalCluster
from support.odd_library import write_sound
from support.patience import PATIENCE
from support.sending import no_waiting
from support.shot_runs import answers, records, shot_server, spec, windows_sent, write_video

CLIPS = ClipOptions(cutting=ClipCutting("shots"), decode_workers=1, model_shots=True)
FRAMES = CaptionOptions(Sampling(per_shot=1), decode_workers=1, model_shots=True)


@pytest.fixture
def video(tmp_path) -> Path:
    """A video of shots of 1.8, 3.4 and 2.3 seconds, of which our own detector finds the second as two."""
    return write_video(tmp_path / "video.mkv")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def specs(server: FakeTorchServe, options: ClipOptions | CaptionOptions, *shots: ModelSpec) -> list[ModelSpec]:
    return [ModelSpec(options, [FoundServer(Server(server.url))], server.model, 8), *shots]


async def run(out: Path, tracks: Sequence[TrackSpec], *paths: Path) -> Summary:
    with no_waiting():
        async with AsyncExitStack() as stack:
            run = Run([await each.open(stack) for each in tracks], out, thumbnails=0)
            return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)


async def test_clips_are_the_shots_of_the_model(video, out):
    async with clip_server() as clips, shot_server() as shots:
        assert (await run(out, specs(clips, CLIPS, spec(shots)), video)).failed == 0
    record = records(out)["video.mkv"]
    assert [(clip["start"], clip["end"]) for clip in record["clips"]] == [(0.0, 1.8), (1.8, 5.2), (5.2, 7.5)]
    assert [shot["transition"] for shot in record["shots"]] == [None, "cut", "gradual"]


async def test_frames_are_those_of_the_shots_of_the_model(video, out):
    async with FakeTorchServe() as captioner, shot_server() as shots:
        assert (await run(out, specs(captioner, FRAMES, spec(shots)), video)).failed == 0
    assert [caption["frame_index"] for caption in records(out)["video.mkv"]["captions"]] == [9, 35, 63]


async def test_shots_that_are_known_are_not_looked_for_again(video, out):
    async with shot_server() as shots, clip_server() as clips, FakeTorchServe() as captioner:
        await run(out, [spec(shots)], video)
        sent = windows_sent(shots)
        await run(out, specs(clips, CLIPS, spec(shots)), video)
        await run(out, specs(captioner, FRAMES, spec(shots)), video)
        assert windows_sent(shots) == sent
    record = records(out)["video.mkv"]
    assert (len(record["clips"]), len(record["captions"])) == (3, 3)


async def test_without_shots_there_are_no_clips_and_the_record_says_why(video, out, tmp_path, media):
    async def refuse(request):
        return refused(422, "FramesError", "no") if request.tree["windows"].any() else await answers(request)

    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    async with clip_server() as clips, shot_server(refuse) as shots:
        assert (await run(out, specs(clips, CLIPS, spec(shots)), video, tmp_path / "sound.mp4")).failed == 2
        assert clips.received == []
    found = records(out)
    assert "clips: its shots are not known: 75 frames have no probability" in found["video.mkv"]["error"]["message"]
    assert found["sound.mp4"]["error"]["type"] == "NoPictures"


@pytest.mark.parametrize("retry_failed", [False, True])
async def test_shots_of_another_detector_are_not_those_of_new_clips(video, out, retry_failed):
    await run(out, [ShotSpec(ShotOptions())], video)
    assert len(records(out)["video.mkv"]["shots"]) == 4
    options = replace(CLIPS, retry_failed=retry_failed)
    async with clip_server() as clips, shot_server() as shots:
        await run(out, specs(clips, options, spec(shots, retry_failed=retry_failed)), video)
    record = records(out)["video.mkv"]
    assert (len(record["shots"]), len(record["clips"])) == (3, 3)


async def test_trying_again_leaves_shots_of_another_detector_where_clips_are_done(video, out):
    async with clip_server() as clips, shot_server() as shots:
        await run(out, specs(clips, CLIPS, spec(shots)), video)
        await run(out, [ShotSpec(ShotOptions())], video)
        before = (out / "annotations.jsonl").read_bytes()
        options = replace(CLIPS, retry_failed=True)
        await run(out, specs(clips, options, spec(shots, retry_failed=True)), video)
    assert (out / "annotations.jsonl").read_bytes() == before


async def test_a_video_that_is_cut_short_has_clips_of_the_shots_that_are_there(video, out):
    content = video.read_bytes()
    video.write_bytes(content[: len(content) * 4 // 5])
    async with clip_server() as clips, shot_server() as shots:
        assert (await run(out, specs(clips, CLIPS, spec(shots)), video)).failed == 1
    record = records(out)["video.mkv"]
    assert "cut short" in record["error"]["message"]
    assert [clip["start"] for clip in record["clips"]] == [
        0.0,
        1.8,
    ]  # what is left of the last shot is no clip of its own


async def test_a_track_that_finds_the_shots_must_be_there(video, out):
    async with clip_server() as clips:
        with pytest.raises(UsageError, match="expected a track that finds them in the same run"):
            await run(out, specs(clips, CLIPS), video)


async def test_nodes_of_a_cluster_do_the_same(video, out, tmp_path):
    async with clip_server() as clips, shot_server() as shots:
        tracks = specs(clips, CLIPS, spec(shots))
        await run(tmp_path / "one", tracks, video)
        many = Run(RemoteNodes(tracks, LocalCluster("a")), out, thumbnails=0)
        assert (await asyncio.wait_for(many.run([str(video)]), PATIENCE)).failed == 0
    for name in ("annotations.jsonl", "run.json"):
        assert (out / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
