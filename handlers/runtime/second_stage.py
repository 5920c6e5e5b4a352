"""The second stage of a model: the part that generates from what the first part encoded.

Captioners and Whisper are written as two stages, whether or not these run in one process. This module holds the
interface and the second stage in the same process; pipeline/remote.py has the one in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

TensorTree = Mapping[str, Any]
"""A dict of tensors, plain values, lists and dicts: all that can travel between stages (pipeline/tensor_tree.py)."""

StageFunction = Callable[[TensorTree], TensorTree]
"""What the second stage computes from the output of the first one."""


class SecondStage(Protocol):
    """The second stage as the first stage uses it."""

    def submit(self, tree: TensorTree) -> Any:
        """Hand over one encoded batch without waiting; returns a handle for `result`."""

    def result(self, pending: Any) -> TensorTree:
        """Wait for the second stage's output for a submitted batch. Call it once for each batch."""


class LocalSecondStage:
    """The second stage in the same process: it computes when its result is asked for."""

    def __init__(self, function: StageFunction) -> None:
        self._function = function

    def submit(self, tree: TensorTree) -> TensorTree:
        """Keep the batch; nothing is computed ahead."""
        return tree

    def result(self, pending: TensorTree) -> TensorTree:
        """Compute the output for a batch that `submit` returned."""
        return self._function(pending)
