"""A TorchServe handler that reads requests as the caption handler does, and computes nothing."""

from __future__ import annotations

from typing import Any

from reelscribe import wire


def handle(data: list[dict[str, Any]] | None, _: object) -> list[list[dict[str, Any]]] | None:
    """Return an empty caption for each frame; `data` is None when the worker starts."""
    if data is None:
        return None
    trees: list[Any] = [wire.unpack(row["body"]) for row in data]
    return [[{"text": "", "avg_logprob": None}] * len(tree["frames"]) for tree in trees]
