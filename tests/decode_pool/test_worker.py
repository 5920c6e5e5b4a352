"""The protocol of a decode process; here it runs in the test's own process, with strings for pipes."""

import io
import json
import mmap
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Source, Span
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool import child_channel
from reelscribe.decode_pool.child_channel import ChildChannel
from reelscribe.decode_pool.child_main import serve
from reelscribe.decode_pool.frames import ReadFrames
from support.decoding import run_worker
from support.odd_library import write_sound
from support.patience import PATIENCE

SIZE = InputSize(32, 16)


def read_frames(path: object, frames_per_batch: int = 8) -> dict:
    return ReadFrames(VideoTask(str(path), SIZE), frames_per_batch).to_json([Span()])


def replies_to(*commands: dict) -> list[dict]:
    replies, _ = run_worker(*commands, slot_bytes=8 * SIZE.nbytes, slots=20)
    return replies


def test_a_file_that_cannot_be_read_is_an_error_and_the_next_one_is_read(media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    commands = [read_frames(tmp_path / "x.mp4"), {"digest_files": [str(tmp_path / "gone.mp4")]}]
    text, gone, opened, *_, end = replies_to(*commands, read_frames(media / "old.avi"))
    (gone,) = gone["digests"]
    assert text["error"]["type"] == gone["error"]["type"] == "MediaError"
    assert "not a media file" in text["error"]["message"]
    assert "No such file" in gone["error"]["message"]
    assert opened["opened"]["chosen"] == 90
    assert end == {"end": {"decoded": 90}}


def test_audio_without_video_is_an_error_of_its_own(media, tmp_path):
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    message = "expected a video stream with pictures, got audio"
    assert replies_to(read_frames(tmp_path / "sound.mp4")) == [{"error": {"type": "NoPictures", "message": message}}]


def test_the_digest_of_a_file(media):
    path = media / "old.avi"
    (reply,) = replies_to({"digest_files": [str(path), "/gone", str(path)]})
    (source, again), gone = [Source(**each["source"]) for each in reply["digests"][::2]], reply["digests"][1]
    assert source == again
    assert "No such file" in gone["error"]["message"]
    assert (source.path, source.bytes) == (str(path), path.stat().st_size)
    assert len(source.sha256) == 64


@pytest.mark.parametrize(
    ("seconds_between_readings", "heartbeats"),
    [(0.0, range(2)), (0.7, range(41, 1000))],  # one may come at the start; 90 frames come without a reply between them
    ids=["no time passes", "time passes"],
)
def test_heartbeats_come_while_decoding_makes_progress(media, monkeypatch, seconds_between_readings, heartbeats):
    clock = count(1000.0, seconds_between_readings)
    monkeypatch.setattr(child_channel, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    memory, output = mmap.mmap(-1, 100 * SIZE.nbytes), io.StringIO()
    commands = io.StringIO(json.dumps(read_frames(media / "old.avi", frames_per_batch=100)) + '\n{"slot": 0}\n')
    with pytest.raises(SystemExit):
        serve(ChildChannel(memory, 100 * SIZE.nbytes, commands, output))
    assert output.getvalue().count('{"heartbeat": {}}') in heartbeats


IMPORTS = """
import sys
before = set(sys.modules)
import reelscribe.decode_pool.child_main, reelscribe.decode_pool.{feed}
specs = [getattr(sys.modules[name], "__spec__", None) for name in set(sys.modules) - before]
print(*(spec.name for spec in specs if spec))
"""


@pytest.mark.parametrize(
    ("feed", "needed", "others"),
    [
        ("frames", {"numpy", "PIL", "av"}, {"decode_pool.audio", "decode.audio"}),
        ("audio", {"numpy", "av", "soxr"}, {"decode_pool.frames", "decode.video"}),
    ],
)
def test_a_process_imports_little_so_that_it_starts_fast(feed, needed, others):
    command = [sys.executable, "-c", IMPORTS.format(feed=feed)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in modules}
    assert packages - sys.stdlib_module_names == {*needed, "reelscribe"}
    slow = {"asyncio", "concurrent", "multiprocessing", "sqlite3", "ssl", "socket", "http", "email"}
    assert packages.isdisjoint(slow)
    own = {name.removeprefix("reelscribe.") for name in modules if name.startswith("reelscribe.")}
    assert own.isdisjoint({*others, "decode_pool.pool", "client", "results.ledger", "run", "wire"})


def test_a_process_whose_parent_died_before_it_was_ready_exits():
    """It would outlive the run while it hangs on a disk. Here the parent is taken for another one that is dead."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    command = [sys.executable, "-m", "reelscribe.decode_pool.child_main", "0", "1", "1", str(dead.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as orphan:  # a worker would wait for commands
        assert orphan.wait(PATIENCE) == 0
