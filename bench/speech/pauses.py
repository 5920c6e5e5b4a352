"""How many words are wrong and lost in recordings of which half is silence, and how fast is it, with --vad and without?

    scripts/bench pauses FOLDER [--half 0] [--seconds 130] [--seed 7] [--floor -66] [--colour 0] [--json FILE]

FOLDER is one that scripts/real_data has prepared. A recording has turns of 3 to 9 s, of one sentence or more with short
pauses, each followed by a pause as long as itself, `--seconds` of speech together. Noise goes through all of it, of
`--floor` dB of full scale; its power falls with the frequency to the power of `--colour`, 0 for white and 1 for pink.
Sentences are in two halves, so that settings can be chosen with one. The model is openai/whisper-tiny.en, one thread.

The table has the words that are said, how many are wrong, and how many of these are lost; the share of the words that
begin within 0.1 s of where they begin without --vad, in percent; and the CPU seconds from the file to the words.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import jiwer
import numpy as np

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread, utterances
from lib.real_recordings import PAUSE_SECONDS, read_samples, spoken_sentences
from lib.recordings import Recording
from lib.report import Report, publish_measured
from lib.sounds import noise
from reelscribe.contract.speech import SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from speech.real_word_times import TimedWord, differences, timed_words
from synthetic.phrases import SAMPLE_RATE

TURN_SECONDS = (3.0, 9.0)
"""A turn ends with the first sentence that ends after so long."""

CLOSE_SECONDS = 0.1


def with_pauses(options: argparse.Namespace) -> Recording:
    """Return the recording."""
    rng = random.Random(options.seed + options.half)  # noqa: S311 - a seed is needed, not secrecy
    of_half = sorted(spoken_sentences(options.folder))[options.half :: 2]
    pieces: list[SampleArray] = []
    phrases: list[tuple[float, tuple[str, ...]]] = []
    begin = count = spoken = 0
    order = rng.sample(of_half, len(of_half))
    turn = rng.uniform(*TURN_SECONDS)
    for path, words in order:
        samples = read_samples(path)
        phrases.append((count / SAMPLE_RATE, tuple(words)))
        pieces += [samples, np.zeros(round(rng.uniform(*PAUSE_SECONDS) * SAMPLE_RATE), np.int16)]
        spoken, count = spoken + len(samples), count + len(samples) + len(pieces[-1])
        if count - begin >= turn * SAMPLE_RATE:
            pieces.append(np.zeros(count - begin, np.int16))
            begin = count = count + len(pieces[-1])
            turn = rng.uniform(*TURN_SECONDS)
            if spoken >= options.seconds * SAMPLE_RATE:
                break
    quiet = noise(count / SAMPLE_RATE + 1, options.floor, options.colour)[:count]
    return Recording(np.clip(np.concatenate(pieces).astype(np.int32) + quiet, -32768, 32767).astype(np.int16), phrases)


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Return the table."""
    compute_on_one_thread()
    local = LocalSpeech(options.folder / "whisper-tiny.en", device_batch=8)
    recording = with_pauses(options)
    path = recording.write(folder / "recording.flac")
    title = f"{recording.seconds:.0f} s, of which half is silence"
    report = Report(title, ("way", "words", "wrong", "lost", "within 0.1 s, %", "CPU s"))
    without: list[TimedWord] = []
    for vad in (False, True):
        began = time.process_time()
        (batch,) = local.transcribe_files([path], SpeechOptions(TranscriptionOptions(word_times=True), vad=vad))
        seconds = time.process_time() - began
        words = timed_words(word for utterance in utterances(batch) for word in utterance.words or ())
        without = without or words
        outcome = jiwer.process_words(" ".join(recording.words), " ".join(word.word for word in words))
        wrong = outcome.substitutions + outcome.deletions + outcome.insertions
        close = np.mean([abs(start) <= CLOSE_SECONDS for start, _ in differences(without, words)])
        way = "--vad" if vad else "default"
        report.add(way, len(recording.words), wrong, outcome.deletions, 100 * float(close), seconds)
    return [report]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("--seconds", type=float, default=130)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--floor", type=float, default=-66)
    parser.add_argument("--colour", type=float, default=0)
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
