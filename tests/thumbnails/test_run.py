"""Runs that keep thumbnails of what they decode."""

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode.sampling import Sampling
from reelscribe.decode_pool import frames as frame_commands
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.thumbnails.store import ThumbnailStore
from support import odd_media
from support.clip_runs import clip_server, describe
from support.fake_torchserve import FakeTorchServe, captions
from support.videos import write

RESULTS = ("annotations.jsonl", "run.json")


async def caption(out: Path, *paths: Path, thumbnails: int | None = None, **options) -> None:
    async with FakeTorchServe(captions) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = CaptionTrack(client, CaptionOptions(**options))
        assert not (await Run([track], out, thumbnails=thumbnails).run([*map(str, paths)])).failed


def thumbnails(out: Path, name: str) -> dict[float, Image.Image]:
    """The thumbnails of a source by their times."""
    records = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    (sha256,) = (r["source"]["sha256"] for r in records if Path(r["source"]["path"]).name == name)
    store = ThumbnailStore(out)
    return {time: Image.open(io.BytesIO(store.read(sha256, time))) for time in store.times(sha256)}


def level(picture: Image.Image) -> int:
    """The grey level in the middle of a picture."""
    return picture.convert("L").getpixel((picture.width // 2, picture.height // 2))


async def test_a_video_has_one_thumbnail_in_five_seconds(tmp_path):
    write(tmp_path / "grey.mp4", "libx264", [10 * (k // 10) for k in range(240)])  # 10 frames a second
    await caption(tmp_path / "out", tmp_path / "grey.mp4", sampling=Sampling(every=1))
    found = thumbnails(tmp_path / "out", "grey.mp4")
    assert [*found] == [pytest.approx(2.4 + 4.8 * k) for k in range(5)]
    for time, picture in found.items():
        assert abs(level(picture) - 10 * int(time)) <= 4


@pytest.mark.parametrize(("wanted", "times"), [(0, []), (1, [2.0]), (3, [1.0, 2.0, 3.0]), (9, [0.0, 1.0, 2.0, 3.0])])
async def test_there_are_no_more_thumbnails_than_chosen_frames(tmp_path, wanted, times):
    write(tmp_path / "grey.mp4", "libx264", [100] * 40)
    await caption(tmp_path / "out", tmp_path / "grey.mp4", thumbnails=wanted)
    assert [*thumbnails(tmp_path / "out", "grey.mp4")] == times
    assert (tmp_path / "out" / "thumbnails").exists() == bool(times)


async def test_results_do_not_depend_on_thumbnails(media, tmp_path):
    for folder, most in (("with", None), ("without", 0)):
        await caption(tmp_path / folder, media / "spoken.mp4", media / "old.avi", thumbnails=most)
    assert thumbnails(tmp_path / "with", "old.avi")
    for name in RESULTS:
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()


async def test_a_thumbnail_has_the_shape_that_players_show(media, tmp_path):
    await caption(tmp_path / "out", media / "portrait-odd.webm", media / "spoken.mp4")
    for name in ("portrait-odd.webm", "spoken.mp4"):
        for picture in thumbnails(tmp_path / "out", name).values():
            assert picture.format == "WEBP"
            assert max(picture.size) <= 320
            assert (picture.width < picture.height) == (name == "portrait-odd.webm")


async def test_many_processes_keep_the_thumbnails_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_commands, "PORTION_SECONDS", 1e-9)
    odd_media.write(tmp_path / "many.mp4", "libx264", range(100), options={"g": "10", "bf": "2"})
    found = []
    for workers in (1, 3):
        out = tmp_path / str(workers)
        await caption(out, tmp_path / "many.mp4", sampling=Sampling(every=1), decode_workers=workers, thumbnails=12)
        found.append({time: picture.tobytes() for time, picture in thumbnails(out, "many.mp4").items()})
    assert len(found[0]) == 12
    assert found[0] == found[1]


async def test_frames_whose_captions_are_reused_have_thumbnails(tmp_path):
    write(tmp_path / "still.mp4", "libx264", [100] * 60)
    await caption(tmp_path / "out", tmp_path / "still.mp4", thumbnails=3, reuse=True)
    assert [*thumbnails(tmp_path / "out", "still.mp4")] == [1.0, 3.0, 5.0]


async def test_each_shot_has_one(tmp_path):
    write(tmp_path / "shots.mp4", "libx264", [level for level in (20, 120, 220) for _ in range(30)])
    await caption(tmp_path / "out", tmp_path / "shots.mp4", sampling=Sampling(per_shot=3))
    found = thumbnails(tmp_path / "out", "shots.mp4")
    assert [round(level(picture), -1) for picture in found.values()] == [20, 120, 220]


@pytest.mark.parametrize("cutting", [ClipCutting(), ClipCutting("windows", window_seconds=3.0)], ids=lambda c: c.cut)
async def test_each_described_clip_has_one(tmp_path, cutting):
    write(tmp_path / "clips.mp4", "libx264", [level for level in (20, 120, 220) for _ in range(30)])
    async with clip_server() as server:
        await describe(tmp_path / "out", [tmp_path / "clips.mp4"], server, cutting=cutting)
    found = thumbnails(tmp_path / "out", "clips.mp4")
    assert [int(time) // 3 for time in found] == [0, 1, 2]
    assert [round(level(picture), -1) for picture in found.values()] == [20, 120, 220]


async def test_a_folder_that_cannot_be_written_costs_one_warning_and_no_source(media, tmp_path, caplog):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thumbnails").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        await caption(out, media / "spoken.mp4", media / "old.avi", decode_workers=1)
    (warning,) = [record.getMessage() for record in caplog.records if "thumbnails" in record.getMessage()]
    assert warning.startswith("no more thumbnails are kept: ")
    assert (out / "thumbnails").read_text() == "in the way"


def test_to_make_one_a_decode_process_imports_no_format_that_nobody_asked_for():
    code = "import sys, numpy; from reelscribe.thumbnails.pictures import to_webp;"
    code += "print(len(to_webp(numpy.zeros((4, 4, 3), 'u1'))) > 0, 'PIL.PsdImagePlugin' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
