import pytest

from reelscribe.decode_pool.slots import MAX_REQUEST_BYTES, items_per_request, request_bytes
from reelscribe.errors import UsageError

SMALL, LARGE = 224 * 224 * 3, 1920 * 1080 * 3


def test_requests_hold_so_many_frames_or_so_many_bytes():
    assert items_per_request(request_bytes(SMALL, 32), SMALL, 32) == 32
    assert items_per_request(request_bytes(SMALL, 5), SMALL, 5) == 5
    assert items_per_request(request_bytes(LARGE, 32), LARGE, 32) * LARGE <= MAX_REQUEST_BYTES
    assert items_per_request(request_bytes(100 * MAX_REQUEST_BYTES, 32), 100 * MAX_REQUEST_BYTES, 32) == 1


def test_where_frames_may_be_large_small_ones_still_travel_together():
    assert items_per_request(request_bytes(LARGE, 32), SMALL, 32) == 32


def test_none_is_too_few():
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        request_bytes(1, 0)
