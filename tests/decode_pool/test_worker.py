"""What a decode process answers; here it runs in the test's own process, with lines for pipes."""

import io
import json
import mmap
import subprocess
import sys
from dataclasses import asdict
from itertools import count, pairwise
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Source, VideoInfo
from reelscribe.decode.reuse import REUSE_LEVELS
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.pool import channel as orders
from reelscribe.decode_pool.pool import frame_feed
from reelscribe.decode_pool.worker import follow
from support.decoding import talk
from support.odd_library import write_sound

SIZE = InputSize(32, 16)
SLOT_FRAMES, SLOTS = 8, 64


def talk_frames(*told: dict) -> tuple[list[dict], np.ndarray]:
    """The answers to orders, and the memory: (slots, frames of a slot, height, width, 3)."""
    answers, memory = talk(*told, slot_bytes=SLOT_FRAMES * SIZE.nbytes, slots=SLOTS)
    return answers, np.ndarray((SLOTS, SLOT_FRAMES, SIZE.height, SIZE.width, 3), np.uint8, memory)


def decode(path: object, *spans: dict, frames_per_batch: int = SLOT_FRAMES, reuse: bool = False) -> dict:
    task = VideoTask(str(path), SIZE).to_json()
    return {
        "frames": {"task": task, "spans": spans or ({},), "frames_per_batch": frames_per_batch, "reuse": reuse},
    }


class GreyVideo:
    """In place of `Video`: one frame for each grey level that its file's name lists; None cannot be decoded."""

    def __init__(self, task: VideoTask, heartbeat: object) -> None:
        self.levels = json.loads(task.path)
        self.info = VideoInfo(1.0, 32, 16, 0, 1.0, len(self.levels), 10.0, 0.0, 1.0, "grey", None)
        self.chosen = range(0, 2 * len(self.levels), 2)
        self.input_size, self.end_seconds, self.cut = SIZE, 1.0, None
        self.decoded = len(self.levels)

    def __enter__(self) -> "GreyVideo":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def frames(self, ordinals: range):
        for ordinal in ordinals:
            level = self.levels[ordinal]
            image = None if level is None else np.full((SIZE.height, SIZE.width, 3), level, np.uint8)
            yield ChosenFrame(ordinal, self.chosen[ordinal], ordinal / 10, image)


def grey_parts(levels: list[int | None], *spans: dict, frames_per_batch: int, reuse: bool) -> list[dict]:
    """Parts of a `GreyVideo`; in place of the slot's number are the levels of its frames."""
    order = decode(json.dumps(levels), *spans, frames_per_batch=frames_per_batch, reuse=reuse)
    with patch.object(frame_feed, "Video", GreyVideo):
        (video, *answers, end), memory = talk_frames(order)
    assert (video["opened"]["chosen"], end) == (len(levels), {"end": {"decoded": len(levels)}})
    parts = [answer["part"] for answer in answers]
    for part in parts:
        sent = len(part["frame_indices"])
        assert (part["slot"] is None) == (sent == 0)
        part["slot"] = memory[part["slot"], :sent, 0, 0, 0].tolist() if sent else []
    return parts


LEVELS = st.lists(st.sampled_from([10, 12, 15, 17, 90, None]), max_size=30)
FRAMES_PER_PART = st.sampled_from([1, 2, 3, SLOT_FRAMES])


def test_a_video_is_described_and_then_its_frames_lie_in_the_slots(media):
    path = media / "old.avi"
    (described, *parts, end), memory = talk_frames(decode(path, frames_per_batch=5))
    with Video(VideoTask(str(path), SIZE)) as video:
        assert described["opened"] == {
            "info": asdict(video.info),
            "input_size": asdict(SIZE),
            "chosen": 90,
            "end_seconds": video.end_seconds,
            "cut": None,
        }
        expected = list(video.frames(range(90)))
    assert [(part["part"]["first"], part["part"]["stop"]) for part in parts] == list(pairwise(range(0, 91, 5)))
    for part in (answer["part"] for answer in parts):
        frames = expected[part["first"] : part["stop"]]
        assert part["frame_indices"] == [frame.frame_index for frame in frames]
        assert part["pts_seconds"] == [frame.pts_seconds for frame in frames]
        assert np.array_equal(memory[part["slot"], :5], [frame.image for frame in frames])
    assert "end" in end


@given(LEVELS, FRAMES_PER_PART, st.booleans())
def test_parts_account_for_every_chosen_frame_once(levels, frames_per_batch, reuse):
    parts = grey_parts(levels, frames_per_batch=frames_per_batch, reuse=reuse)
    assert [ordinal for part in parts for ordinal in range(part["first"], part["stop"])] == list(range(len(levels)))
    for part in parts:
        assert len(part["frame_indices"]) <= frames_per_batch
        sent = zip(part["frame_indices"], part["pts_seconds"], part["slot"], strict=True)
        told = [(index, seconds, level) for index, seconds, level in sent]
        told += [(index, seconds, None) for index, seconds in part["undecodable"]]
        told += [(index, seconds, levels[index // 2]) for index, seconds, _ in part["reused"]]
        ordinals = range(part["first"], part["stop"])
        assert sorted(told, key=lambda row: row[0]) == [(2 * k, k / 10, levels[k]) for k in ordinals]


@given(LEVELS, FRAMES_PER_PART)
def test_a_frame_is_sent_unless_it_is_nearly_equal_to_the_last_one_sent(levels, frames_per_batch):
    parts = grey_parts(levels, frames_per_batch=frames_per_batch, reuse=True)
    reused = {index: of for part in parts for index, _, of in part["reused"]}
    anchor = None
    for ordinal, level in enumerate(levels):
        if level is not None:
            if anchor is not None and abs(level - levels[anchor]) <= REUSE_LEVELS:
                assert reused.pop(2 * ordinal) == 2 * anchor
            else:
                anchor = ordinal
    assert reused == {}
    assert not any(part["reused"] for part in grey_parts(levels, frames_per_batch=frames_per_batch, reuse=False))


@given(LEVELS, FRAMES_PER_PART, st.booleans())
def test_whatever_parts_are_missing_they_come_as_in_one_go(levels, frames_per_batch, reuse):
    def parts_of(*spans: dict) -> list[dict]:
        return grey_parts(levels, *spans, frames_per_batch=frames_per_batch, reuse=reuse)

    whole = parts_of({})
    anchors = [None, *(part["anchor"] for part in whole)]
    alone = [
        {"first": part["first"], "stop": part["stop"], "anchor": anchor}
        for part, anchor in zip(whole, anchors, strict=False)
    ]
    if whole:
        middle = len(whole) // 2
        assert parts_of(*alone) == whole
        assert parts_of(*alone[1::2], {"first": len(levels)}) == whole[1::2]
        assert parts_of({**alone[middle], "stop": None}) == whole[middle:]


def test_a_still_of_hours_comes_in_pieces_that_need_no_slot(monkeypatch):
    monkeypatch.setattr(frame_feed, "MOST_ORDINALS", 10)
    parts = grey_parts([50] * 35, frames_per_batch=8, reuse=True)
    assert [(part["first"], part["stop"], part["slot"]) for part in parts] == [
        (0, 10, [50]),
        (10, 20, []),
        (20, 30, []),
        (30, 35, []),
    ]
    assert [part["anchor"] for part in parts] == [0] * 4


def test_bad_files_are_told_and_the_next_is_read(media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    told = [decode(tmp_path / "x.mp4"), {"digest_file": str(tmp_path / "gone.mp4")}, decode(media / "old.avi")]
    (text, gone, video, *_, end), _ = talk_frames(*told)
    assert text["error"]["type"] == gone["error"]["type"] == "MediaError"
    assert "not a media file" in text["error"]["message"]
    assert "No such file" in gone["error"]["message"]
    assert (video["opened"]["chosen"], end) == (90, {"end": {"decoded": 90}})


def test_sound_without_pictures_is_told_from_other_bad_files(media, tmp_path):
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    (answer,), _ = talk_frames(decode(tmp_path / "sound.mp4"))
    message = "expected a video stream with pictures, got audio"
    assert answer == {"error": {"type": "NoPictures", "message": message}}


def test_a_file_is_identified(media):
    path = str(media / "old.avi")
    (answer,), _ = talk_frames({"digest_file": path})
    source = Source(**answer["source"])
    assert (source.path, source.bytes) == (path, (media / "old.avi").stat().st_size)
    assert len(source.sha256) == 64


def test_signs_of_life_come_about_once_a_second_as_long_as_it_gets_on(media, monkeypatch):
    def beats(seconds_a_look: float) -> int:
        clock = count(1000.0, seconds_a_look)
        monkeypatch.setattr(orders, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        memory, said = mmap.mmap(-1, 100 * SIZE.nbytes), io.StringIO()
        told = io.StringIO(json.dumps(decode(media / "old.avi", frames_per_batch=100)) + '\n{"slot": 0}\n')
        with pytest.raises(SystemExit):
            follow(WorkerChannel(memory, 100 * SIZE.nbytes, told, said))
        return said.getvalue().count('{"heartbeat": {}}')

    assert beats(seconds_a_look=0.0) <= 1  # at the start
    assert beats(seconds_a_look=0.7) > 40  # 90 frames, none of which is an answer


IMPORTS = """
import sys
before = set(sys.modules)
import reelscribe.decode_pool.worker, reelscribe.decode_pool.{feed}
specs = [getattr(sys.modules[name], "__spec__", None) for name in set(sys.modules) - before]
print(*(spec.name for spec in specs if spec))
"""


@pytest.mark.parametrize(
    ("feed", "needed", "others"),
    [
        ("frame_feed", {"numpy", "PIL", "av"}, {"decode_pool.audio_feed", "decode.audio"}),
        ("audio_feed", {"numpy", "av", "soxr"}, {"decode_pool.frame_feed", "decode.video"}),
    ],
)
def test_it_imports_little_as_its_start_is_waited_for(feed, needed, others):
    command = [sys.executable, "-c", IMPORTS.format(feed=feed)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in modules}
    assert packages - sys.stdlib_module_names == {*needed, "reelscribe"}
    assert packages.isdisjoint(
        {"asyncio", "concurrent", "multiprocessing", "sqlite3", "ssl", "socket", "http", "email"}
    )
    own = {name.removeprefix("reelscribe.") for name in modules if name.startswith("reelscribe.")}
    assert own.isdisjoint({*others, "decode_pool.pool", "client", "results", "run", "wire"})
