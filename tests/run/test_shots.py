"""Runs that look for shots: by themselves, without a server, and to caption frames of each shot."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.listing import Listing
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.shots import ShotOptions, ShotTrack
from support.decoding import MISBEHAVING
from support.fake_torchserve import FakeTorchServe, captions
from support.odd_library import write_sound
from support.patience import PATIENCE
from support.shots import cut, write
from support.videos import write_pictures

LENGTHS = (20, 1, 30)
SHOTS = [
    {"start": 0.0, "end": 0.8, "start_frame": 0, "end_frame": 20, "transition": None},
    {"start": 0.8, "end": 0.84, "start_frame": 20, "end_frame": 21, "transition": None},
    {"start": 0.84, "end": 2.04, "start_frame": 21, "end_frame": 51, "transition": None},
]


@pytest.fixture
def clip(tmp_path) -> Path:
    """A video of three shots."""
    write(tmp_path / "clip.mp4", cut(*LENGTHS))
    return tmp_path / "clip.mp4"


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


async def find_shots(out: Path, *paths: Path, **options) -> Summary:
    run = Run([ShotTrack(ShotOptions(**options))], out)
    return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)


def records(out: Path) -> dict[str, dict]:
    lines = (out / "annotations.jsonl").read_text().splitlines()
    return {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}


def errors(out: Path) -> dict[str, tuple[str, str]]:
    """Type and message of the error of each source that has one."""
    found = {name: record["error"] for name, record in records(out).items()}
    return {name: (error["type"], error["message"]) for name, error in found.items() if error}


def test_the_command_needs_no_server_and_writes_the_shots_of_each_source(clip, media, out):
    result = CliRunner().invoke(app, ["shots", str(clip), str(media / "old.avi"), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "video searched for shots" in result.output
    found = records(out)
    assert (found["clip.mp4"]["status"], found["clip.mp4"]["shots"]) == ("ok", SHOTS)
    assert (found["clip.mp4"]["media"]["frames"], found["clip.mp4"]["captions"]) == (51, [])
    assert found["old.avi"]["shots"][-1]["end_frame"] == 90
    settings = json.loads((out / "run.json").read_text())["settings"][found["clip.mp4"]["shot_settings"]]
    assert settings["model"]["name"] == "reelscribe shots"
    assert settings["settings"] == {"detection": {"threshold": 0.75}, "deinterlace": False}


async def test_a_second_run_finds_nothing_anew_and_leaves_the_same_bytes(clip, media, out, monkeypatch):
    async def never(*_, **__) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Listing, "read_headers", never)  # a short run can end before it has read them
    first = await find_shots(out, clip, media / "old.avi")
    before = [(out / name).read_bytes() for name in ("annotations.jsonl", "run.json")]
    second = await find_shots(out, clip, media / "old.avi")
    assert [(out / name).read_bytes() for name in ("annotations.jsonl", "run.json")] == before
    (done,), (again,) = first.snapshot.tracks, second.snapshot.tracks
    assert (again.done, again.done_before) == (0.0, pytest.approx(done.done))


async def test_other_settings_look_for_shots_again(clip, out):
    await find_shots(out, clip)
    await find_shots(out, clip, detection=ShotDetection(1000.0))
    assert records(out)["clip.mp4"]["shots"] == [{**SHOTS[0], "end": 2.04, "end_frame": 51}]
    await find_shots(out, clip)
    assert records(out)["clip.mp4"]["shots"] == SHOTS


async def test_sources_without_pictures_and_damaged_ones_have_an_error(media, tmp_path, out):
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    (tmp_path / "text.mp4").write_text("text")
    (tmp_path / "cut.avi").write_bytes((media / "old.avi").read_bytes()[:100_000])
    write_pictures(tmp_path / "damaged.mov", "png", cut(10, 10, 10), pix_fmt="rgb24")
    content = (tmp_path / "damaged.mov").read_bytes()
    (tmp_path / "damaged.mov").write_bytes(content.replace(b"\x89PNG", bytes(4), 12))
    summary = await find_shots(out, *tmp_path.glob("*.*"))
    assert summary.failed == 4
    assert errors(out) == {
        "cut.avi": ("MediaError", "cut short: 14 of the frames it announces are missing"),
        "damaged.mov": ("MediaError", "damaged: 12 of 30 chosen frames cannot be decoded"),
        "sound.mp4": ("NoPictures", "expected a video stream with pictures, got audio"),
        "text.mp4": ("MediaError", "not a media file that can be read: Invalid data found when processing input"),
    }
    assert [shot["start_frame"] for shot in records(out)["damaged.mov"]["shots"]] == [0, 20]


async def test_a_decode_process_that_dies_costs_nothing(clip, out, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    crash, always = clip.with_name("crash.mp4"), clip.with_name("crash-always.mp4")
    shutil.copy(clip, crash)
    write(always, cut(30, 30))
    summary = await find_shots(out, crash, always)
    assert (summary.failed, summary.replaced_processes) == (1, 3)
    assert records(out)["crash.mp4"]["shots"] == SHOTS
    died = "the process that was decoding it ended: SIGSEGV; like 1 before it"
    assert errors(out) == {"crash-always.mp4": ("DecoderDied", died)}


async def caption(out: Path, path: Path, server: FakeTorchServe, **options) -> Summary:
    """Caption frames of each shot."""
    async with CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client, CaptionOptions(**options))], out)
        return await asyncio.wait_for(run.run([str(path)]), PATIENCE)


async def test_the_middle_frame_of_each_shot_is_captioned_and_the_record_has_the_shots(clip, out):
    async with FakeTorchServe() as server:
        assert (await caption(out, clip, server, sampling=Sampling(per_shot=1))).failed == 0
        assert sum(len(request.names()) for request in server.received) == 3
    record = records(out)["clip.mp4"]
    assert [caption["frame_index"] for caption in record["captions"]] == [10, 20, 36]
    assert (record["shots"], record["shot_settings"]) == (SHOTS, None)
    settings = json.loads((out / "run.json").read_text())["settings"][record["caption_settings"]]["settings"]
    assert settings["sampling"] == {"per_shot": 1}
    assert settings["detection"] == {"threshold": 0.75}


async def test_an_interrupted_run_goes_on_with_the_shots_that_it_had_found(tmp_path, out, monkeypatch):
    path = tmp_path / "crash-always.mp4"
    write(path, cut(*[10] * 6))
    answering = asyncio.Event()

    async def answer(request):
        await answering.wait()
        return await captions(request)

    options = CaptionOptions(Sampling(per_shot=1), frames_per_request=1)
    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        run = Run([CaptionTrack(client, options)], out)
        running = asyncio.create_task(run.run([str(path)]))
        for _ in range(2):  # as many as are sent at once to one worker
            await server.arrivals.get()
        run.stop()
        answering.set()
        assert (await asyncio.wait_for(running, PATIENCE)).interrupted
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)  # it dies if shots are looked for
    async with FakeTorchServe() as server:
        summary = await caption(out, path, server, sampling=options.sampling, frames_per_request=1)
        assert (summary.failed, summary.replaced_processes, len(server.received)) == (0, 0, 4)
    assert [caption["frame_index"] for caption in records(out)["crash-always.mp4"]["captions"]] == [*range(5, 60, 10)]
