"""Which frames take over the caption of the one before."""

import numpy as np
import pytest

from reelscribe.decode.reuse import BLOCK, REUSE_LEVELS, Reuse

GREY = np.full((90, 120, 3), 128, np.uint8)
"""Its sides are no multiples of a block's."""


def nearly_equal(captioned: np.ndarray, frame: np.ndarray) -> bool:
    reuse = Reuse()
    reuse.remember(captioned)
    return reuse.nearly_equal(frame)


def test_nothing_is_equal_to_a_frame_that_was_never_captioned():
    assert not Reuse().nearly_equal(GREY)


@pytest.mark.parametrize("change", [REUSE_LEVELS, -REUSE_LEVELS])
def test_a_change_of_light_counts_from_so_many_levels_on(change):
    assert nearly_equal(GREY, np.full_like(GREY, 128 + change))
    assert not nearly_equal(GREY, np.full_like(GREY, 128 + change + np.sign(change)))


@pytest.mark.parametrize("colour", range(3))
@pytest.mark.parametrize(("top", "left"), [(0, 0), (32, 48), (80, 112)])  # the last block is but a part of one
def test_one_block_that_changes_in_one_colour_is_seen(top, left, colour):
    frame = GREY.copy()
    frame[top : top + BLOCK, left : left + BLOCK, colour] += REUSE_LEVELS + 1
    assert not nearly_equal(GREY, frame)


def test_noise_is_not_seen():
    noise = np.random.default_rng(0).normal(0, 5, GREY.shape)
    assert nearly_equal(GREY, (GREY + noise).round().astype(np.uint8))


def test_an_edge_that_moves_by_a_pixel_is_seen():
    first, second = np.zeros_like(GREY), np.zeros_like(GREY)
    first[:, 40:] = second[:, 41:] = 255
    assert not nearly_equal(first, second)


def test_frames_are_compared_with_the_captioned_one_so_that_slow_changes_add_up():
    reuse = Reuse()
    reuse.remember(GREY)
    equal = [reuse.nearly_equal(GREY + np.uint8(step)) for step in range(REUSE_LEVELS + 3)]
    assert equal == [True] * (REUSE_LEVELS + 1) + [False] * 2


def test_a_frame_smaller_than_a_block_is_compared_too():
    tiny = GREY[:3, :5]
    assert nearly_equal(tiny, tiny)
    assert not nearly_equal(tiny, tiny + np.uint8(50))
