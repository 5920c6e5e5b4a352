"""Sources that are not the file that was digested, or change while a decode process reads them: nothing comes of it."""

import os
import shutil
from dataclasses import replace

import pytest

from reelscribe._files import file_stat
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span
from reelscribe.decode.audio import AudioTask
from reelscribe.decode.clips import ClipTask
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.audio import ReadAudio
from reelscribe.decode_pool.child_channel import ChildChannel
from reelscribe.decode_pool.clips import ReadClips
from reelscribe.decode_pool.frames import ReadFrames
from support.decoding import run_worker

SIZE = InputSize(32, 16)
BUDGET = ClipBudget(8, min_pixels=8 * 8, max_pixels=16 * 16, total_pixels=100 * 16 * 16, whole_clip=True)
COMMANDS = {
    "frames": ReadFrames(VideoTask("", SIZE), 8),
    "portions": ReadFrames(VideoTask("", SIZE), 8, portion="first"),
    "shots": ReadFrames(VideoTask("", SIZE, sampling=None, detection=ShotDetection()), 1),
    "clips": ReadClips(ClipTask("", BUDGET), 1),
    "audio": ReadAudio(AudioTask("", 16_000, 160_000, silence_db=None), 2),
}


@pytest.fixture
def path(media, tmp_path):
    return shutil.copy(media / "spoken.mp4", tmp_path)


def replies(path, kind: str, stat: str) -> list[dict]:
    command = replace(COMMANDS[kind], task=replace(COMMANDS[kind].task, path=str(path), stat=stat))
    return run_worker(command.to_json([Span()]), slot_bytes=2**20, slots=200)[0]


@pytest.mark.parametrize("kind", COMMANDS)
def test_nothing_is_read_of_another_file_than_was_digested(path, kind):
    stat = file_stat(path)
    assert "end" in replies(path, kind, stat)[-1]
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)  # another file with the same content
    (reply,) = replies(path, kind, stat)
    assert reply["error"]["type"] == "SourceChanged"


@pytest.mark.parametrize("kind", [kind for kind in COMMANDS if kind != "shots"])
def test_nothing_is_passed_on_of_a_file_that_is_written_to_meanwhile(path, kind, monkeypatch):
    take_slot = ChildChannel.take_slot

    def write_and_take_slot(channel):
        with open(path, "r+b") as file:
            file.write(file.read(1))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync does
        return take_slot(channel)

    times = os.stat(path)
    stat = file_stat(path)
    monkeypatch.setattr(ChildChannel, "take_slot", write_and_take_slot)
    *facts, error = replies(path, kind, stat)
    assert error["error"]["type"] == "SourceChanged"
    assert [list(reply) for reply in facts] == [["opened"]]
