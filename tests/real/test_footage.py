"""Real films: runs over them end without an error, and all times and numbers in their records are right."""

import json
from pathlib import Path

import av
import pytest
from typer.testing import CliRunner

from reelscribe import CaptionClient, CaptionTrack, Run, Server
from reelscribe.cli import app
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from support.fake_torchserve import FakeTorchServe


def decoded(film: Path) -> list[float]:
    """The presentation time of each frame, in seconds, when all are decoded one after the other."""
    with av.open(str(film)) as container:
        return [float(frame.time) for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def times(films) -> dict[str, list[float]]:
    """The times of the frames of each film, by its name."""
    return {film.name: decoded(film) for film in films}


def records(out: Path) -> dict[str, dict]:
    """The record of each film, by its name."""
    lines = (out / "annotations.jsonl").read_text().splitlines()
    return {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}


def test_shots_cover_all_frames_in_order(films, times, tmp_path):
    result = CliRunner().invoke(app, ["shots", *map(str, films), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len(records(tmp_path)) == len(films) == 4
    for name, record in records(tmp_path).items():
        shots = record["shots"]
        assert (record["status"], record["media"]["frames"]) == ("ok", len(times[name]))
        assert [shot["start_frame"] for shot in shots] == [0, *(shot["end_frame"] for shot in shots[:-1])]
        assert shots[-1]["end_frame"] == len(times[name])
        starts = [times[name][shot["start_frame"]] for shot in shots]
        assert [shot["start"] for shot in shots] == pytest.approx(starts, abs=1e-3)
        assert shots[-1]["end"] > times[name][-1]


def test_a_film_of_many_scenes_has_many_shots_and_one_of_a_face_has_one(films, tmp_path):
    CliRunner().invoke(app, ["shots", *map(str, films), "--out", str(tmp_path)])
    counts = {name: len(record["shots"]) for name, record in records(tmp_path).items()}
    assert counts["carphone_pristine.mp4"] == 1
    assert counts["film.mp4"] > 50


@pytest.mark.parametrize("sampling", [Sampling(every=1), Sampling(fps=1.0)], ids=["every frame", "one a second"])
async def test_captions_have_the_times_of_the_frames(films, times, tmp_path, sampling):
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], server.model) as client:
        track = CaptionTrack(client, CaptionOptions(sampling=sampling))
        await Run([track], tmp_path).run([str(film) for film in films])
    for name, record in records(tmp_path).items():
        captions = record["captions"]
        assert (record["status"], record["caption_failures"]) == ("ok", [])
        assert [caption["pts_seconds"] for caption in captions] == pytest.approx(
            [times[name][caption["frame_index"]] for caption in captions], abs=1e-3
        )
        chosen = len(times[name]) if sampling.every else round(times[name][-1] - times[name][0])
        assert len(captions) == pytest.approx(chosen, abs=1)
