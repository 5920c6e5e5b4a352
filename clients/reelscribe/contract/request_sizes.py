"""How much a request of ours holds, and how many requests make a call of a handler.

TorchServe joins up to `batchSize` requests for a call, and a handler refuses those which exceed the limit of a call
with CallFull. So a server joins as many requests of our largest size as a call takes, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_REQUEST_BYTES = 8 * 10**6
"""Largest size of a request in bytes, unless it holds a single larger item. TorchServe transfers bodies of 2 to 24 MB
equally fast, and larger ones more slowly; smaller requests balance the load better."""

MAX_FRAMES_PER_REQUEST = 32
"""Default limit on the number of frames in a request."""

MAX_CLIPS_PER_REQUEST = 8
"""Default number of clips in one request."""

MAX_CHUNKS_PER_REQUEST = 8
"""Default number of chunks of audio in one request: 8 MB for chunks of 30 s. The size of device batches is up to the
server."""

MAX_WINDOWS_PER_REQUEST = 8
"""Largest number of windows in one request: 3 MB, which a core takes half a minute for, and a GPU much less."""

JOIN_MILLISECONDS = 5
"""How long TorchServe waits for requests to join a call, which takes a GPU much longer."""

_ITEMS = {
    "max_clips": MAX_CLIPS_PER_REQUEST,
    "max_chunks": MAX_CHUNKS_PER_REQUEST,
    "max_windows": MAX_WINDOWS_PER_REQUEST,
    "max_frames": MAX_FRAMES_PER_REQUEST,
}
"""The limit of a call in the settings of each kind of handler, and the items of our largest request. `max_frames` is
the last one, because clips have a setting of that name, too."""


def joined_requests(handler: Mapping[str, Any]) -> int:
    """Return how many of our largest requests a call of a handler takes.

    Args:
        handler: The settings under `handler:` in the YAML.

    Returns:
        The number of requests to join; 1 if the settings limit no call.
    """
    for limit, items in _ITEMS.items():
        most = handler.get(limit)
        if type(most) is int and most > 0:
            return math.ceil(most / items)
    return 1
