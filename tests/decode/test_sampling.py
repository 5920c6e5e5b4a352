"""Which frames of a video a sampling chooses."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.source import Section
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import UsageError

TIMES = [5 + k / 10 for k in range(40)]
"""4 seconds at 10 frames a second; the clock does not begin with 0."""
KEYS = [k % 8 == 0 for k in range(40)]
END = 9.0
SHOTS = [Section(0, 10, 5.0, 6.0), Section(10, 11, 6.0, 6.1), Section(11, 40, 6.1, 9.0)]


def choose(**options) -> list[int]:
    return list(Sampling(**options).choose(TIMES, KEYS, END, SHOTS))


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, range(0, 40, 10)),
        ({"every": 1}, range(40)),
        ({"every": 7}, range(0, 40, 7)),
        ({"every": 100}, [0]),
        ({"fps": 2}, range(0, 40, 5)),
        ({"fps": 10}, range(40)),
        ({"fps": 3}, [0, 3, 6, 10, 13, 16, 20, 23, 26, 30, 33, 36]),
        ({"fps": 0.1}, [0]),
        ({"frames": 1}, [20]),
        ({"frames": 2}, [0, 39]),
        ({"frames": 4}, [0, 13, 26, 39]),
        ({"frames": 5}, [0, 10, 20, 29, 39]),
        ({"frames": 1000}, range(40)),
        ({"keyframes": True}, [0, 8, 16, 24, 32]),
        ({"start": 1, "end": 3.1}, [10, 20, 30]),
        ({"every": 1, "start": 1, "end": 1.3}, [10, 11, 12]),
        ({"every": 2, "start": 1, "end": 1.3}, [10, 12]),
        ({"fps": 2, "start": 1.2, "end": 2.3}, [12, 17, 22]),
        ({"frames": 4, "start": 3}, [30, 33, 36, 39]),
        ({"keyframes": True, "start": 0.9, "end": 2.4}, [16]),
        ({"start": 4}, []),
        ({"frames": 1, "start": 2}, [30]),
        ({"frames": 1, "start": 4}, []),
        ({"frames": 4, "start": 4}, []),
        ({"fps": 1, "start": 4}, []),
        ({"per_shot": 1}, [5, 10, 25]),
        ({"per_shot": 2}, [2, 7, 10, 18, 32]),
        ({"per_shot": 3}, [1, 5, 8, 10, 15, 25, 35]),
        ({"per_shot": 8}, [0, 1, 3, 4, 5, 6, 8, 9, 10, 12, 16, 20, 23, 27, 30, 34, 38]),
        ({"per_shot": 1, "start": 1, "end": 3.1}, [10, 21]),
        ({"per_shot": 1, "end": 0.5}, [2]),
        ({"per_shot": 1, "start": 4}, []),
    ],
)
def test_each_way_of_sampling_chooses_its_frames(options, chosen):
    assert choose(**options) == list(chosen)


@pytest.mark.parametrize("there", [1, 2, 3, 7])
def test_all_frames_of_a_video_with_too_few_are_chosen(there):
    assert list(Sampling(frames=8).choose(TIMES[:there], KEYS[:there], END)) == list(range(there))


@given(st.integers(1, 12), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_the_frames_of_a_shot_lie_as_far_from_each_other_as_from_its_ends(wanted, lengths):
    edges = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    shots = [Section(first, stop, first / 10, stop / 10) for first, stop in pairwise(edges)]
    times = [k / 10 for k in range(edges[-1])]
    chosen = list(Sampling(per_shot=wanted).choose(times, [True] * len(times), edges[-1] / 10, shots))
    assert chosen == sorted({*chosen})
    for first, stop in pairwise(edges):
        inside = [index for index in chosen if first <= index < stop]
        assert len(inside) == min(wanted, stop - first)
        gaps = [after - before for before, after in pairwise(inside)]
        assert max(gaps, default=0) - min(gaps, default=0) <= 1
        assert abs((inside[0] - first) - (stop - 1 - inside[-1])) <= 1


def test_at_a_variable_frame_rate_the_frame_shown_at_each_tick_is_chosen():
    times = [0.0, 0.1, 0.2, 2.5, 2.9, 3.0]  # one frame stands for 2.3 seconds
    assert list(Sampling(fps=1).choose(times, [True] * 6, 3.1)) == [0, 2, 5]
    assert list(Sampling(fps=2).choose(times, [True] * 6, 4.0)) == [0, 2, 3, 5]


def test_a_frame_that_is_shown_for_hours_is_chosen_once():
    assert list(Sampling(fps=25).choose([0.0], [True], 7200.0)) == [0]


@given(
    st.lists(st.fractions(Fraction(1, 100), 3, max_denominator=100), min_size=1, max_size=30),
    st.fractions(Fraction(1, 5), 60, max_denominator=10),
    st.fractions(0, 5, max_denominator=20),
)
def test_sampling_by_fps_equals_going_through_the_ticks_one_by_one(durations, fps, start):
    exact = [sum(durations[:k], Fraction(0)) for k in range(len(durations) + 1)]
    times, end = exact[:-1], exact[-1]
    in_span = [k for k, time in enumerate(times) if time >= start]
    ticks = [start + k / fps for k in range(math.ceil((end - start) * fps))] if in_span else []
    shown = {max([k for k in in_span if times[k] <= tick], default=in_span[0]) for tick in ticks}
    sampling = Sampling(fps=float(fps), start=float(start))
    assert list(sampling.choose([float(t) for t in times], [True] * len(times), float(end))) == sorted(shown)


def test_the_indices_of_hours_of_frames_take_little_memory():
    times = np.arange(108_000) / 60
    chosen = Sampling(fps=30).choose(times, np.ones(108_000, bool), 1800.0)
    assert list(chosen) == list(range(0, 108_000, 2))
    assert type(chosen[5]) is int
    assert memoryview(chosen).nbytes == 8 * 54_000


def test_the_span_ends_with_its_end_or_with_the_file():
    assert Sampling().span_end(TIMES, END) == END
    assert Sampling(end=1.5).span_end(TIMES, END) == 6.5
    assert Sampling(end=100).span_end(TIMES, END) == END


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"every": 0}, "every: expected 1 or more, got 0"),
        ({"fps": 0}, "fps: expected more than 0"),
        ({"fps": math.inf}, "fps: expected more than 0"),
        ({"fps": math.nan}, "fps: expected more than 0"),
        ({"frames": 0}, "frames: expected 1 or more, got 0"),
        ({"per_shot": 0}, "per_shot: expected 1 or more, got 0"),
        ({"start": -1}, "start: expected 0 seconds or more, got -1"),
        ({"start": math.nan}, "start: expected 0 seconds"),
        ({"end": 0}, "end: expected more seconds than the start"),
        ({"start": 2, "end": 2}, "end: expected more seconds than the start, 2, got 2"),
        ({"end": math.inf}, "end: expected more seconds"),
        ({"every": 2, "fps": 1.0}, "expected one of .* got every 2 and fps 1.0"),
        ({"frames": 4, "keyframes": True}, "expected one of .* got frames 4 and keyframes True"),
        ({"fps": 1.0, "per_shot": 2}, "expected one of .* got fps 1.0 and per_shot 2"),
    ],
)
def test_values_out_of_range_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        Sampling(**options)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, {"fps": 1.0}),
        ({"every": 3}, {"every": 3}),
        ({"fps": 0.5, "start": 0.0, "end": 9.5}, {"fps": 0.5, "start": 0.0, "end": 9.5}),
        ({"frames": 32}, {"frames": 32}),
        ({"keyframes": True}, {"keyframes": True}),
        ({"per_shot": 2, "end": 9.5}, {"per_shot": 2, "end": 9.5}),
    ],
)
def test_the_json_of_a_sampling_has_the_fields_that_are_set(options, value):
    assert Sampling(**options).to_json() == value
    assert Sampling.from_json(value) == Sampling(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one frame a second"),
        ({"fps": 2.5}, "2.5 frames a second"),
        ({"fps": 0.5}, "one frame in 2 seconds"),
        ({"every": 1}, "every frame"),
        ({"every": 10, "start": 60}, "one of 10 frames from 60 s on"),
        ({"frames": 1}, "the middle frame of each video"),
        ({"frames": 16, "end": 90}, "16 frames of each video up to 90 s"),
        ({"keyframes": True, "start": 60, "end": 90}, "every keyframe from 60 to 90 s"),
        ({"per_shot": 1}, "the middle frame of each shot"),
        ({"per_shot": 3, "end": 90}, "3 frames of each shot up to 90 s"),
    ],
)
def test_a_sampling_describes_itself_in_words(options, words):
    assert Sampling(**options).describe() == words
