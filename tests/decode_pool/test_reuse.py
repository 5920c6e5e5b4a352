"""Which frames count as nearly equal to the last captioned frame."""

import numpy as np
import pytest

from reelscribe.decode_pool.reuse import BLOCK, REUSE_LEVELS, ReuseDetector

GREY = np.full((90, 120, 3), 128, np.uint8)
"""Its sides are not multiples of the side of a block."""


def nearly_equal(captioned: np.ndarray, frame: np.ndarray) -> bool:
    reuse = ReuseDetector()
    reuse.remember(captioned)
    return reuse.nearly_equal(frame)


def test_without_a_captioned_frame_no_frame_is_nearly_equal():
    assert not ReuseDetector().nearly_equal(GREY)


@pytest.mark.parametrize("change", [REUSE_LEVELS, -REUSE_LEVELS])
def test_a_block_may_differ_by_the_limit_and_no_more(change):
    frame = np.full((480, 480, 3), 128, np.uint8)
    for level, expected in ((128 + change, True), (128 + change + np.sign(change), False)):
        changed = frame.copy()
        changed[:BLOCK, :BLOCK] = level
        assert nearly_equal(frame, changed) == expected


def test_a_frame_that_changes_everywhere_by_a_little_differs():
    assert not nearly_equal(GREY, GREY + np.uint8(1))


def test_of_a_slow_cross_fade_hardly_a_frame_is_reused():
    """No block changes by more than 0.64 levels a frame, so nine frames in a row differ by less than REUSE_LEVELS."""
    rng = np.random.default_rng(0)
    first, second = (np.kron(rng.integers(64, 192, (4, 4, 3)), np.ones((56, 56, 1))) for _ in range(2))
    frames = [(first + (second - first) * k / 200).round().astype(np.uint8) for k in range(200)]
    reuse, in_a_row, most = ReuseDetector(), 0, 0
    for frame in frames:
        in_a_row = in_a_row + 1 if reuse.nearly_equal(frame) else 0
        most = max(most, in_a_row)
        if not in_a_row:
            reuse.remember(frame)
    assert most <= 2


@pytest.mark.parametrize("colour", range(3))
@pytest.mark.parametrize(("top", "left"), [(0, 0), (32, 48), (80, 112)])  # the last block is smaller than the others
def test_a_change_of_one_colour_in_one_block_makes_frames_differ(top, left, colour):
    frame = GREY.copy()
    frame[top : top + BLOCK, left : left + BLOCK, colour] += REUSE_LEVELS + 1
    assert not nearly_equal(GREY, frame)


def test_noise_makes_no_difference():
    noise = np.random.default_rng(0).normal(0, 5, GREY.shape)
    assert nearly_equal(GREY, (GREY + noise).round().astype(np.uint8))


def test_an_edge_that_moves_by_a_pixel_makes_frames_differ():
    first, second = np.zeros_like(GREY), np.zeros_like(GREY)
    first[:, 40:] = second[:, 41:] = 255
    assert not nearly_equal(first, second)


def test_frames_are_compared_with_the_captioned_one_so_slow_changes_add_up():
    frame = np.full((480, 480, 3), 128, np.uint8)
    reuse = ReuseDetector()
    reuse.remember(frame)
    equal = []
    for step in range(REUSE_LEVELS + 3):
        frame[:BLOCK, :BLOCK] = 128 + step
        equal.append(reuse.nearly_equal(frame))
    assert equal == [True] * (REUSE_LEVELS + 1) + [False] * 2


def test_frames_smaller_than_a_block_are_compared():
    tiny = GREY[:3, :5]
    assert nearly_equal(tiny, tiny)
    assert not nearly_equal(tiny, tiny + np.uint8(50))
