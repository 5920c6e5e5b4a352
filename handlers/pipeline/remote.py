"""A model whose second half runs in another process: device batches go there, answers come back in order.

While the second stage works on a batch, the first one sends the next, which a thread of the second takes in. The first
takes an answer when it needs it. An error of the second stage is the answer to the batch it befell.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Queue
from typing import Any, Protocol

import torch

from runtime.device_batches import is_out_of_memory
from reelscribe.errors import StageFailed, StageLost, WireError
from pipeline.link import Receiving, Sending
from pipeline.pair import StagePair, end_process

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


@dataclass
class Begun:
    """A batch that was sent."""

    sending: Sending
    message: Tree | None = None
    """What came back."""


class SecondStageThere:
    """The second stage in the other process of a pair, of which this one is the first; for one thread."""

    def __init__(self, pair: StagePair, seconds: float) -> None:
        """`finish` waits `seconds` for each answer."""
        self._pair = pair
        self._seconds = seconds
        self._unanswered: deque[Begun] = deque()

    def begin(self, tree: Tree) -> Begun:
        """Send `tree`, and do not wait. Raises WireError for one that cannot be sent."""
        try:
            begun = Begun(self._pair.ahead.isend_tensor_dict(tree))
        except StageLost as error:
            end_process(str(error))
        self._unanswered.append(begun)
        return begun

    def finish(self, begun: Begun) -> Tree:
        """The answer. Raises StageFailed, or MemoryError if the second stage had too little for it.

        Where there is no answer in time, there will be no other either: both processes start again.
        """
        while begun.message is None:
            self._receive()
        if "error" not in begun.message:
            answer: Tree = begun.message["answer"]
            return answer
        if begun.message["out_of_memory"]:
            raise MemoryError(begun.message["error"])
        raise StageFailed(f"second stage: {begun.message['error']}")

    def _receive(self) -> None:
        """The next answer, which is to the first of the unanswered."""
        with self._pair.ending("answers of the second stage"):
            try:
                message = self._pair.back.recv_tensor_dict(self._seconds)
            except StageLost as error:
                raise StageLost(
                    f"{error}; an answer may take {self._seconds:g} s, the larger of responseTimeout and startupTimeout"
                    " in the YAML"
                ) from error
            begun = self._unanswered.popleft()
            begun.sending.wait()
            begun.message = message


def serve_second_stage(pair: StagePair, work: Work, seconds: float) -> None:
    """Begin to answer what the first stage sends, and return; it goes on for as long as the process lasts.

    The first stage, which may be at work on something else, takes an answer within `seconds`.
    """
    arriving: Queue[Receiving] = Queue()

    def receive() -> None:
        while True:
            arriving.put(pair.ahead.irecv_tensor_dict())

    def answer() -> None:
        sending = None
        while True:
            message = _answer(work, arriving.get())
            if sending is not None:
                sending.wait(seconds)
            try:
                sending = pair.back.isend_tensor_dict(message)
            except WireError as error:
                logger.exception("answer of the second stage")
                sending = pair.back.isend_tensor_dict(_failure(error))

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
