"""A TorchServe handler that reads requests as the caption handler does, and computes nothing.

With `unpickle: true` under `handler:` in the YAML, it reads them as most handlers do, by pickle.loads.
"""

from __future__ import annotations

import pickle
from typing import Any

from reelscribe import wire


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[list[dict[str, Any]]] | None:
    """Return an empty caption for each frame; `data` is None when the worker starts."""
    if data is None:
        return None
    unpickle = context.model_yaml_config["handler"]["unpickle"]
    trees: list[Any] = [pickle.loads(row["body"]) if unpickle else wire.unpack(row["body"]) for row in data]  # noqa: S301 - for comparison
    answers = [[{"text": "", "avg_logprob": None}] * len(tree["frames"]) for tree in trees]
    if not unpickle:
        trees.clear()
        for row in data:
            row["body"].clear()  # as our handlers do: TorchServe would keep it until the next request has arrived
    return answers
