"""Which frames count as nearly equal to the last captioned frame."""

import numpy as np
import pytest

from reelscribe.decode.reuse import BLOCK, REUSE_LEVELS, ReuseDetector

GREY = np.full((90, 120, 3), 128, np.uint8)
"""Its sides are not multiples of the side of a block."""


def nearly_equal(captioned: np.ndarray, frame: np.ndarray) -> bool:
    reuse = ReuseDetector()
    reuse.remember(captioned)
    return reuse.nearly_equal(frame)


def test_without_a_captioned_frame_no_frame_is_nearly_equal():
    assert not ReuseDetector().nearly_equal(GREY)


@pytest.mark.parametrize("change", [REUSE_LEVELS, -REUSE_LEVELS])
def test_frames_may_differ_by_the_limit_and_no_more(change):
    assert nearly_equal(GREY, np.full_like(GREY, 128 + change))
    assert not nearly_equal(GREY, np.full_like(GREY, 128 + change + np.sign(change)))


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
    reuse = ReuseDetector()
    reuse.remember(GREY)
    equal = [reuse.nearly_equal(GREY + np.uint8(step)) for step in range(REUSE_LEVELS + 3)]
    assert equal == [True] * (REUSE_LEVELS + 1) + [False] * 2


def test_frames_smaller_than_a_block_are_compared():
    tiny = GREY[:3, :5]
    assert nearly_equal(tiny, tiny)
    assert not nearly_equal(tiny, tiny + np.uint8(50))
