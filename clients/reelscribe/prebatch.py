"""How many frames travel in one request. Pure arithmetic."""

from __future__ import annotations

from reelscribe.errors import UsageError

MAX_REQUEST_BYTES = 8 * 10**6
"""TorchServe moves bodies of 2 to 24 MB equally fast and larger ones ever more slowly; small ones share load best."""

MAX_FRAMES_PER_REQUEST = 32


def frames_per_request(frame_bytes: int, most: int = MAX_FRAMES_PER_REQUEST) -> int:
    """As many frames of `frame_bytes` as fit MAX_REQUEST_BYTES, at least one and at most `most`."""
    if most < 1:
        raise UsageError(f"frames per request: expected 1 or more, got {most}")
    return max(1, min(most, MAX_REQUEST_BYTES // frame_bytes))
