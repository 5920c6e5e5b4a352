"""Batches of frames, as a decode process makes them; here it runs in the test's own process."""

import json
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span, VideoInfo
from reelscribe.decode.video import ChosenFrame, Video, VideoTask
from reelscribe.decode_pool import frames as child_frames
from reelscribe.decode_pool.frames import ReadFrames
from support.decoding import run_worker

SIZE = InputSize(32, 16)
SLOT_FRAMES, SLOTS = 8, 64


class GreyVideo:
    """Stands for `Video`: each frame is of the grey level that the path lists in its place; None cannot be decoded.

    Every second frame is chosen.
    """

    def __init__(self, task: VideoTask, heartbeat: object, fetch: object) -> None:
        self.levels = json.loads(task.path)
        self.info = VideoInfo(1.0, 32, 16, 0, 1.0, len(self.levels), 10.0, 0.0, 1.0, "grey", None)
        self.chosen = range(0, 2 * len(self.levels), 2)
        self.input_size, self.end_seconds, self.why_incomplete, self.decoder = SIZE, 1.0, None, "pyav"
        self.decoded, self.shots, self.undecodable = len(self.levels), None, 0
        self.file = SimpleNamespace(check=lambda: None)  # it never changes

    def __enter__(self) -> "GreyVideo":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def frames(self, ordinals: range, look_at=None):
        for ordinal in ordinals:
            level = self.levels[ordinal]
            image = None if level is None else np.full((SIZE.height, SIZE.width, 3), level, np.uint8)
            yield ChosenFrame(ordinal, self.chosen[ordinal], ordinal / 10, image)


def replies_of(path: object, *spans: Span, frames_per_batch: int, reuse: bool = False) -> tuple[list[dict], np.ndarray]:
    """All replies, and the memory as (slots, frames of a slot, height, width, 3)."""
    command = ReadFrames(VideoTask(str(path), SIZE), frames_per_batch, reuse).to_json(spans or [Span()])
    replies, memory = run_worker(command, slot_bytes=SLOT_FRAMES * SIZE.nbytes, slots=SLOTS)
    return replies, np.ndarray((SLOTS, SLOT_FRAMES, SIZE.height, SIZE.width, 3), np.uint8, memory)


def grey_batches(levels: list[int | None], *spans: Span, frames_per_batch: int, reuse: bool) -> list[dict]:
    """The batches of a `GreyVideo`, with the levels of the frames in place of the slot."""
    with patch.object(child_frames, "Video", GreyVideo):
        replies, memory = replies_of(json.dumps(levels), *spans, frames_per_batch=frames_per_batch, reuse=reuse)
    opened, *others, end = replies
    assert opened["opened"]["chosen"] == len(levels)
    assert end == {"end": {"decoded": len(levels)}}
    batches = [reply["batch"] for reply in others]
    for batch in batches:
        frames = len(batch["frame_indices"])
        assert (batch["slot"] is None) == (frames == 0)
        batch["slot"] = memory[batch["slot"], :frames, 0, 0, 0].tolist() if frames else []
    return batches


def test_a_video_is_described_and_then_its_frames_lie_in_the_slots(media):
    path = media / "old.avi"
    (opened, *others, end), memory = replies_of(path, frames_per_batch=5)
    with Video(VideoTask(str(path), SIZE)) as video:
        expected = list(video.frames(range(90)))
        assert opened["opened"] == {
            "info": video.info.to_json(),
            "input_size": asdict(SIZE),
            "chosen": 90,
            "end_seconds": video.end_seconds,
            "why_incomplete": None,
            "shots": None,
            "undecodable": 0,
            "entry_points": [],
            "decoder": "pyav",
        }
    batches = [reply["batch"] for reply in others]
    assert [(batch["first"], batch["stop"]) for batch in batches] == list(pairwise(range(0, 91, 5)))
    for batch in batches:
        frames = expected[batch["first"] : batch["stop"]]
        assert batch["frame_indices"] == [frame.frame_index for frame in frames]
        assert batch["pts_seconds"] == [frame.pts_seconds for frame in frames]
        assert np.array_equal(memory[batch["slot"], :5], [frame.image for frame in frames])
    assert end == {"end": {"decoded": 90}}


LEVELS = st.lists(st.sampled_from([10, 12, 15, 17, 90, None]), max_size=30)
FRAMES_PER_BATCH = st.sampled_from([1, 2, 3, SLOT_FRAMES])


@given(LEVELS, FRAMES_PER_BATCH, st.booleans())
def test_batches_account_for_every_chosen_frame_once(levels, frames_per_batch, reuse):
    batches = grey_batches(levels, frames_per_batch=frames_per_batch, reuse=reuse)
    assert [ordinal for batch in batches for ordinal in range(batch["first"], batch["stop"])] == [*range(len(levels))]
    for batch in batches:
        assert len(batch["frame_indices"]) <= frames_per_batch
        rows = [*zip(batch["frame_indices"], batch["pts_seconds"], batch["slot"], strict=True)]
        rows += [(index, seconds, None) for index, seconds in batch["undecodable"]]
        rows += [(index, seconds, levels[index // 2]) for index, seconds, _ in batch["reused"]]
        ordinals = range(batch["first"], batch["stop"])
        assert sorted(rows, key=lambda row: row[0]) == [(2 * k, k / 10, levels[k]) for k in ordinals]


@given(LEVELS, FRAMES_PER_BATCH)
def test_a_frame_is_reused_if_it_is_nearly_equal_to_the_last_one_sent(levels, frames_per_batch):
    batches = grey_batches(levels, frames_per_batch=frames_per_batch, reuse=True)
    reused = {index: anchor for batch in batches for index, _, anchor in batch["reused"]}
    anchor = None
    for ordinal, level in enumerate(levels):
        if level is not None:
            if anchor is not None and level == levels[anchor]:  # a frame of one grey changes everywhere or nowhere
                assert reused.pop(2 * ordinal) == 2 * anchor
            else:
                anchor = ordinal
    assert reused == {}


@given(LEVELS, FRAMES_PER_BATCH)
def test_without_reuse_every_frame_is_sent(levels, frames_per_batch):
    batches = grey_batches(levels, frames_per_batch=frames_per_batch, reuse=False)
    assert not any(batch["reused"] for batch in batches)


@given(LEVELS, FRAMES_PER_BATCH, st.booleans())
def test_batches_that_are_missing_come_as_they_would_in_one_go(levels, frames_per_batch, reuse):
    def batches_of(*spans: Span) -> list[dict]:
        return grey_batches(levels, *spans, frames_per_batch=frames_per_batch, reuse=reuse)

    whole = batches_of()
    anchors = [None, *(batch["anchor"] for batch in whole)]
    spans = [Span(batch["first"], batch["stop"], anchor) for batch, anchor in zip(whole, anchors, strict=False)]
    if whole:
        middle = len(whole) // 2
        assert batches_of(*spans) == whole
        assert batches_of(*spans[1::2], Span(len(levels))) == whole[1::2]
        assert batches_of(Span(spans[middle].first, None, spans[middle].anchor)) == whole[middle:]


def test_a_still_picture_of_hours_comes_in_several_batches_without_slots(monkeypatch):
    monkeypatch.setattr(child_frames, "MAX_CHOSEN_FRAMES", 10)
    batches = grey_batches([50] * 35, frames_per_batch=8, reuse=True)
    assert [(batch["first"], batch["stop"], batch["slot"]) for batch in batches] == [
        (0, 10, [50]),
        (10, 20, []),
        (20, 30, []),
        (30, 35, []),
    ]
    assert [batch["anchor"] for batch in batches] == [0] * 4
