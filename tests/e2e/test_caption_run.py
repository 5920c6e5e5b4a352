"""The main job: real files through the real command, a real TorchServe and the trained model."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from compare_with_truth import scenes_with_captions
from reelscribe.contract import shared_memory
from support.alike import assert_alike
from support.patience import PATIENCE
from support.servers import assert_same_records, read_records, record_of, saved_frames, wait_until


@pytest.fixture(scope="module")
def clips(media) -> list[Path]:
    """Clips of several containers, frame rates and shapes."""
    return [media / name for name in ("old.avi", "portrait-odd.webm", "spoken.mp4", "variable-rate.mp4")]


@pytest.fixture(scope="module")
def captioned(server, clips, tmp_path_factory) -> Path:
    """The output folder of an undisturbed run over the clips."""
    out = tmp_path_factory.mktemp("captioned")
    result = server.caption(*clips, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def test_every_frame_of_every_clip_is_captioned(annotated, media):
    records = [record for record in read_records(annotated) if record["media"]]
    names = [Path(record["source"]["path"]).name for record in records]
    assert names == sorted(path.name for path in media.iterdir() if path.suffix not in (".jsonl", ".ogg"))
    for record in records:
        assert record["status"] == "ok"
        indices = [caption["frame_index"] for caption in record["captions"]]
        assert indices == list(range(record["media"]["frames"]))


def test_captions_are_true(annotated):
    records = read_records(annotated)
    frames = sum(record["media"]["frames"] for record in records if record["media"])
    exact = sum(captions[scene["caption"]] for scene, captions in scenes_with_captions(records))
    assert exact / frames >= 0.95


def test_the_same_scenes_have_the_same_captions_at_every_resolution(annotated):
    captions = {
        (record["media"]["width"], record["media"]["height"]): [caption["text"] for caption in record["captions"]]
        for record in read_records(annotated)
        if "same-" in record["source"]["path"]
    }
    assert set(captions) == {(480, 270), (640, 360), (1280, 720), (1920, 1080)}
    assert len(set(map(tuple, captions.values()))) == 1


@pytest.mark.parametrize("options", [("--frames-per-request", "5"), ("--decode-workers", "1")])
def test_a_second_run_with_other_requests_gives_the_same_records(server, clips, captioned, tmp_path, options):
    assert server.caption(*clips, "--out", tmp_path, *options).exit_code == 0
    assert_same_records(tmp_path, captioned)


def test_frames_that_stay_in_memory_and_frames_that_are_sent_have_the_same_captions(
    server, clips, tmp_path, monkeypatch
):
    references, refer = [], shared_memory.refer
    monkeypatch.setattr(shared_memory, "refer", lambda *body: references.append(refer(*body)) or references[-1])
    result = server.caption(*clips[:2], "--out", tmp_path / "memory")
    assert any(references)
    assert "frames are sent" not in result.output
    references.clear()
    monkeypatch.setattr(shared_memory, "machine", lambda: "")  # as on another machine
    assert server.caption(*clips[:2], "--out", tmp_path / "network").exit_code == 0
    assert references == []
    assert_same_records(tmp_path / "memory", tmp_path / "network")


def test_a_server_that_joins_single_frames_gives_the_same_captions(joining, clips, captioned, tmp_path):
    assert joining.caption(*clips, "--out", tmp_path, "--frames-per-request", "1").exit_code == 0
    single, many = ([record["captions"] for record in read_records(out)] for out in (tmp_path, captioned))
    assert_alike(single, many)


def test_every_nth_frame(server, captioned, media, tmp_path):
    assert server.caption(media / "old.avi", "--out", tmp_path, "--every", "30").exit_code == 0
    (record,), one = read_records(tmp_path), record_of(captioned, "old.avi")
    every, all_captions = ([{**caption, "flags": None} for caption in each["captions"]] for each in (record, one))
    assert_alike(every, all_captions[::30])  # flags tell of neighbours, and those are other frames here
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert settings[record["caption_settings"]]["settings"]["sampling"] == {"every": 30}


def test_bad_sources_say_why_and_cost_the_others_nothing(server, media, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "x.mp4").write_text("this is text\n" * 100)
    (library / "empty.mkv").touch()
    (library / "cut.avi").write_bytes((media / "old.avi").read_bytes()[:90_000])
    shutil.copy(media / "portrait-odd.webm", library / "good.webm")
    (library / "gone.mp4").symlink_to("nowhere")
    result = server.caption(library, "--out", tmp_path / "out")
    assert result.exit_code == 3
    cut, empty, gone, good, text = read_records(tmp_path / "out")
    assert (good["status"], len(good["captions"])) == ("ok", 54)
    assert (cut["status"], cut["error"]["type"], len(cut["captions"])) == ("error", "MediaError", 72)
    assert "cut short" in cut["error"]["message"]
    for record, reason in [(empty, "the file is empty"), (text, "not a media file"), (gone, "No such file")]:
        assert record["status"] == "error"
        assert record["captions"] == []
        assert record["error"]["type"] == "MediaError"
        assert reason in record["error"]["message"]


def test_a_worker_that_is_killed_costs_nothing(server, clips, captioned, tmp_path):
    command = server.command(*clips, "--out", tmp_path, "--frames-per-request", "2")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        wait_until(lambda: saved_frames(tmp_path), run)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert server.workers() != [worker]
    assert_same_records(tmp_path, captioned)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"--key-file": "KEYS"}, "--key-file"),
        ({"--model": "other"}, "'other' built and loaded"),
        ({"--server": "http://127.0.0.1:9"}, "is the server running"),
    ],
)
def test_what_would_fail_for_every_source_ends_the_run_with_advice(server, media, tmp_path, options, advice):
    keys = tmp_path / "key_file.json"
    keys.write_text('{"inference": {"key": "wrong"}}')
    keys.chmod(0o600)
    words = [str(keys) if word == "KEYS" else word for option in options.items() for word in option]
    result = server.caption(media / "old.avi", "--out", tmp_path / "out", *words)
    assert result.exit_code == 1
    assert advice in result.output
    assert not (tmp_path / "out").exists()
