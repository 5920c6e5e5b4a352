"""The processes that bench/stages.py compares: a model in one, which bench/limits.py measures too, and in two stages.

Each process computes what is sent through its pipe, by the handlers' own code, until it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import torch
from transformers.utils.logging import disable_progress_bar

from report import Spread
from serving import ROOT

sys.path.append(str(ROOT / "handlers"))

from heap import keep_freed_memory
from model_handler import ModelHandler, Served
from speech_settings import SpeechSettings
from stage_pair import StagePair, join_pair
from two_stages import SecondStage, SecondStageHere, SecondStageThere, Tree, Work, serve_second_stage

from caption_handler import CaptionHandler, CaptionSettings
from speech_handler import SpeechHandler

Model = Literal["captioner", "captioner-beams", "speech"]
Way = Literal["alone", "one process", "one process, 2 threads", "blocking", "asynchronous"]
IN_PAIRS = ("blocking", "asynchronous")
CPU = torch.device("cpu")
LOAD_SECONDS = 120.0
RESPONSE_SECONDS = 600.0


class Run(NamedTuple):
    """What one rank did in one run."""

    seconds: float
    """Of wall time; 0 for a second stage, which does not know."""
    elsewhere: float
    """Seconds of the first stage for the second one: handing over and waiting. Seconds of work, of the second."""
    answers: list[Any]
    """None of a second stage."""


@dataclass(frozen=True)
class Plan:
    """What a process is to do."""

    model: Model
    way: Way
    device_batch: int

    @property
    def threads(self) -> int:
        """Of each process."""
        return 2 if self.way == "one process, 2 threads" else 1

    def handler(self) -> tuple[ModelHandler[Any], Any]:
        """The model's handler and its settings."""
        models, batch = ROOT / "demo" / "models", self.device_batch
        if self.model == "speech":
            return SpeechHandler(), SpeechSettings(str(models / "speech"), device_batch=batch)
        captioner = CaptionSettings(str(models / "captioner"), device_batch=batch)
        if self.model == "captioner":
            return CaptionHandler(), captioner
        return CaptionHandler(), replace(captioner, generation={**captioner.generation, "num_beams": 5})


class Timed:
    """Adds up how long calls take."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def take(self) -> float:
        """Seconds since the last time."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count this."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began


@dataclass
class TimedSecondStage:
    """Adds up how long the first stage is held up by the second."""

    second: SecondStage
    timed: Timed = field(default_factory=Timed)

    def begin(self, tree: Tree) -> Any:
        """As that of `second`."""
        with self.timed.running():
            return self.second.begin(tree)

    def finish(self, begun: Any) -> Tree:
        """As that of `second`."""
        with self.timed.running():
            return self.second.finish(begun)


class Blocking:
    """The second stage there; nothing else is done while something is sent or received."""

    def __init__(self, pair: StagePair) -> None:
        self._pair = pair
        self._unanswered: list[Tree] | None = None

    def begin(self, tree: Tree) -> list[Tree]:
        """Send `tree`; before it, receive what the second stage is trying to send."""
        self._receive()
        self._pair.ahead.send_tensor_dict(tree)
        self._unanswered = []
        return self._unanswered

    def finish(self, begun: list[Tree]) -> Tree:
        """The answer."""
        if not begun:
            self._receive()
        return begun[0]

    def _receive(self) -> None:
        if self._unanswered is not None:
            self._unanswered.append(self._pair.back.recv_tensor_dict())
            self._unanswered = None


def serve_blocking(pair: StagePair, work: Work) -> None:
    """The second stage of `Blocking`, in a thread."""

    def serve() -> None:
        while True:
            pair.back.send_tensor_dict(work(pair.ahead.recv_tensor_dict()))

    pair.thread("blocking", serve)


def one_process(plan: Plan, pipe: Connection) -> None:
    """What the only process, or the one with both stages, does until it is killed."""
    disable_progress_bar()
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    handler, settings = plan.handler()
    if plan.way == "alone":
        second = TimedSecondStage(SecondStageHere(handler.second_stage(settings, CPU)))
        answer_calls(handler.serve(settings, CPU, 1, RESPONSE_SECONDS, second), second.timed, pipe)
    else:
        answer_calls(handler.serve(settings, CPU, 1, RESPONSE_SECONDS), Timed(), pipe)


def one_rank(plan: Plan, rank: int, name: str, pipe: Connection) -> None:
    """What a rank of the pair of that name does until it is killed."""
    disable_progress_bar()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name}
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    handler, settings = plan.handler()
    pair = join_pair(None, stage_seconds=settings.stage_seconds, load_seconds=LOAD_SECONDS)
    if rank == 0:
        there = Blocking(pair) if plan.way == "blocking" else SecondStageThere(pair, RESPONSE_SECONDS)
        second = TimedSecondStage(there)
        answer_calls(handler.serve(settings, CPU, 1, RESPONSE_SECONDS, second), second.timed, pipe)
        return
    load, timed = handler.second_stage(settings, CPU), Timed()

    def work(tree: Tree) -> Mapping[str, Any]:
        with timed.running():
            return load(tree)

    if plan.way == "blocking":
        serve_blocking(pair, work)
    else:
        serve_second_stage(pair, work, RESPONSE_SECONDS)
    while True:
        pipe.recv()
        pipe.send(Run(0.0, timed.take(), []))


def answer_calls(served: Served, timed: Timed, pipe: Connection) -> None:
    """Run each list of items that comes."""
    timed.take()
    while True:
        items = pipe.recv()
        began = time.monotonic()
        (answers,) = served.batches.map([items])
        assert isinstance(answers, list), answers
        pipe.send(Run(time.monotonic() - began, timed.take(), answers))


@dataclass
class Variant:
    """The processes of a plan, and what came of their runs."""

    items: Sequence[Any]
    pipes: list[Connection]
    runs: list[list[Run]] = field(default_factory=list)

    def __call__(self) -> float:
        """Items in a second."""
        runs: list[Run] = []
        for pipe, work in zip(self.pipes, (self.items, ()), strict=False):
            pipe.send(work)
            runs.append(pipe.recv())
        self.runs.append(runs)
        return len(self.items) / runs[0].seconds

    def idle(self) -> list[Spread]:
        """The share of time that each of two ranks idles, in percent."""
        first = [100 * one.elsewhere / one.seconds for one, _ in self.runs]
        second = [100 * (1 - two.elsewhere / one.seconds) for one, two in self.runs]
        return [Spread(tuple(first)), Spread(tuple(second))]


@contextmanager
def started(plan: Plan, items: Sequence[Any]) -> Iterator[Variant]:
    """The processes of a plan, which have run once."""
    spawn = multiprocessing.get_context("spawn")
    ranks = 2 if plan.way in IN_PAIRS else 1
    pipes = [spawn.Pipe() for _ in range(ranks)]
    name = f"{plan.model} {plan.way} {plan.device_batch}"
    targets: list[Callable[[Connection], None]] = (
        [partial(one_rank, plan, rank, name) for rank in range(ranks)] if ranks == 2 else [partial(one_process, plan)]
    )
    processes = [
        spawn.Process(target=target, args=(there,), daemon=True)
        for target, (_, there) in zip(targets, pipes, strict=True)
    ]
    try:
        for process, (_, there) in zip(processes, pipes, strict=True):
            process.start()
            there.close()
        variant = Variant(items, [here for here, _ in pipes])
        variant()
        variant.runs.clear()
        yield variant
    finally:
        for process in processes:  # all of them, before one sees that the other is gone
            process.kill()
        for process in processes:
            process.join()
