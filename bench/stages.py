"""A model in two stages against the same model in one process, with blocking and with asynchronous transfer.

    .venv/bin/python bench/stages.py [--rounds 5] [--models captioner captioner-beams speech] [--batches 8 32]
                                     [--items 512] [--json FILE]

The demo models, by the handlers' own code, without TorchServe: captions of 512 frames that lie in memory, greedy or by
5 beams, or transcripts of half as many chunks of 10 s, as one call of a handler. A process, or each rank of two,
computes with one thread. The ways:

one process: the handler as it is without stages. "2 threads" is the same with both cores, for comparison: two stages
    are for models that do not fit one device.
blocking: two stages; whoever sends waits until all has left, which a short answer does at once, and no thread waits for
    what arrives. The first stage encodes a batch while the second one writes of the one before it.
asynchronous: two stages as TorchServe runs them, with the default of batches in flight.

Each round runs all ways once, one after the other, while the processes of the others wait; all have run once before.
Figures are medians and, in brackets, smallest and largest. A rank idles while it does not compute its stage: while the
first waits for answers or hands a batch over, and while the second has no batch.

All processes keep the memory that they free, as those of a handler do (heap.py): glibc would give it back to the
kernel and get it anew for each batch, or not, by what happens to lie beside it, and that took one way up to a third of
its time.

The first table has the stages alone, one after the other in one process, and what that allows: n batches of which each
takes e in the first stage and w in the second are done after e + w + (n - 1) * max(e, w), instead of n * (e + w).
All answers are compared: every way has to give the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from listener import long_recordings
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.video import Video, VideoTask
from report import Report, Spread, add_json_option, publish, take_turns
from serving import FRAME, ROOT
from stage_runs import IN_PAIRS, Model, Plan, Variant, Way, started

sys.path.append(str(ROOT / "demo"))

from speech_chunks import SpeechChunk

from phrases import SAMPLE_RATE

WAYS: tuple[Way, ...] = ("one process", "one process, 2 threads", "blocking", "asynchronous")
ALL: tuple[Way, ...] = ("alone", *WAYS)
CHUNK_SECONDS = 10
"""The window of the demo's Whisper."""
SPOKEN_SECONDS = 320.0
PER_ITEM: dict[Model, int] = {"captioner": 1, "captioner-beams": 1, "speech": CHUNK_SECONDS}
"""Frames, or seconds of sound."""


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
    return [SpeechChunk(each, TranscriptionOptions()) for each in islice(cycle(cut), count)]


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
            Report("TranscriptionOptions", (*name, "what", "asked", "got")),
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
