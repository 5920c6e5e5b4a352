"""Which words are invented and lost, how late are the others, and how fast is a recording, with --vad and without?

    scripts/bench defaults/spans FOLDER [--minutes 10] [--speech 120] [--tables TABLE ...] [--rounds 3]

FOLDER is one that scripts/real_data has prepared. whisper-tiny.en runs on one thread. There are three tables:

- invented: words in `--minutes` of silence, noise, hum and chords; and words wrong in two sentences in their midst.
- times: sentences of `--speech` seconds with pauses of 3 to 9 s: words wrong, those lost, and by how many seconds words
  begin earlier or later than without --vad: the median, and the share that is within 0.1 s.
- speed: seconds of audio a CPU second of the same file, from opening it to its text, without and with --vad.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jiwer
import numpy as np

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread, utterances
from lib.real_recordings import read_samples, spoken_sentences, words_of, wrong_words
from lib.recordings import Recording
from lib.report import Report, Spread, publish
from lib.sounds import chords, hum, noise
from reelscribe.contract.outcomes import Utterance
from reelscribe.contract.speech import SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from synthetic.phrases import SAMPLE_RATE

TABLES = ("invented", "times", "speed")
PAUSE_SECONDS = (3.0, 9.0)
BACKGROUND_DB = -66.0
"""Level of the noise in the pauses of recorded speech."""


def backgrounds(seconds: float) -> dict[str, SampleArray]:
    """Return sounds in which nobody speaks."""
    found = {"digital silence": np.zeros(round(seconds * SAMPLE_RATE), np.int16)}
    for name, colour in (("white", 0.0), ("pink", 1.0)):
        for level in (-50, -40, -30):
            found[f"{name} noise, {level} dB"] = noise(seconds, level, colour)
    return {**found, "hum, -40 dB": hum(seconds, -40), "chords, -30 dB": chords(seconds, -30)}


def with_speech(background: SampleArray, folder: Path) -> Recording:
    """Return the background with two sentences, louder by 20 dB than noise of -40 dB, in its middle."""
    mixed = background.astype(np.float64)
    at, phrases = len(background) // 2, []
    for path, words in spoken_sentences(folder)[:2]:
        samples = read_samples(path)
        mixed[at : at + len(samples)] += samples
        phrases.append((at / SAMPLE_RATE, tuple(words)))
        at += len(samples) + SAMPLE_RATE // 2
    return Recording(np.clip(np.rint(mixed), -32768, 32767).astype(np.int16), phrases)


def sparse(folder: Path, seconds: float) -> Recording:
    """Return sentences of so many seconds together, with pauses about as long."""
    rng = random.Random(7)  # noqa: S311 - a seed is needed, not secrecy
    pieces: list[SampleArray] = []
    phrases, spoken, count = [], 0, 0
    for path, words in rng.sample(spoken_sentences(folder), len(spoken_sentences(folder))):
        samples = read_samples(path)
        phrases.append((count / SAMPLE_RATE, tuple(words)))
        pieces += [samples, np.zeros(round(rng.uniform(*PAUSE_SECONDS) * SAMPLE_RATE), np.int16)]
        spoken, count = spoken + len(samples), count + len(samples) + len(pieces[-1])
        if spoken >= seconds * SAMPLE_RATE:
            break
    quiet = noise(count / SAMPLE_RATE + 1, BACKGROUND_DB)[:count]
    return Recording(np.clip(np.concatenate(pieces).astype(np.int32) + quiet, -32768, 32767).astype(np.int16), phrases)


class Ways:
    """The model, and a folder for files, without and with --vad."""

    def __init__(self, folder: Path, directory: Path) -> None:
        """Load the model."""
        self._local, self._directory = LocalSpeech(folder / "whisper-tiny.en", device_batch=8), directory

    def said(self, recording: Recording, *, vad: bool, word_times: bool = False) -> list[Utterance]:
        """Return what is transcribed of a recording."""
        path = recording.write(self._directory / "recording.flac")
        options = SpeechOptions(TranscriptionOptions(word_times=word_times), vad=vad)
        (batch,) = self._local.transcribe_files([path], options)
        return utterances(batch)


def words_in(said: Sequence[Utterance]) -> list[str]:
    """Return the words of utterances."""
    return words_of(" ".join(each.text for each in said))


def measure_invented(ways: Ways, folder: Path, minutes: float) -> Report:
    """Return the first table."""
    columns = ("background", "invented", "with --vad", "wrong with speech", "with --vad")
    report = Report("Words invented, and wrong ones of two sentences", columns)
    for name, samples in backgrounds(60 * minutes).items():
        alone = [len(words_in(ways.said(Recording(samples, []), vad=vad))) for vad in (False, True)]
        mixed = with_speech(samples, folder)
        wrong = [wrong_words(mixed.words, words_in(ways.said(mixed, vad=vad))) for vad in (False, True)]
        report.add(name, *alone, *wrong)
        print(*report.rows[-1], sep="; ", flush=True)
    return report


def measure_times(ways: Ways, recording: Recording) -> Report:
    """Return the second table."""
    plain, packed = (ways.said(recording, vad=vad, word_times=True) for vad in (False, True))
    report = Report("Words with pauses of 3 to 9 s", ("way", "words", "wrong", "lost", "median s", "within 0.1 s, %"))
    starts = [[(word.text, word.start) for each in said for word in each.words or ()] for said in (plain, packed)]
    spelled = [["".join(words_of(text)) or "-" for text, _ in words] for words in starts]
    matches = jiwer.process_words(" ".join(spelled[0]), " ".join(spelled[1])).alignments[0]
    moved = [
        starts[1][each.hyp_start_idx + k][1] - starts[0][each.ref_start_idx + k][1]
        for each in matches
        if each.type == "equal"
        for k in range(each.ref_end_idx - each.ref_start_idx)
    ]
    for name, said in (("without", plain), ("with --vad", packed)):
        got = words_in(said)
        lost = jiwer.process_words(" ".join(recording.words), " ".join(got)).deletions
        cells = ("", "") if said is plain else (f"{np.median(moved):.2f}", f"{100 * np.mean(np.abs(moved) <= 0.1):.0f}")
        report.add(name, len(recording.words), wrong_words(recording.words, got), lost, *cells)
    return report


def measure_speed(ways: Ways, recording: Recording, rounds: int) -> Report:
    """Return the third table."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for vad, found in speeds.items():
            began = time.process_time()
            ways.said(recording, vad=vad)
            found.append(recording.seconds / (time.process_time() - began))
    report = Report("Seconds of audio a CPU second", ("without", "with --vad", "times as fast"))
    ratio = Spread(tuple(b / a for a, b in zip(*speeds.values(), strict=True)))
    report.add(*(Spread(tuple(each)) for each in speeds.values()), ratio)
    return report


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--speech", type=float, default=120)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    options: argparse.Namespace = parser.parse_args()
    compute_on_one_thread()
    recording = sparse(options.folder, options.speech)
    with tempfile.TemporaryDirectory() as directory:
        ways = Ways(options.folder, Path(directory))
        measure = {
            "invented": lambda: measure_invented(ways, options.folder, options.minutes),
            "times": lambda: measure_times(ways, recording),
            "speed": lambda: measure_speed(ways, recording, options.rounds),
        }
        publish([measure[name]() for name in options.tables], options.json)


if __name__ == "__main__":
    run_command(main)
