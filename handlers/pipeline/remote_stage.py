"""The second stage of a model in another process: device batches are sent to it, and results come back in order.

While the second stage computes a batch, the first stage sends the next one, and a thread of the second stage receives
it. The first stage receives a result when it needs it. If the second stage fails for a batch, it sends the error as the
result of the batch.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from queue import Queue

import torch

from pipeline.stage_link import Receiving, Sending
from pipeline.stage_pair import StagePair, end_process
from reelscribe.errors import StageFailed, StageLost, WireError
from runtime.device_batches import is_out_of_memory
from runtime.second_stage import StageFunction, TensorTree

logger = logging.getLogger(__name__)


@dataclass
class PendingBatch:
    """A batch that was sent to the second stage."""

    sending: Sending
    message: TensorTree | None = None
    """The second stage's message about the batch; None until it is received."""


class RemoteSecondStage:
    """The second stage in the other process of a pair, as the first stage uses it from a single thread."""

    def __init__(self, pair: StagePair, seconds: float) -> None:
        """Use the other process of `pair`, with a timeout of `seconds` seconds for each result."""
        self._pair = pair
        self._seconds = seconds
        self._pending: deque[PendingBatch] = deque()

    def submit(self, tree: TensorTree) -> PendingBatch:
        """Send a batch without waiting; returns a handle for `result`.

        Raises:
            WireError: The batch cannot be sent.
        """
        try:
            batch = PendingBatch(self._pair.batches.isend_tensor_dict(tree))
        except StageLost as error:
            end_process(str(error))
        self._pending.append(batch)
        return batch

    def result(self, pending: PendingBatch) -> TensorTree:
        """Wait for the output of the second stage for a submitted batch.

        If it does not arrive in time, this process ends, and TorchServe restarts both.

        Args:
            pending: What `submit` returned.

        Returns:
            The output of the second stage.

        Raises:
            StageFailed: The second stage raised an error.
            MemoryError: The second stage had too little memory.
        """
        while pending.message is None:
            self._receive()
        if "error" not in pending.message:
            output: TensorTree = pending.message["output"]
            return output
        if pending.message["out_of_memory"]:
            raise MemoryError(pending.message["error"])
        raise StageFailed(f"second stage: {pending.message['error']}")

    def _receive(self) -> None:
        """Receive the next message, which is about the oldest pending batch."""
        with self._pair.end_on_error("results of the second stage"):
            try:
                message = self._pair.results.recv_tensor_dict(self._seconds)
            except StageLost as error:
                raise StageLost(
                    f"{error}; the timeout for a result is {self._seconds:g} s, the larger of responseTimeout and"
                    " startupTimeout in the YAML"
                ) from error
            batch = self._pending.popleft()
            batch.sending.wait()
            batch.message = message


def serve_second_stage(pair: StagePair, function: StageFunction, seconds: float) -> None:
    """Start threads that compute what the first stage sends until the process ends, and return.

    Args:
        pair: The two processes, of which this is the second.
        function: Computes the output for a batch.
        seconds: Timeout in seconds for the first stage to receive a result; it may be busy with a batch.
    """
    arriving: Queue[Receiving] = Queue()

    def receive() -> None:
        while True:
            arriving.put(pair.batches.irecv_tensor_dict())

    def compute() -> None:
        sending = None
        while True:
            message = _compute(function, arriving.get())
            if sending is not None:
                sending.wait(seconds)
            try:
                sending = pair.results.isend_tensor_dict(message)
            except WireError as error:
                logger.exception("the output of the second stage cannot be sent")
                sending = pair.results.isend_tensor_dict(_failure(error))

    pair.start_thread("batches of the first stage", receive)
    pair.start_thread("computation of the second stage", compute)


def _compute(function: StageFunction, receiving: Receiving) -> TensorTree:
    """Compute one batch, and return the message about it: an output or an error."""
    try:
        # Receiving may run out of device memory as well as computing.
        return {"output": function(receiving.wait())}
    except StageLost:
        raise
    except Exception as error:  # whatever it is, the first stage reports it
        logger.exception("second stage")
        failure = _failure(error)
        error.__traceback__ = None  # it refers to tensors, whose memory could not be freed
    torch.cuda.empty_cache()
    return failure


def _failure(error: Exception) -> TensorTree:
    return {"error": f"{type(error).__name__}: {error}", "out_of_memory": is_out_of_memory(error)}
