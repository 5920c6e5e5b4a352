"""The second stage of a model: the part that generates from what the first part encoded.

Captioners, clip models and Whisper always submit what they encoded to a second stage and wait for its result. By
default, that is `LocalSecondStage`, in the same process. With `stages: 2` in the YAML, it is `RemoteSecondStage` of
pipeline/remote_stage.py, and the second stage has a process and a GPU of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

TensorTree = Mapping[str, Any]
"""A dict of tensors, plain values, lists and dicts, which can be sent between stages (pipeline/tensor_tree.py)."""

StageFunction = Callable[[TensorTree], TensorTree]
"""The function that computes the output of the second stage from the output of the first one."""


class SecondStage(Protocol):
    """The second stage as the first stage uses it."""

    def submit(self, tree: TensorTree) -> Any:
        """Send one encoded batch without waiting for its result.

        Args:
            tree: The output of the first stage, which is the argument of the `StageFunction`.

        Returns:
            A handle for `result`.
        """

    def result(self, pending: Any) -> TensorTree:
        """Wait for the output of the second stage. Call it once for each submitted batch.

        Args:
            pending: The handle that `submit` returned.

        Returns:
            What the `StageFunction` returned.

        Raises:
            Exception: The second stage failed. If it ran out of memory, `device_batches.is_out_of_memory` is true.
        """


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
