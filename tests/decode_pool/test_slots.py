"""How many frames travel together."""

import pytest

from reelscribe.decode_pool.commands import MAX_REQUEST_BYTES, items_per_request, request_bytes
from reelscribe.errors import UsageError

SMALL, LARGE = 224 * 224 * 3, 1920 * 1080 * 3
"""Bytes of a frame."""


def test_a_request_is_bounded_in_frames_and_in_bytes():
    assert items_per_request(request_bytes(SMALL, 32), SMALL, 32) == 32
    assert items_per_request(request_bytes(SMALL, 5), SMALL, 5) == 5
    assert items_per_request(request_bytes(LARGE, 32), LARGE, 32) * LARGE <= MAX_REQUEST_BYTES


def test_a_frame_that_is_larger_than_the_bound_travels_alone():
    huge = 100 * MAX_REQUEST_BYTES
    assert items_per_request(request_bytes(huge, 32), huge, 32) == 1


def test_small_frames_fill_a_slot_that_was_made_for_large_ones():
    assert items_per_request(request_bytes(LARGE, 32), SMALL, 32) == 32


def test_a_request_without_items_is_refused():
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        request_bytes(1, 0)
