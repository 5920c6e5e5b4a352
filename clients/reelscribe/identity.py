"""Whether two models would answer the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_CIRCUMSTANCES = {
    *("device_batch", "max_frames", "max_side", "max_chunks", "workers", "response_seconds"),
    *("stages", "devices"),
}
"""Of a description: how much is answered at a time, how fast and where, but not what."""


def identity_of(description: Mapping[str, Any]) -> str:
    """A digest of all that decides what a model answers, of its description as the handler sends it: 16 hex digits."""
    decides = {name: value for name, value in description.items() if name not in _CIRCUMSTANCES}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
