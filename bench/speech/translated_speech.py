"""What does a transcript with its translation cost, over the two alone?

    scripts/bench translated_speech [--recordings 4] [--rounds 5] [--json FILE]

Random phrases by voices that no training used are cut as the client does, and sent to the handler's model in this
process with each task, on one thread. The model is the demo model, whose translations are transcripts, as it knows
English alone. Figures are CPU seconds for all recordings; "both / sum" compares the task "both" with the sum of the
two others in the same round. Figures are medians and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech
from lib.recordings import long_recordings
from lib.report import Report, Spread, publish_measured, take_turns
from reelscribe.contract.speech import BOTH, SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from servers.torchserve import SPEECH
from transcripts.whisper.ctranslate2_conversion import convert

SEED, SECONDS = 20_261_130, 60


def cpu_seconds(local: LocalSpeech, recordings: list[SampleArray], task: str) -> float:
    """Transcribe recordings with a task, and return the CPU seconds that it took."""
    options = SpeechOptions(TranscriptionOptions("en", task))
    began = time.process_time()
    local.transcribe_recordings(recordings, options)
    return time.process_time() - began


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Run each task with each engine."""
    torch.set_num_threads(1)
    convert(str(SPEECH), str(folder / "converted"), "auto")
    recordings = [each.samples for each in long_recordings(SEED, [SECONDS] * options.recordings)]
    seconds = sum(map(len, recordings)) / 16_000
    report = Report(f"{seconds:.0f} s of speech", ("engine", "transcribe", "translate", BOTH, "both / sum"))
    for engine, settings in {"torch": {}, "ctranslate2": {"converted": str(folder / "converted")}}.items():
        local = LocalSpeech(SPEECH, engine=engine, **settings)
        tasks = {task: partial(cpu_seconds, local, recordings, task) for task in ("transcribe", "translate", BOTH)}
        found = take_turns(options.rounds, tasks)
        alone = Spread(tuple(map(sum, zip(found["transcribe"].values, found["translate"].values, strict=True))))
        report.add(engine, *found.values(), found[BOTH].over(alone))
    return [report]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--recordings", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
