"""A model whose second half runs in another process: device batches go there, answers come back in order.

While the second stage works on a batch, the first one sends the next. Both ends have a thread that takes what arrives,
so that nobody waits to be rid of what is done. An error of the second stage is the answer to the batch it befell.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import Queue
from typing import Any, Protocol

import torch

from device_batches import is_out_of_memory
from reelscribe.errors import StageFailed, StageLost, WireError
from stage_link import Receiving, Sending
from stage_pair import StagePair, end_process

logger = logging.getLogger(__name__)

Tree = Mapping[str, Any]
"""A dict of tensors and plain values, as stage_link.py carries them."""

Work = Callable[[Tree], Tree]
"""What the second stage does with what the first one made."""


class SecondStage(Protocol):
    """The second stage, as the first one sees it."""

    def begin(self, tree: Tree) -> Any:
        """Have it work on `tree`; returns what `finish` takes."""

    def finish(self, begun: Any) -> Tree:
        """Its answer."""


class SecondStageHere:
    """The second stage in the same process."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def begin(self, tree: Tree) -> Tree:
        """Nothing is done ahead."""
        return tree

    def finish(self, begun: Tree) -> Tree:
        """The answer to what `begin` was given."""
        return self._work(begun)


class SecondStageThere:
    """The second stage in the other process of a pair, of which this one is the first."""

    def __init__(self, pair: StagePair, seconds: float) -> None:
        """An answer may take `seconds`."""
        self._pair = pair
        self._seconds = seconds
        self._unanswered: Queue[tuple[Sending, Future[Tree]]] = Queue()
        pair.thread("answers of the second stage", self._receive)

    def begin(self, tree: Tree) -> Future[Tree]:
        """Send `tree`, and do not wait. Raises WireError for one that cannot be sent."""
        answer: Future[Tree] = Future()
        try:
            self._unanswered.put((self._pair.ahead.isend_tensor_dict(tree), answer))
        except StageLost as error:
            end_process(str(error))
        return answer

    def finish(self, begun: Future[Tree]) -> Tree:
        """The answer. Raises StageFailed, or MemoryError if the second stage had too little for it.

        Where there is no answer in time, there will be no other either: both processes start again.
        """
        try:
            return begun.result(self._seconds)
        except concurrent.futures.TimeoutError:  # before Python 3.11 it is not the built-in one
            end_process(f"the second stage has not answered for {self._seconds:g} s")

    def _receive(self) -> None:
        while True:
            message = self._pair.back.recv_tensor_dict()
            sending, answer = self._unanswered.get()
            sending.wait()
            if "error" not in message:
                answer.set_result(message["answer"])
            elif message["out_of_memory"]:
                answer.set_exception(MemoryError(message["error"]))
            else:
                answer.set_exception(StageFailed(f"second stage: {message['error']}"))


def serve_second_stage(pair: StagePair, work: Work) -> None:
    """Begin to answer what the first stage sends, and return; it goes on for as long as the process lasts."""
    arriving: Queue[Receiving] = Queue()

    def receive() -> None:
        while True:
            arriving.put(pair.ahead.irecv_tensor_dict())

    def answer() -> None:
        while True:
            message = _answer(work, arriving.get())
            try:
                pair.back.send_tensor_dict(message)
            except WireError as error:
                logger.exception("answer of the second stage")
                pair.back.send_tensor_dict(_failure(error))

    pair.thread("batches of the first stage", receive)
    pair.thread("work of the second stage", answer)


def _answer(work: Work, receiving: Receiving) -> Tree:
    try:
        # The device may have too little memory for what was sent, as for what is made of it.
        return {"answer": work(receiving.wait())}
    except StageLost:
        raise
    except Exception as error:  # whatever it is, it is the first stage's to say
        logger.exception("second stage")
        failed = _failure(error)
        error.__traceback__ = None  # it holds the tensors that were too many
    torch.cuda.empty_cache()
    return failed


def _failure(error: Exception) -> Tree:
    return {"error": f"{type(error).__name__}: {error}", "out_of_memory": is_out_of_memory(error)}
