"""How many words that Whisper invents have a flag, and how many that somebody has said?

    scripts/bench doubtful_speech FOLDER [--setting NAME=VALUE ...] [--json FILE]

FOLDER is one that scripts/real_data has prepared. Words are said in single words of Tux Paint, in short announcements,
and in sentences with noise, over music and by telephone. All words are invented that are transcribed of sounds of
animals and things, of chords, of noise and of hum. Each is in two halves: the thresholds of reelscribe/results/flags.py
were chosen with one, and the other was not used. `--setting no_speech_threshold=null` lets the handler drop nothing,
like a server of others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread, utterances
from lib.real_recordings import announcements, read_samples, read_texts, recording, words_of
from lib.report import Report, publish
from lib.sounds import chords, hum, noise
from reelscribe.contract.speech import SampleArray
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript
from reelscribe.results.flags import speech_flags
from reelscribe.run.tracks.transcripts import SpeechOptions
from speech.real_speech import setting

FLAGS = ("repetition", "no-speech", "low-probability")
SECONDS = 60
"""Length of each recording that is not a file of its own."""
FILES = 16
"""Words and announcements in each half."""


def spoken(folder: Path, half: int) -> Iterator[SampleArray]:
    """Yield recordings in which somebody speaks."""
    for paths in (sorted(read_texts(folder / "words")), sorted(announcements(folder, short=True))):
        yield from map(read_samples, paths[half::2][:FILES])
    for kind in ("noise, 10 dB", "telephone", "music, 15 dB"):
        yield recording(folder, kind, SECONDS, 10 + half).samples


def unspoken(folder: Path, half: int) -> Iterator[SampleArray]:
    """Yield recordings in which nobody does."""
    yield from map(read_samples, sorted((folder / "sounds").glob("*.ogg"))[half::2])
    for level in (-30, -12):
        yield chords(SECONDS, level, seed=half)
    for colour in (0.0, 1.0):
        for level in (-40, -30):
            yield noise(SECONDS, level, colour, seed=half)
    yield hum(SECONDS, -30, 50 + 10 * half)


def flagged(local: LocalSpeech, samples: SampleArray) -> Iterator[tuple[int, list[str]]]:
    """Yield for each segment of a recording its number of words and its flags."""
    options = SpeechOptions()
    chunker = options.task("", local.description).chunker()
    for transcript in local.transcribe_chunks([*chunker.push(samples), *chunker.flush()], options):
        batch = SavedAudioBatch(0, len(samples), transcripts=[TimedTranscript(0.0, 60.0, transcript)])
        for utterance in utterances(batch):
            yield len(words_of(utterance.text)), [str(flag) for flag in speech_flags(utterance)]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setting", nargs="+", type=setting, default=[], metavar="NAME=VALUE")
    add_json_option(parser)
    options: argparse.Namespace = parser.parse_args()
    compute_on_one_thread()
    local = LocalSpeech(options.folder / "whisper-tiny.en", device_batch=8, **dict(options.setting))
    report = Report("Words, and those in segments with flags", ("recordings", "words", "flagged", *FLAGS))
    for half, name in enumerate(("chosen with", "held out")):
        for kind, recordings in (("said", spoken), ("invented", unspoken)):
            found = [each for samples in recordings(options.folder, half) for each in flagged(local, samples)]
            by_flag = [sum(count for count, flags in found if flag in flags) for flag in FLAGS]
            report.add(
                f"{kind}, {name}", np.sum([n for n, _ in found]), sum(n for n, flags in found if flags), *by_flag
            )
            print(*report.rows[-1], sep="; ", flush=True)
    publish([report], options.json)


if __name__ == "__main__":
    run_command(main)
