"""Shots follow from the frames that a shot model has marked."""

import pytest

from reelscribe.contract.outcomes import Failure
from reelscribe.contract.source import VideoInfo
from reelscribe.results.shots import MarkedFrame, SavedShotBatch, shots_of

VIDEO = VideoInfo(12.0, 64, 48, 0, 1.0, 120, 10.0, 2.0, 14.0, "grey", None)
"""A video of 120 frames, 10 a second, that begins at second 2."""


def marked(frames: range, cuts: range | tuple[int, ...]) -> list[MarkedFrame]:
    """Frames of a transition, some of which may end a shot."""
    return [MarkedFrame(k, 2 + (k + 1) / 10, 0.9 if k in cuts else 0.1, 0.9) for k in frames]


def outline(*found: MarkedFrame) -> list[tuple]:
    shots, transitions = shots_of(found, VIDEO, 0.5)
    assert shots[-1][1::2] == (120, 14.0)
    return [(*shot[::2], transition) for shot, transition in zip(shots, transitions, strict=True)]


def test_a_video_without_marks_is_one_shot():
    assert outline() == [(0, 2.0, None)]


def test_a_shot_begins_after_the_last_frame_that_may_end_one():
    found = [*marked(range(29, 31), (29,)), *marked(range(50, 52), (50, 51))]
    assert outline(*found) == [(0, 2.0, None), (30, 5.0, "cut"), (52, 7.2, "cut")]


def test_a_transition_of_many_frames_is_gradual():
    assert outline(*marked(range(20, 40), (29, 30))) == [(0, 2.0, None), (31, 5.1, "gradual")]


@pytest.mark.parametrize(("frames", "transition"), [(1, "cut"), (2, "cut"), (3, "gradual")])
def test_a_cut_has_two_frames_at_most(frames, transition):
    assert outline(*marked(range(20, 20 + frames), (20,)))[1] == (21, 4.1, transition)


def test_frames_of_a_transition_that_end_no_shot_change_nothing():
    assert outline(*marked(range(20, 40), ())) == [(0, 2.0, None)]


def test_two_cuts_that_touch_are_two():
    assert [shot[0] for shot in outline(*marked(range(20, 24), (20, 23)))] == [0, 21, 24]


def test_no_shot_begins_after_the_last_frame():
    assert outline(*marked(range(118, 120), (119,))) == [(0, 2.0, None)]


def test_a_batch_comes_from_the_ledger_as_it_was_saved():
    failures = [Failure(60, 8.0, "it cannot be decoded")]
    batch = SavedShotBatch(50, 100, marked=marked(range(70, 73), (71,)), failures=failures)
    assert SavedShotBatch.from_json(50, 100, None, batch.results_to_json()) == batch
    assert batch.amount == 49


@pytest.mark.parametrize("row", ["[1, 2.0, 0.5]", "[-1, 2.0, 0.5, 0.5]", "[1, 2.0, 1.5, 0.5]", '[1, "2", 0.5, 0.5]'])
def test_rows_that_no_version_wrote_are_refused(row):
    with pytest.raises(TypeError):
        SavedShotBatch.from_json(0, 50, None, f"[[{row}], [], []]")
