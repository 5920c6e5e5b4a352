"""Processes that run a model by the handlers' own code: in one process, or in two stages.

stage_speed.py compares all ways to run a model; limits.py measures the one without stages. Each process computes what
it receives through its pipe until it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import torch
from transformers.utils.logging import disable_progress_bar

from caption_handler import CaptionHandler
from captions.captioner import CaptionSettings
from clip_handler import ClipHandler
from clips.describer import ClipSettings
from fakes.emulated_stages_handler import EmulatedStagesHandler, StageSettings
from lib.report import Spread
from pipeline.remote_stage import RemoteSecondStage, serve_second_stage
from pipeline.stage_pair import StagePair, join_pair
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree
from servers.torchserve import CAPTIONER, CLIPS, SPEECH
from speech_handler import SpeechHandler
from transcripts.speech_model import SpeechSettings
from worker.handler import LoadedModel, ModelHandler, keep_freed_memory

Model = Literal["captioner", "captioner-beams", "speech", "clips", "emulated-frames", "emulated-clips"]
Way = Literal["alone", "one process", "one process, 2 threads", "blocking", "asynchronous"]
IN_PAIRS = ("blocking", "asynchronous")
"""The ways in which two processes run a model. In the way "alone", one process runs both stages in turn."""
EMULATED_BYTES: dict[Model, int] = {
    "emulated-frames": 32 * 2560 * 2,  # BLIP-2 with opt-2.7b: queries, values of each, bytes
    "emulated-clips": 2000 * 4 * 2048 * 2,  # Qwen3-VL-2B, and a clip of 2,000 tokens: layers, values of each, bytes
}
"""Size of the features of an item that the first stage of a real model would send."""
CPU = torch.device("cpu")
LOAD_SECONDS = 120.0
RESPONSE_SECONDS = 600.0


class Run(NamedTuple):
    """Figures of one rank in one run."""

    seconds: float
    """Wall time of the run; 0 in the second stage, which does not measure it."""
    second_stage_seconds: float
    """First stage: seconds that it waits for the second stage. Second stage: seconds that it computes."""
    answers: list[Any]
    """Empty in the second stage."""


@dataclass(frozen=True)
class Plan:
    """The model of a process, and how it is run."""

    model: Model
    way: Way
    device_batch: int

    @property
    def threads(self) -> int:
        """Threads with which each process computes."""
        return 2 if self.way == "one process, 2 threads" else 1

    def handler(self) -> tuple[ModelHandler[Any], Any]:
        """The model's handler and its settings."""
        batch = self.device_batch
        if self.model in EMULATED_BYTES:
            item_bytes = EMULATED_BYTES[self.model]
            return EmulatedStagesHandler(), StageSettings("emulated", device_batch=batch, item_bytes=item_bytes)
        if self.model == "clips":
            return ClipHandler(), ClipSettings(str(CLIPS), device_batch=batch)
        if self.model == "speech":
            return SpeechHandler(), SpeechSettings(str(SPEECH), device_batch=batch)
        captioner = CaptionSettings(str(CAPTIONER), device_batch=batch)
        if self.model == "captioner":
            return CaptionHandler(), captioner
        return CaptionHandler(), replace(captioner, generation={**captioner.generation, "num_beams": 5})


class Stopwatch:
    """Adds up how long calls take."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def take(self) -> float:
        """Return the seconds added up since the last call, and start again from 0."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - began


@dataclass
class TimedSecondStage:
    """A second stage that adds up how long the first stage waits in its calls."""

    second: SecondStage
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def submit(self, tree: TensorTree) -> Any:
        """Call `second.submit`, timed."""
        with self.stopwatch.running():
            return self.second.submit(tree)

    def result(self, submitted: Any) -> TensorTree:
        """Call `second.result`, timed."""
        with self.stopwatch.running():
            return self.second.result(submitted)


class BlockingSecondStage:
    """A second stage in another process. The first stage does nothing else while it sends or receives."""

    def __init__(self, pair: StagePair) -> None:
        self._pair = pair
        self._unanswered: list[TensorTree] | None = None

    def submit(self, tree: TensorTree) -> list[TensorTree]:
        """Receive the answer that the second stage is trying to send, if there is one; then send `tree`."""
        self._receive()
        self._pair.batches.send_tensor_dict(tree)
        self._unanswered = []
        return self._unanswered

    def result(self, submitted: list[TensorTree]) -> TensorTree:
        """Return the answer to what `submit` sent."""
        if not submitted:
            self._receive()
        return submitted[0]

    def _receive(self) -> None:
        if self._unanswered is not None:
            self._unanswered.append(self._pair.results.recv_tensor_dict())
            self._unanswered = None


def serve_blocking(pair: StagePair, work: StageFunction) -> None:
    """Run the second stage for `BlockingSecondStage` in a thread."""

    def serve() -> None:
        while True:
            pair.results.send_tensor_dict(work(pair.batches.recv_tensor_dict()))

    pair.start_thread("blocking", serve)


def run_in_one_process(plan: Plan, pipe: Connection) -> None:
    """Main function of a process that runs the whole model, or both stages in turn."""
    disable_progress_bar()
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    handler, settings = plan.handler()
    if plan.way == "alone":
        second = TimedSecondStage(LocalSecondStage(handler.load_second_stage(settings, CPU)))
        answer_calls(handler.load_model(settings, CPU, RESPONSE_SECONDS, second), second.stopwatch, pipe)
    else:
        answer_calls(handler.load_model(settings, CPU, RESPONSE_SECONDS), Stopwatch(), pipe)


def run_rank(plan: Plan, rank: int, name: str, pipe: Connection) -> None:
    """Main function of a process that runs one stage. Both ranks of a pair get the same `name`."""
    disable_progress_bar()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name}
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    handler, settings = plan.handler()
    pair = join_pair(None, stage_seconds=settings.stage_seconds, load_seconds=LOAD_SECONDS)
    if rank == 0:
        transfer = BlockingSecondStage(pair) if plan.way == "blocking" else RemoteSecondStage(pair, RESPONSE_SECONDS)
        second = TimedSecondStage(transfer)
        answer_calls(handler.load_model(settings, CPU, RESPONSE_SECONDS, second), second.stopwatch, pipe)
        return
    compute, stopwatch = handler.load_second_stage(settings, CPU), Stopwatch()

    def work(tree: TensorTree) -> Mapping[str, Any]:
        with stopwatch.running():
            return compute(tree)

    if plan.way == "blocking":
        serve_blocking(pair, work)
    else:
        serve_second_stage(pair, work, RESPONSE_SECONDS)
    while True:
        pipe.recv()
        pipe.send(Run(0.0, stopwatch.take(), []))


def answer_calls(model: LoadedModel, stopwatch: Stopwatch, pipe: Connection) -> None:
    """Run each list of items that arrives through the pipe, and send its figures back."""
    stopwatch.take()
    while True:
        items = pipe.recv()
        began = time.monotonic()
        (answers,) = model.batches.map([items])
        assert isinstance(answers, list), answers
        pipe.send(Run(time.monotonic() - began, stopwatch.take(), answers))


@dataclass
class Variant:
    """The processes of a plan, and the figures of their runs."""

    items: Sequence[Any]
    pipes: list[Connection]
    runs: list[list[Run]] = field(default_factory=list)
    """For each run, the figures of each process."""

    def __call__(self) -> float:
        """Run all items once; returns items per second."""
        runs: list[Run] = []
        for pipe, work in zip(self.pipes, (self.items, ()), strict=False):
            pipe.send(work)
            runs.append(pipe.recv())
        self.runs.append(runs)
        return len(self.items) / runs[0].seconds

    def idle(self) -> list[Spread]:
        """Percentage of time that each of two ranks idles."""
        first = [100 * one.second_stage_seconds / one.seconds for one, _ in self.runs]
        second = [100 * (1 - two.second_stage_seconds / one.seconds) for one, two in self.runs]
        return [Spread(tuple(first)), Spread(tuple(second))]


@contextmanager
def started(plan: Plan, items: Sequence[Any]) -> Iterator[Variant]:
    """Start the processes of a plan and run all items once, to warm up. The processes end with the block."""
    spawn = multiprocessing.get_context("spawn")
    ranks = 2 if plan.way in IN_PAIRS else 1
    pipes = [spawn.Pipe() for _ in range(ranks)]
    name = f"{plan.model} {plan.way} {plan.device_batch}"
    targets: list[Callable[[Connection], None]] = (
        [partial(run_rank, plan, rank, name) for rank in range(ranks)]
        if ranks == 2
        else [partial(run_in_one_process, plan)]
    )
    processes = [
        spawn.Process(target=target, args=(child_end,), daemon=True)
        for target, (_, child_end) in zip(targets, pipes, strict=True)
    ]
    try:
        for process, (_, child_end) in zip(processes, pipes, strict=True):
            process.start()
            child_end.close()
        variant = Variant(items, [own_end for own_end, _ in pipes])
        variant()
        variant.runs.clear()
        yield variant
    finally:
        for process in processes:  # all of them, before one sees that the other is gone
            process.kill()
        for process in processes:
            process.join()
