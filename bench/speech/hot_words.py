"""How many rare words does a published Whisper hear with hot words, and what do they cost elsewhere?

    scripts/bench hot_words FOLDER [--sentences 40] [--words 20] [--distractors 0 40] [--seed 0] [--json FILE]

FOLDER is one that scripts/real_data has prepared: openai/whisper-tiny.en and recordings. The 63 single words of Tux
Paint, mostly animals, are put among sentences of LibriVox and of announcements, in random order with pauses. Of this
there are four recordings, which differ in what has happened to them (lib/real_recordings.py). Those of CHOSEN_IN only
serve to choose the hot words, which are the words without a sentence that are most often wrong there. The table has
the errors in those of MEASURED_IN: without hot words, with them, and with distractors beside them, which are rare words
that are not said. A hot word is wrong where the transcript has another word or none, and invented where it is written
once more than it is said. The others have all other errors, in percent of the other words. The last column has the
words that are invented for some sounds of animals and things, in which nobody speaks.

It runs on one thread in float32 with CTranslate2; `--engine torch` takes the other engine.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jiwer
import numpy as np

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread
from lib.real_recordings import KINDS, read_samples, read_texts, spoken_sentences, words_of
from lib.report import Report, publish
from reelscribe.contract.speech import SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from synthetic.phrases import SAMPLE_RATE
from transcripts.whisper.ctranslate2_conversion import convert

CHOSEN_IN, MEASURED_IN = ("clean", "noise, 10 dB"), ("telephone", "tempo 1.1")
SOUNDS_STEP = 5
"""One sound in so many is transcribed."""

PAUSE_SECONDS = (0.2, 1.2)
"""Shortest and longest pause between what is said."""


class Tally(NamedTuple):
    """What is right and wrong in the transcripts of recordings."""

    said: Counter[str]
    """How often each word is said."""
    heard: Counter[str]
    """How often each word is heard where it is said."""
    written: Counter[str]
    """How often each word is in the transcripts."""
    wrong: int
    """Number of words that are substituted, left out or invented."""


class Spoken(NamedTuple):
    """What is said in a recording, before anything has happened to it."""

    samples: SampleArray
    phrases: list[list[str]]


def words_among_sentences(folder: Path, count: int, seed: int) -> Spoken:
    """Return all single words and so many sentences, in random order with pauses."""
    rng = random.Random(seed)  # noqa: S311 - a seed is needed, not secrecy
    said = [*single_words(folder).items(), *rng.sample(spoken_sentences(folder), count)]
    rng.shuffle(said)
    pieces: list[SampleArray] = []
    for path, _ in said:
        pieces += [read_samples(path), np.zeros(round(rng.uniform(*PAUSE_SECONDS) * SAMPLE_RATE), np.int16)]
    return Spoken(np.concatenate(pieces), [words for _, words in said])


def single_words(folder: Path) -> dict[Path, list[str]]:
    """Return the recordings of single words with their words."""
    return {path: words_of(text) for path, text in read_texts(folder / "words").items()}


def tally(expected: Sequence[str], texts: Sequence[str]) -> Tally:
    """Compare the transcripts of several recordings, in all of which the same words are said, with these words."""
    written = [words_of(text) for text in texts]
    outcome = jiwer.process_words([" ".join(expected)] * len(texts), [" ".join(each) for each in written])
    heard = Counter(
        word
        for chunks in outcome.alignments
        for chunk in chunks
        if chunk.type == "equal"
        for word in expected[chunk.ref_start_idx : chunk.ref_end_idx]
    )
    said = Counter({word: len(texts) * count for word, count in Counter(expected).items()})
    every = Counter(word for each in written for word in each)
    return Tally(said, heard, every, outcome.substitutions + outcome.deletions + outcome.insertions)


def cells(found: Tally, hot: Sequence[str]) -> tuple[str, ...]:
    """The cells of a way: hot words wrong and invented, and the errors of the others."""
    said = sum(found.said[word] for word in hot)
    wrong = said - sum(found.heard[word] for word in hot)
    invented = sum(max(0, found.written[word] - found.said[word]) for word in hot)
    others = sum(found.said.values()) - said
    return f"{wrong} of {said}", str(invented), f"{100 * (found.wrong - wrong) / others:.2f} of {others}"


def measure(local: LocalSpeech, folder: Path, options: argparse.Namespace) -> Report:
    """Choose hot words, and return the table."""
    spoken = words_among_sentences(folder, options.sentences, options.seed)
    expected = [word for phrase in spoken.phrases for word in phrase]
    sounds = [read_samples(path) for path in sorted((folder / "sounds").glob("*.ogg"))[::SOUNDS_STEP]]

    def texts(recordings: Sequence[SampleArray], hotwords: Sequence[str]) -> list[str]:
        asked = TranscriptionOptions(hotwords=", ".join(hotwords) or None, beams=options.beams)
        return local.transcribe_recordings(recordings, SpeechOptions(asked))

    in_sentences = {word for _, words in spoken_sentences(folder) for word in words}
    plain = tally(expected, texts([KINDS[kind](spoken.samples) for kind in CHOSEN_IN], ()))
    missed = Counter(plain.said - plain.heard)
    names = {word for words in single_words(folder).values() for word in words} - in_sentences
    hot = sorted((word for word in missed if word in names), key=lambda word: (-missed[word], word))[: options.words]
    unsaid = sorted(in_sentences - set(expected), key=lambda word: (-len(word), word))  # long words are rare ones
    report = Report(
        f"{len(hot)} hot words: {', '.join(hot)}",
        ("given", "hot words wrong", "invented", "others wrong in %", f"words for {len(sounds)} sounds"),
    )
    measured = [KINDS[kind](spoken.samples) for kind in MEASURED_IN]
    for given in ([], *(hot + unsaid[:count] for count in options.distractors)):
        found = cells(tally(expected, texts(measured, given)), hot)
        report.add(f"{len(given)} words", *found, sum(len(words_of(text)) for text in texts(sounds, given)))
        print(*report.rows[-1], sep="; ", flush=True)
    return report


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--distractors", type=int, nargs="*", default=[0, 40])
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--engine", choices=("ctranslate2", "torch"), default="ctranslate2")
    parser.add_argument("--seed", type=int, default=0)
    add_json_option(parser)
    options = parser.parse_args()
    compute_on_one_thread()
    model = options.folder / "whisper-tiny.en"
    with tempfile.TemporaryDirectory() as directory:
        settings = {"engine": options.engine, "device_batch": 8}
        if options.engine == "ctranslate2":
            convert(str(model), f"{directory}/converted", "auto")
            settings["converted"] = f"{directory}/converted"
        report = measure(LocalSpeech(model, **settings), options.folder, options)
    publish([report], options.json)


if __name__ == "__main__":
    run_command(main)
