"""A model in two stages against the same model in one process, with blocking and with asynchronous transfer.

    .venv/bin/python bench/stages.py [--rounds 5] [--models captioner captioner-beams speech] [--batches 8 32]
                                     [--items 512] [--json FILE]

The demo models, by the handlers' own code, without TorchServe: captions of 512 frames that lie in memory, greedy or by
5 beams, or transcripts of half as many chunks of 10 s, as one call of a handler. A process, or each rank of two,
computes with one thread. The ways:

one process: the handler as it is without stages. "2 threads" is the same with both cores, for comparison: two stages
    are for models that do not fit one device.
blocking: two stages; whoever sends waits until it is received, and no thread waits for what arrives. The first stage
    encodes a batch while the second one writes of the one before it.
asynchronous: two stages as TorchServe runs them, with the default of batches in flight.

Each round runs all ways once, one after the other, while the processes of the others wait; all have run once before.
Figures are medians and, in brackets, smallest and largest. A rank idles while it does not compute its stage: while the
first waits for answers or hands a batch over, and while the second has no batch.

All processes keep the memory that they free, as those on a GPU do: glibc would give it back to the kernel and get it
anew for each batch, or not, by what happens to lie beside it, and that took one way up to a third of its time.

The first table has the stages alone, one after the other in one process, and what that allows: n batches of which each
takes e in the first stage and w in the second are done after e + w + (n - 1) * max(e, w), instead of n * (e + w).
All answers are compared: every way has to give the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from listener import long_recordings
from reelscribe.media import FrameArray
from reelscribe.speech import Asked
from reelscribe.video import Video, VideoTask
from report import Report, Spread, add_json_option, publish, take_turns
from serving import FRAME, ROOT

sys.path += [str(ROOT / "handlers"), str(ROOT / "demo")]

from caption_handler import CaptionHandler, CaptionSettings
from model_handler import ModelHandler, Served
from phrases import SAMPLE_RATE
from speech_chunks import SpeechChunk
from speech_handler import SpeechHandler
from speech_settings import SpeechSettings
from stage_pair import StagePair, join_pair
from two_stages import SecondStage, SecondStageHere, SecondStageThere, Tree, Work, serve_second_stage

Model = Literal["captioner", "captioner-beams", "speech"]
Way = Literal["alone", "one process", "one process, 2 threads", "blocking", "asynchronous"]
WAYS: tuple[Way, ...] = ("one process", "one process, 2 threads", "blocking", "asynchronous")
ALL: tuple[Way, ...] = ("alone", *WAYS)
IN_PAIRS = ("blocking", "asynchronous")
CPU = torch.device("cpu")
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
LOAD_SECONDS = 120.0
RESPONSE_SECONDS = 600.0
CHUNK_SECONDS = 10
"""The window of the demo's Whisper."""
SPOKEN_SECONDS = 320.0
PER_ITEM: dict[Model, int] = {"captioner": 1, "captioner-beams": 1, "speech": CHUNK_SECONDS}
"""Frames, or seconds of sound."""


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
    handler, settings = plan.handler()
    if plan.way == "alone":
        second = TimedSecondStage(SecondStageHere(handler.second_stage(settings, CPU)))
        answer_calls(handler.serve_first_stage(settings, CPU, 1, RESPONSE_SECONDS, second), second.timed, pipe)
    else:
        answer_calls(handler.serve(settings, CPU, 1, RESPONSE_SECONDS), Timed(), pipe)


def one_rank(plan: Plan, rank: int, name: str, pipe: Connection) -> None:
    """What a rank of the pair of that name does until it is killed."""
    disable_progress_bar()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name}
    torch.set_num_threads(plan.threads)
    handler, settings = plan.handler()
    pair = join_pair(None, stage_seconds=settings.stage_seconds, load_seconds=LOAD_SECONDS)
    if rank == 0:
        there = Blocking(pair) if plan.way == "blocking" else SecondStageThere(pair, RESPONSE_SECONDS)
        second = TimedSecondStage(there)
        answer_calls(handler.serve_first_stage(settings, CPU, 1, RESPONSE_SECONDS, second), second.timed, pipe)
        return
    load, timed = handler.second_stage(settings, CPU), Timed()

    def work(tree: Tree) -> Mapping[str, Any]:
        with timed.running():
            return load(tree)

    (serve_blocking if plan.way == "blocking" else serve_second_stage)(pair, work)
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
    os.environ.update(KEEP_MEMORY)  # read when a process starts
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


def frames(count: int) -> FrameArray:
    """(count, H, W, 3) uint8, of a demo clip, again and again."""
    with Video(VideoTask(str(ROOT / "demo" / "media" / "spoken.mp4"), FRAME)) as video:
        images = [chosen.image for chosen in video.frames(range(len(video.chosen)))]
    return np.stack(list(islice(cycle([image for image in images if image is not None]), count)))


def chunks(count: int) -> list[SpeechChunk]:
    """Phrases with pauses, cut into whole windows, again and again."""
    (spoken,) = long_recordings(seed=5, lengths=[SPOKEN_SECONDS])
    samples, length = (spoken.samples / 32768).astype(np.float32), CHUNK_SECONDS * SAMPLE_RATE
    cut = [samples[at : at + length] for at in range(0, len(samples) - length + 1, length)]
    return [SpeechChunk(each, Asked()) for each in islice(cycle(cut), count)]


def measure(model: Model, batch: int, items: Sequence[Any], rounds: int, tables: Tables) -> None:
    """The rows of one model and device batch."""
    with ExitStack() as stack:
        ways: dict[str, Variant] = {way: stack.enter_context(started(Plan(model, way, batch), items)) for way in ALL}
        rates = take_turns(rounds, ways)
    answers = {way: variant.runs[0][0].answers for way, variant in ways.items()}
    same = all(run[0].answers == answers["one process"] for variant in ways.values() for run in variant.runs)
    name = (model, str(batch))
    bound = tables.add_alone(name, ways["alone"], batch)
    for way in WAYS:
        spread = Spread(tuple(rate * PER_ITEM[model] for rate in rates[way].values))
        idle = ways[way].idle() if way in IN_PAIRS else ["-", "-"]
        tables.ways.add(*name, way, spread, rates[way].over(rates["one process"]), *idle)
    over_one = rates["asynchronous"].over(rates["one process"])
    tables.asked.add(*name, "asynchronous over one process", f">= 1.3, bound {bound:.2f}", over_one)
    tables.asked.add(*name, "asynchronous over blocking", ">= 1", rates["asynchronous"].over(rates["blocking"]))
    tables.asked.add(*name, "answers of all ways", "equal", "equal" if same else "NOT EQUAL")


@dataclass(frozen=True)
class Tables:
    """What is printed."""

    alone: Report
    ways: Report
    asked: Report

    @classmethod
    def empty(cls) -> Tables:
        """Without rows."""
        name = ("model", "device batch")
        stages = ("batches", "first stage, ms", "second stage, ms", "bound")
        figures = ("frames/s or x real time", "over one process", "rank 0 idle, %", "rank 1 idle, %")
        return cls(
            Report("The stages alone, for each device batch", (*name, *stages)),
            Report("The ways", (*name, "way", *figures)),
            Report("Asked", (*name, "what", "asked", "got")),
        )

    def add_alone(self, name: tuple[str, str], variant: Variant, batch: int) -> float:
        """A row; returns the bound."""
        count = -(-len(variant.items) // batch)
        second = Spread(tuple(1000 * run.elsewhere / count for (run,) in variant.runs))
        first = Spread(tuple(1000 * (run.seconds - run.elsewhere) / count for (run,) in variant.runs))
        each, longer = first.median + second.median, max(first.median, second.median)
        bound = count * each / (each + (count - 1) * longer)
        self.alone.add(*name, str(count), first, second, bound)
        return bound


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=tuple(PER_ITEM), default=list(PER_ITEM))
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--items", type=int, default=512, help="frames; half as many chunks of sound")
    add_json_option(parser)
    arguments = parser.parse_args()
    tables = Tables.empty()
    for model in arguments.models:
        items: Any = chunks(arguments.items // 2) if model == "speech" else frames(arguments.items)
        for batch in arguments.batches:
            measure(model, batch, items, arguments.rounds, tables)
    publish([tables.alone, tables.ways, tables.asked], arguments.json)


if __name__ == "__main__":
    main()
