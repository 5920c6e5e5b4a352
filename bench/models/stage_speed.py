"""How fast is a model in two stages, with blocking and with asynchronous transfer, compared with one process?

    scripts/bench stage_speed [--rounds 5] [--models captioner captioner-beams speech clips] [--batches 8 32]
                              [--items 512] [--json FILE]

The demo models run by the handlers' own code, without TorchServe. One call of the handler captions 512 frames in
memory, greedily or with 5 beams, transcribes half as many chunks of 10 s, or describes an eighth as many clips of 8
frames. A process, or each rank of two, computes with one thread. The models emulated-frames and emulated-clips have no
weights: each stage sleeps for 50 ms a device batch, as if it had a device, and as many bytes are sent as the features
of a BLIP-2 or of a Qwen3-VL-2B have. The ways:

one process: the handler without stages. "2 threads" is the same with both cores, for comparison: two stages are for
    models that do not fit one device.
blocking: two stages. The sender waits until the whole message has left, which is at once for a short answer, and no
    thread waits for messages that arrive. The first stage encodes a batch while the second one generates the text of
    the batch before it.
asynchronous: two stages as TorchServe runs them, with the default number of batches in flight.

Each round runs all ways once, one after the other, while the processes of the others wait; all have run once before.
Figures are medians and, in brackets, smallest and largest. A rank idles while it does not compute its stage: the first
rank while it waits for answers or hands a batch over, the second while it has no batch.

All processes keep the memory that they free, as those of a handler do (worker/handler.py). Otherwise glibc returns it
to the kernel and allocates it anew for each batch, depending on what lies beside it, which cost one way up to a third
of its time.

The first table has the stages alone, one after the other in one process, and the speed-up that their times allow: n
batches that each take e in the first stage and w in the second are done after e + w + (n - 1) * max(e, w) instead of
n * (e + w). All ways must give the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from lib.command import add_json_option, command_parser, run_command
from lib.recordings import long_recordings
from lib.report import Report, Spread, publish, take_turns
from lib.stage_runs import EMULATED_BYTES, IN_PAIRS, Model, Plan, Variant, Way, started
from reelscribe.contract.clips import Clip
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.video import Video, VideoTask
from servers.emulated import FRAME
from servers.torchserve import ROOT
from synthetic.event_clips import random_event_clip
from synthetic.phrases import SAMPLE_RATE
from transcripts.speech_model import Chunk

WAYS: tuple[Way, ...] = ("one process", "one process, 2 threads", "blocking", "asynchronous")
ALL: tuple[Way, ...] = ("alone", *WAYS)
CHUNK_SECONDS = 10
"""The window of the demo speech model."""
RECORDING_SECONDS = 320.0
PER_ITEM: dict[Model, int] = {
    "captioner": 1,
    "captioner-beams": 1,
    "speech": CHUNK_SECONDS,
    "clips": 1,
    "emulated-frames": 1,
    "emulated-clips": 1,
}
"""Frames, or seconds of audio, in an item."""


def frames(count: int) -> FrameArray:
    """The frames of a demo clip, repeated to (count, H, W, 3) uint8."""
    with Video(VideoTask(str(ROOT / "demo" / "media" / "spoken.mp4"), FRAME)) as video:
        images = [chosen.image for chosen in video.frames(range(len(video.chosen)))]
    return np.stack(list(islice(cycle([image for image in images if image is not None]), count)))


def chunks(count: int) -> list[Chunk]:
    """A recording of phrases, cut into whole windows, repeated to `count` chunks."""
    (recording,) = long_recordings(seed=5, lengths=[RECORDING_SECONDS])
    samples, length = (recording.samples / 32768).astype(np.float32), CHUNK_SECONDS * SAMPLE_RATE
    cut = [samples[at : at + length] for at in range(0, len(samples) - length + 1, length)]
    return [Chunk(each, TranscriptionOptions()) for each in islice(cycle(cut), count)]


def clips(count: int) -> list[Clip]:
    """Clips of 8 frames in which something happens."""
    drawn = [random_event_clip(random.Random(seed)) for seed in range(16)]  # noqa: S311 - a seed, no secret
    frames = [np.stack([np.asarray(clip.draw(k / 8, 160, 96)) for k in range(8)]) for clip in drawn]
    return [Clip(each, [k / 2 for k in range(8)]) for each in islice(cycle(frames), count)]


def items_of(model: Model, count: int) -> Any:
    """The items of a model, of which `count` says how many frames there are."""
    if model == "speech":
        return chunks(count // 2)
    if model == "clips":
        return clips(count // 8)
    return list(range(count)) if model in EMULATED_BYTES else frames(count)


def measure(model: Model, batch: int, items: Sequence[Any], rounds: int, tables: Tables) -> None:
    """Add the rows of one model and device batch."""
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
    tables.targets.add(*name, "asynchronous over one process", f">= 1.3, bound {bound:.2f}", over_one)
    tables.targets.add(*name, "asynchronous over blocking", ">= 1", rates["asynchronous"].over(rates["blocking"]))
    tables.targets.add(*name, "answers of all ways", "equal", "equal" if same else "NOT EQUAL")


@dataclass(frozen=True)
class Tables:
    """The tables that are printed."""

    alone: Report
    ways: Report
    targets: Report

    @classmethod
    def empty(cls) -> Tables:
        """The tables without rows."""
        name = ("model", "device batch")
        stages = ("batches", "first stage, ms", "second stage, ms", "bound")
        figures = ("frames/s or x real time", "over one process", "rank 0 idle, %", "rank 1 idle, %")
        return cls(
            Report("The stages alone, for each device batch", (*name, *stages)),
            Report("The ways", (*name, "way", *figures)),
            Report("Targets", (*name, "figure", "target", "measured")),
        )

    def add_alone(self, name: tuple[str, str], variant: Variant, batch: int) -> float:
        """Add a row to the first table, and return the bound of the speed-up."""
        count = -(-len(variant.items) // batch)
        second = Spread(tuple(1000 * run.second_stage_seconds / count for (run,) in variant.runs))
        first = Spread(tuple(1000 * (run.seconds - run.second_stage_seconds) / count for (run,) in variant.runs))
        each, longer = first.median + second.median, max(first.median, second.median)
        bound = count * each / (each + (count - 1) * longer)
        self.alone.add(*name, str(count), first, second, bound)
        return bound


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=tuple(PER_ITEM), default=list(PER_ITEM)[:4])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--items", type=int, default=512, help="frames; other items are fewer")
    add_json_option(parser)
    arguments = parser.parse_args()
    tables = Tables.empty()
    for model in arguments.models:
        for batch in arguments.batches:
            measure(model, batch, items_of(model, arguments.items), arguments.rounds, tables)
    publish([tables.alone, tables.ways, tables.targets], arguments.json)


if __name__ == "__main__":
    run_command(main)
