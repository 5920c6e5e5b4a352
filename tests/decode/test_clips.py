"""Clips: where a video is cut into them."""

import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.source import Section
from reelscribe.decode.clips import ClipCutting
from reelscribe.errors import UsageError

RATE = 10
"""Frames per second of the videos, unless a test says otherwise."""


def windows(seconds: float, overlap: float = 0.0) -> ClipCutting:
    return ClipCutting("windows", window_seconds=seconds, overlap_seconds=overlap)


def clips_of_shots(*lengths: int, **options) -> list[tuple[int, int]]:
    """The first frame and the one after the last of each clip, of shots of so many frames."""
    edges = [*accumulate(lengths, initial=0)]
    found = [Section(a, b, a / RATE, b / RATE) for a, b in pairwise(edges)]
    clips = ClipCutting(**options).clips(found, np.arange(edges[-1]) / RATE, edges[-1] / RATE)
    for clip in clips:
        assert (clip.start_seconds, clip.end_seconds) == (clip.start_frame / RATE, clip.end_frame / RATE)
    return [(clip.start_frame, clip.end_frame) for clip in clips]


def clips_of_windows(frames: int, cutting: ClipCutting) -> list[tuple[float, float]]:
    """The start and the end of each clip of a video of so many frames."""
    clips = cutting.clips((), np.arange(frames) / RATE, frames / RATE)
    for clip in clips:
        assert (clip.start_frame, clip.end_frame) == (round(clip.start_seconds * RATE), round(clip.end_seconds * RATE))
    return [(clip.start_seconds, clip.end_seconds) for clip in clips]


def test_each_shot_is_a_clip():
    assert clips_of_shots(20, 35, 10, 300) == [(0, 20), (20, 55), (55, 65), (65, 365)]


@pytest.mark.parametrize(
    ("lengths", "clips"),
    [
        ((5, 20, 30), [(0, 25), (25, 55)]),  # to the next
        ((20, 3, 4, 30, 10), [(0, 20), (20, 57), (57, 67)]),  # also if both together are short
        ((20, 20, 5), [(0, 20), (20, 45)]),  # the last to the one before
        ((20, 5, 4), [(0, 29)]),
        ((3, 4), [(0, 7)]),  # of a video that is short itself
    ],
)
def test_short_shots_are_joined_to_a_neighbour(lengths, clips):
    assert clips_of_shots(*lengths) == clips


def test_long_shots_are_divided_evenly():
    assert clips_of_shots(300, 400, 20) == [(0, 300), (300, 500), (500, 700), (700, 720)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.floats(0, 5), st.floats(0.1, 30), st.floats(1, 60))
def test_clips_of_shots_hold_every_frame_once_and_are_no_longer_than_the_limit(lengths, least, more, rate):
    edges = [*accumulate(lengths, initial=0)]
    found = [Section(a, b, a / rate, b / rate) for a, b in pairwise(edges)]
    cutting = ClipCutting(min_seconds=least, max_seconds=least + more)
    clips = cutting.clips(found, np.arange(edges[-1]) / rate, edges[-1] / rate)
    assert [clip.start_frame for clip in clips] == [0, *(clip.end_frame for clip in clips[:-1])]
    assert clips[-1].end_frame == edges[-1]
    for clip in clips:
        assert 0 < clip.end_seconds - clip.start_seconds < cutting.longest_seconds + 1e-4


def test_windows_follow_each_other_and_the_last_one_is_shorter():
    assert clips_of_windows(250, windows(10)) == [(0, 10), (10, 20), (20, 25)]
    assert clips_of_windows(200, windows(10)) == [(0, 10), (10, 20)]
    assert clips_of_windows(45, windows(10)) == [(0, 4.5)]


def test_a_last_window_that_is_too_short_is_joined_to_the_one_before():
    assert clips_of_windows(205, windows(10)) == [(0, 10), (10, 20.5)]
    assert clips_of_windows(210, windows(10)) == [(0, 10), (10, 20), (20, 21)]
    assert clips_of_windows(5, windows(10)) == [(0, 0.5)]


def test_windows_overlap_as_long_as_each_shows_something_new():
    assert clips_of_windows(170, windows(10, overlap=4)) == [(0, 10), (6, 16), (12, 17)]
    assert clips_of_windows(160, windows(10, overlap=4)) == [(0, 10), (6, 16)]
    assert clips_of_windows(100, windows(10, overlap=9)) == [(0, 10)]


@pytest.mark.parametrize("cutting", [ClipCutting(), windows(10), windows(10, overlap=5)])
def test_a_video_of_one_frame_is_one_clip(cutting):
    assert cutting.clips([Section(0, 1, 7.3, 7.34)], [7.3], 7.34) == [Section(0, 1, 7.3, 7.34)]


def test_a_stretch_in_which_no_frame_appears_is_no_clip():
    times, end = [0.0, 0.5, 1.0, 35.0, 35.5], 36.0
    assert windows(10).clips((), times, end) == [Section(0, 3, 0, 10), Section(3, 5, 30, 36)]
    assert windows(10, overlap=5).clips((), times, end) == [Section(0, 3, 0, 10), Section(3, 5, 30, 36)]
    shot = [Section(0, 5, 0, end)]
    assert ClipCutting(max_seconds=5).clips(shot, times, end) == [Section(0, 3, 0, 4.5), Section(3, 5, 31.5, 36)]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"cut": "scenes"}, "clips: expected one of shots, windows, got 'scenes'"),
        ({"min_seconds": -1}, "clip seconds min: expected 0 seconds or more, got -1"),
        ({"min_seconds": math.nan}, "clip seconds min: expected 0 seconds or more, got nan"),
        ({"min_seconds": 5, "max_seconds": 5}, "clip seconds max: expected .* more than the shortest, 5, got 5"),
        ({"min_seconds": 0, "max_seconds": 1e-9}, "clip seconds max: expected 0.1 seconds or more"),
        ({"max_seconds": math.inf}, "clip seconds max: expected .* got inf"),
        ({"window_seconds": 0}, "clip seconds: expected 0.1 seconds or more, got 0"),
        ({"window_seconds": math.nan}, "clip seconds: expected 0.1 seconds or more, got nan"),
        ({"overlap_seconds": -1}, "clip overlap: expected from 0 to 9.9 of the 10.0 seconds of a window, got -1"),
        (
            {"overlap_seconds": 9.999999},
            "clip overlap: expected from 0 to 9.9 of the 10.0 seconds of a window",
        ),
        ({"cut": "shots", "window_seconds": 2.0}, "clip seconds: expected windows with it, got clips that are shots"),
        ({"cut": "shots", "overlap_seconds": 0.0}, "clip overlap: expected windows with it"),
        ({"cut": "windows", "max_seconds": 20.0}, "clip seconds max: expected shots with it"),
        ({"window_seconds": 2.0, "max_seconds": 20.0}, "clip seconds max: expected shots with it"),
    ],
)
def test_clips_that_cannot_be_cut_are_refused(options, rule):
    with pytest.raises(UsageError, match=rule):
        ClipCutting(**options)


def test_a_length_that_only_windows_have_means_windows():
    assert ClipCutting(window_seconds=2.0).settings() == ClipCutting("windows", window_seconds=2.0).settings()
    assert ClipCutting(overlap_seconds=1.0).describe() == "a clip of each 10 seconds"
    assert ClipCutting(max_seconds=20.0).describe() == ClipCutting().describe() == "a clip for each shot"
