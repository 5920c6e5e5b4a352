"""How many frames or chunks of sound travel in one request. Pure arithmetic."""

from __future__ import annotations

from reelscribe.errors import UsageError

MAX_REQUEST_BYTES = 8 * 10**6
"""TorchServe moves bodies of 2 to 24 MB equally fast and larger ones ever more slowly; small ones share load best."""

MAX_FRAMES_PER_REQUEST = 32


def request_bytes(item_bytes: int, most: int) -> int:
    """Room for a request: for `most` items of up to `item_bytes`, within MAX_REQUEST_BYTES, but at least for one."""
    if most < 1:
        raise UsageError(f"items per request: expected 1 or more, got {most}")
    return max(item_bytes, min(MAX_REQUEST_BYTES, most * item_bytes))


def items_per_request(room: int, item_bytes: int, most: int) -> int:
    """As many items of `item_bytes` as fit `room` bytes, at least one and at most `most`."""
    return max(1, min(most, room // item_bytes))
