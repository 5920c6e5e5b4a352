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

from reelscribe import decode_process
from reelscribe.decode_process import DecodeProcess
from reelscribe.media import FrameSize, Source, VideoInfo
from reelscribe.reuse import REUSE_LEVELS
from reelscribe.video import ChosenFrame, Video, VideoTask

SIZE = FrameSize(32, 16)
SLOT_FRAMES, SLOTS = 8, 64


def talk(*orders: dict) -> tuple[list[dict], np.ndarray]:
    """The answers to orders, and the memory: (slots, frames of a slot, height, width, 3). It has all slots at once."""
    memory = mmap.mmap(-1, SLOTS * SLOT_FRAMES * SIZE.nbytes)
    lines = "".join(json.dumps(order) + "\n" for order in [*orders, *({"slot": slot} for slot in range(SLOTS))])
    said = io.StringIO()
    with pytest.raises(SystemExit):  # when there are no more orders
        DecodeProcess(memory, SLOT_FRAMES * SIZE.nbytes, io.StringIO(lines), said).run()
    answers = [json.loads(line) for line in said.getvalue().splitlines()]
    frames = np.ndarray((SLOTS, SLOT_FRAMES, SIZE.height, SIZE.width, 3), np.uint8, memory)
    return [answer for answer in answers if "beat" not in answer], frames


def decode(path: object, *spans: dict, frames_per_part: int = SLOT_FRAMES, reuse: bool = False) -> dict:
    task = VideoTask(str(path), SIZE).to_json()
    return {
        "decode": {"task": task, "spans": spans or ({},), "frames_per_part": frames_per_part, "reuse": reuse},
    }


class GreyVideo:
    """In place of `Video`: one frame for each grey level that its file's name lists; None cannot be decoded."""

    def __init__(self, task: VideoTask, beat: object) -> None:
        self.levels = json.loads(task.path)
        self.info = VideoInfo(1.0, 32, 16, 0, 1.0, len(self.levels), 10.0, 0.0, 1.0, "grey", None)
        self.chosen = range(0, 2 * len(self.levels), 2)
        self.frame, self.end_seconds, self.cut = SIZE, 1.0, None
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


def grey_parts(levels: list[int | None], *spans: dict, frames_per_part: int, reuse: bool) -> list[dict]:
    """Parts of a `GreyVideo`; in place of the slot's number are the levels of its frames."""
    order = decode(json.dumps(levels), *spans, frames_per_part=frames_per_part, reuse=reuse)
    with patch.object(decode_process, "Video", GreyVideo):
        (video, *answers, end), memory = talk(order)
    assert (video["video"]["chosen"], end) == (len(levels), {"end": {"decoded_frames": len(levels)}})
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
    (described, *parts, end), memory = talk(decode(path, frames_per_part=5))
    with Video(VideoTask(str(path), SIZE)) as video:
        assert described["video"] == {
            "info": asdict(video.info),
            "frame": asdict(SIZE),
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
def test_parts_account_for_every_chosen_frame_once(levels, frames_per_part, reuse):
    parts = grey_parts(levels, frames_per_part=frames_per_part, reuse=reuse)
    assert [ordinal for part in parts for ordinal in range(part["first"], part["stop"])] == list(range(len(levels)))
    for part in parts:
        assert len(part["frame_indices"]) <= frames_per_part
        sent = zip(part["frame_indices"], part["pts_seconds"], part["slot"], strict=True)
        told = [(index, seconds, level) for index, seconds, level in sent]
        told += [(index, seconds, None) for index, seconds in part["undecodable"]]
        told += [(index, seconds, levels[index // 2]) for index, seconds, _ in part["reused"]]
        ordinals = range(part["first"], part["stop"])
        assert sorted(told, key=lambda row: row[0]) == [(2 * k, k / 10, levels[k]) for k in ordinals]


@given(LEVELS, FRAMES_PER_PART)
def test_a_frame_is_sent_unless_it_is_nearly_equal_to_the_last_one_sent(levels, frames_per_part):
    parts = grey_parts(levels, frames_per_part=frames_per_part, reuse=True)
    reused = {index: of for part in parts for index, _, of in part["reused"]}
    anchor = None
    for ordinal, level in enumerate(levels):
        if level is not None:
            if anchor is not None and abs(level - levels[anchor]) <= REUSE_LEVELS:
                assert reused.pop(2 * ordinal) == 2 * anchor
            else:
                anchor = ordinal
    assert reused == {}
    assert not any(part["reused"] for part in grey_parts(levels, frames_per_part=frames_per_part, reuse=False))


@given(LEVELS, FRAMES_PER_PART, st.booleans())
def test_whatever_parts_are_missing_they_come_as_in_one_go(levels, frames_per_part, reuse):
    def parts_of(*spans: dict) -> list[dict]:
        return grey_parts(levels, *spans, frames_per_part=frames_per_part, reuse=reuse)

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
    monkeypatch.setattr(decode_process, "MOST_ORDINALS", 10)
    parts = grey_parts([50] * 35, frames_per_part=8, reuse=True)
    assert [(part["first"], part["stop"], part["slot"]) for part in parts] == [
        (0, 10, [50]),
        (10, 20, []),
        (20, 30, []),
        (30, 35, []),
    ]
    assert [part["anchor"] for part in parts] == [0] * 4


def test_bad_files_are_told_and_the_next_is_read(media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    orders = [decode(tmp_path / "x.mp4"), {"identify": str(tmp_path / "gone.mp4")}, decode(media / "old.avi")]
    (text, gone, video, *_, end), _ = talk(*orders)
    assert "not a media file" in text["error"]
    assert "No such file" in gone["error"]
    assert (video["video"]["chosen"], end) == (90, {"end": {"decoded_frames": 90}})


def test_a_file_is_identified(media):
    path = str(media / "old.avi")
    (answer,), _ = talk({"identify": path})
    source = Source(**answer["source"])
    assert (source.path, source.bytes) == (path, (media / "old.avi").stat().st_size)
    assert len(source.sha256) == 64


def test_signs_of_life_come_about_once_a_second_as_long_as_it_gets_on(media, monkeypatch):
    def beats(seconds_a_look: float) -> int:
        clock = count(1000.0, seconds_a_look)
        monkeypatch.setattr(decode_process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        memory, said = mmap.mmap(-1, 100 * SIZE.nbytes), io.StringIO()
        orders = io.StringIO(json.dumps(decode(media / "old.avi", frames_per_part=100)) + '\n{"slot": 0}\n')
        with pytest.raises(SystemExit):
            DecodeProcess(memory, 100 * SIZE.nbytes, orders, said).run()
        return said.getvalue().count('{"beat": {}}')

    assert beats(seconds_a_look=0.0) <= 1  # at the start
    assert beats(seconds_a_look=0.7) > 40  # 90 frames, none of which is an answer


IMPORTS = """
import sys
before = set(sys.modules)
import reelscribe.decode_process
specs = [getattr(sys.modules[name], "__spec__", None) for name in set(sys.modules) - before]
print(*(spec.name for spec in specs if spec))
"""


def test_it_imports_little_as_its_start_is_waited_for():
    modules = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in modules}
    assert packages - sys.stdlib_module_names == {"numpy", "PIL", "av", "reelscribe"}
    assert packages.isdisjoint(
        {"asyncio", "concurrent", "multiprocessing", "sqlite3", "ssl", "socket", "http", "email"}
    )
    own = {name for name in modules if name.startswith("reelscribe.")}
    assert own.isdisjoint(f"reelscribe.{name}" for name in ("decode_pool", "client", "ledger", "bulk", "wire"))
