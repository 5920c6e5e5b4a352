"""Runs that find shots with a model: records, plans, interruptions, failures, and many nodes."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ModelClient
from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.errors import UsageError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.shots import LearnedShotOptions
from reelscribe.run.tracks.track import Track
from support.fake_torchserve import refused
from support.local_cluster import LocalCluster
from support.odd_library import write_sound
from support.patience import PATIENCE
from support.shot_runs import LEVELS, answers, find_shots, records, shot_server, spec, windows_sent, write_video
from support.videos import write_pictures

FOUND = [
    {"start": 0.0, "end": 1.8, "start_frame": 0, "end_frame": 18, "transition": None},
    {"start": 1.8, "end": 5.2, "start_frame": 18, "end_frame": 52, "transition": "cut"},
    {"start": 5.2, "end": 7.5, "start_frame": 52, "end_frame": 75, "transition": "gradual"},
]
"""The shots of the video."""


@pytest.fixture
def video(tmp_path) -> Path:
    return write_video(tmp_path / "video.mkv")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


async def test_the_record_has_the_shots_and_how_each_follows_the_one_before(video, out):
    async with shot_server() as server:
        summary = await find_shots(out, [video], server)
        assert windows_sent(server) == 8
    record = records(out)["video.mkv"]
    assert (record["status"], record["shots"], record["media"]["frames"]) == ("ok", FOUND, len(LEVELS))
    assert summary.snapshot.tracks[0].done == len(LEVELS)
    settings = json.loads((out / "run.json").read_text())["settings"][record["shot_settings"]]
    assert settings == {
        "model": {"name": "a/transnet", "revision": "123"},
        "settings": {
            "detection": {"threshold": 0.5},
            "deinterlace": False,
            "windowing": {"width": 16, "height": 12, "frames": 20, "context": 5},
            "dtype": "float32",
            "engine": "torch",
        },
    }


async def test_the_plan_says_how_many_frames_go_to_the_model(video, out):
    async with shot_server() as server, AsyncExitStack() as stack:
        plan = await Run([await spec(server).open(stack)], out).plan([str(video)])
        await find_shots(out, [video], server)
        again = await Run([await spec(server).open(stack)], out).plan([str(video)])
    assert "every frame to the shot model: about 75 frames to come" in str(plan)
    assert str(again).endswith("all done before")


async def test_an_interrupted_run_goes_on_and_leaves_the_same_bytes(video, tmp_path, out):
    async with shot_server() as server:
        await find_shots(tmp_path / "whole", [video], server)
    answering = asyncio.Event()

    async def answer(request):
        await answering.wait()
        return await answers(request)

    async with shot_server(answer) as server:
        async with ModelClient([Server(server.url)], "shots", ShotModelDescription) as client:
            run = Run([Track(spec(server).options, client)], out)
            running = asyncio.create_task(run.run([str(video)]))
            for _ in range(2):  # as many as are sent at once to one worker
                await server.arrivals.get()
            run.stop()
            answering.set()
            assert (await asyncio.wait_for(running, PATIENCE)).interrupted
        assert windows_sent(server) == 4
    async with shot_server() as server:
        await find_shots(out, [video], server)
        assert windows_sent(server) == 4
    for name in ("annotations.jsonl", "run.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


async def test_a_run_over_several_nodes_leaves_the_same_bytes(tmp_path):
    videos = [write_video(tmp_path / f"{k}.mkv", [*LEVELS, *[90] * k]) for k in range(6)]
    async with shot_server() as server:
        await find_shots(tmp_path / "one", videos, server)
        run = Run(RemoteNodes([spec(server)], LocalCluster("a", "b")), tmp_path / "many", thumbnails=0)
        summary = await asyncio.wait_for(run.run([str(video) for video in videos]), PATIENCE)
    assert (summary.failed, summary.snapshot.sources) == (0, 6)
    for name in ("annotations.jsonl", "run.json"):
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


async def test_short_videos_share_a_request(tmp_path, out):
    videos = [write_video(tmp_path / f"{k}.mkv", [60 + k] * 8) for k in range(2)]
    async with shot_server() as server:
        await find_shots(out, videos, server)
        assert sum(len(request.tree["windows"]) for request in server.received) == 2
    assert [len(record["shots"]) for record in records(out).values()] == [1, 1]


async def test_another_threshold_finds_other_shots(video, out):
    async with shot_server() as server:
        await find_shots(out, [video], server, probability=0.95)
        assert len(records(out)["video.mkv"]["shots"]) == 1
        await find_shots(out, [video], server)
    assert records(out)["video.mkv"]["shots"] == FOUND


async def test_windows_that_the_model_refuses_are_an_error_and_are_tried_again(video, out):
    async def answer(request):
        if any(len(np.unique(window)) > 2 for window in request.tree["windows"]):  # the fade
            return refused(422, "FramesError", "no fades, please")
        return await answers(request)

    async with shot_server(answer) as server:
        assert (await find_shots(out, [video], server)).failed == 1
    error = records(out)["video.mkv"]["error"]
    assert error["type"] == "RequestRefused"
    assert "frames have no probability: status 422" in error["message"]
    async with shot_server() as server:
        assert (await find_shots(out, [video], server, retry_failed=True)).failed == 0
        assert windows_sent(server) < 8
    assert records(out)["video.mkv"]["shots"] == FOUND


async def test_sources_without_pictures_and_damaged_ones_have_an_error(media, tmp_path, out):
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    (tmp_path / "text.mp4").write_text("text")
    pictures = (np.full((48, 64, 3), level, np.uint8) for level in LEVELS)
    write_pictures(tmp_path / "damaged.mov", "png", pictures, pix_fmt="rgb24")
    content = (tmp_path / "damaged.mov").read_bytes()
    (tmp_path / "damaged.mov").write_bytes(content.replace(b"\x89PNG", bytes(4), 12))
    async with shot_server() as server:
        assert (await find_shots(out, tmp_path.glob("*.*"), server)).failed == 3
    errors = {name: record["error"]["type"] for name, record in records(out).items()}
    assert errors == {"damaged.mov": "MediaError", "sound.mp4": "NoPictures", "text.mp4": "MediaError"}
    assert records(out)["damaged.mov"]["error"]["message"] == "damaged: 12 of 75 chosen frames cannot be decoded"
    assert [shot["start_frame"] for shot in records(out)["damaged.mov"]["shots"]] == [0, 18, 52]


@pytest.mark.parametrize("probability", [-0.1, 1.0])
def test_a_threshold_is_a_probability(probability):
    with pytest.raises(UsageError, match="expected a probability"):
        LearnedShotOptions(probability)
