"""Real films: runs over them end without an error, and all times and numbers in their records are right."""

from itertools import pairwise
from pathlib import Path

import av
import pytest
from typer.testing import CliRunner

from reelscribe import CaptionClient, CaptionTrack, Run, Server
from reelscribe.cli import app
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode.sampling import Sampling
from reelscribe.run.tracks.captions import CaptionOptions
from support.clip_runs import clip_server, describe, records
from support.fake_torchserve import FakeTorchServe


def decoded(film: Path) -> list[float]:
    """The presentation time of each frame, in seconds, when all are decoded one after the other."""
    with av.open(str(film)) as container:
        return [float(frame.time) for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def times(films) -> dict[str, list[float]]:
    """The times of the frames of each film, by its name."""
    return {film.name: decoded(film) for film in films}


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
        indices = [caption["frame_index"] for caption in captions]
        assert indices == sorted(set(indices))
        assert [caption["pts_seconds"] for caption in captions] == pytest.approx(
            [times[name][index] for index in indices], abs=1e-3
        )
        chosen = len(times[name]) if sampling.every else round(times[name][-1] - times[name][0])
        assert len(captions) == pytest.approx(chosen, abs=1)


async def test_clips_follow_each_other_from_the_first_frame_to_the_end(films, times, tmp_path):
    async with clip_server() as server:
        await describe(tmp_path, films, server, cutting=ClipCutting("shots"))
    for name, record in records(tmp_path).items():
        clips = record["clips"]
        assert (record["status"], record["clip_failures"]) == ("ok", [])
        assert clips[0]["start"] == pytest.approx(times[name][0], abs=1e-3)
        assert all(clip["start"] < clip["end"] for clip in clips)
        assert all(clip["end"] <= following["start"] for clip, following in pairwise(clips))
        assert clips[-1]["end"] > times[name][-1]
