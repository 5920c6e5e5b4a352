import pytest

from reelscribe.errors import UsageError
from reelscribe.prebatch import MAX_REQUEST_BYTES, frames_per_request


def test_requests_hold_so_many_frames_or_so_many_bytes():
    assert frames_per_request(224 * 224 * 3) == 32
    assert frames_per_request(224 * 224 * 3, most=5) == 5
    assert frames_per_request(1920 * 1080 * 3) * 1920 * 1080 * 3 <= MAX_REQUEST_BYTES
    assert frames_per_request(100 * MAX_REQUEST_BYTES) == 1


def test_none_is_too_few():
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        frames_per_request(1, most=0)
