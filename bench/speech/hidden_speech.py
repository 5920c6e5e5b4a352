"""How many words are invented in ten minutes of noise, and what becomes of five seconds of speech in the midst of it?

    scripts/bench hidden_speech FOLDER [--minutes 10] [--half 0] [--json FILE]

FOLDER is one that scripts/real_data has prepared. openai/whisper-tiny.en, with CTranslate2, transcribes ten minutes of
each background, as the client does by default and with --vad: digital silence, white and pink noise of three levels,
hum, and chords. In the middle of each is another sentence of about five seconds. Sentences and backgrounds are in two
halves, so that thresholds can be chosen with one.

The table has the words that are invented beside the sentence; how many words the sentence has, how many of them are
wrong, and how many of these are lost; and how far the starts of the words are from where they are if the sentence is
transcribed alone: the largest difference in seconds, and how many are within 0.1 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import jiwer
import numpy as np

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread, utterances
from lib.real_recordings import read_samples, spoken_sentences
from lib.recordings import Recording
from lib.report import Report, publish_measured
from lib.sounds import chords, hum, noise
from reelscribe.contract.speech import SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from speech.real_word_times import TimedWord, differences, timed_words
from synthetic.phrases import SAMPLE_RATE
from transcripts.whisper.ctranslate2_conversion import convert

SENTENCE_SECONDS = (4.3, 5.7)
"""Shortest and longest sentence."""

BESIDE_SECONDS = 0.5
"""Words that start so long before or after the sentence still belong to it; others are invented."""

CLOSE_SECONDS = 0.1


def backgrounds(seconds: float, half: int) -> Iterator[tuple[str, SampleArray]]:
    """Yield sounds in which nobody speaks, with their names."""
    yield "digital silence", np.zeros(round(seconds * SAMPLE_RATE), np.int16)
    for name, colour in (("white", 0.0), ("pink", 1.0)):
        for level in (-50, -40, -30):
            yield f"{name} noise, {level} dB", noise(seconds, level, colour, seed=half)
    yield "hum, -40 dB", hum(seconds, -40, 50 + 10 * half)
    yield "chords, -30 dB", chords(seconds, -30, seed=half)


def sentences(folder: Path, half: int) -> Iterator[tuple[SampleArray, list[str]]]:
    """Yield the sentences of a half with their words."""
    shortest, longest = (seconds * SAMPLE_RATE for seconds in SENTENCE_SECONDS)
    for path, words in sorted(spoken_sentences(folder))[half::2]:
        samples = read_samples(path)
        if shortest <= len(samples) <= longest:
            yield samples, words


def transcribed(local: LocalSpeech, samples: SampleArray, folder: Path, *, vad: bool) -> list[TimedWord]:
    """Return the words of a recording, as a run has them."""
    path = Recording(samples, []).write(folder / "recording.flac")
    (batch,) = local.transcribe_files([path], SpeechOptions(TranscriptionOptions(word_times=True), vad=vad))
    return timed_words(word for utterance in utterances(batch) for word in utterance.words or ())


def compare(
    words: Sequence[str], alone: Sequence[TimedWord], found: Sequence[TimedWord], span: tuple[float, float]
) -> tuple[str | float, ...]:
    """Return the cells of a recording with a sentence.

    Args:
        words: The words of the sentence.
        alone: What is transcribed of the sentence alone.
        found: What is transcribed of the recording.
        span: Start and end of the sentence in the recording, in seconds.
    """
    start, end = span
    inside = [
        word._replace(start=word.start - start, end=word.end - start)
        for word in found
        if start - BESIDE_SECONDS <= word.start <= end + BESIDE_SECONDS
    ]
    outcome = jiwer.process_words(" ".join(words), " ".join(word.word for word in inside))
    moved = [abs(difference) for difference, _ in differences(alone, inside)]
    return (
        len(found) - len(inside),
        len(words),
        outcome.substitutions + outcome.deletions + outcome.insertions,
        outcome.deletions,
        f"{max(moved):.2f}" if moved else "",
        f"{sum(seconds <= CLOSE_SECONDS for seconds in moved)} of {len(moved)}",
    )


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Return the table."""
    compute_on_one_thread()
    model, converted = options.folder / "whisper-tiny.en", folder / "converted"
    convert(str(model), str(converted), "auto")
    local = LocalSpeech(model, device_batch=8, engine="ctranslate2", converted=str(converted))
    columns = ("background", "way", "invented", "said", "wrong", "lost", "moved s", "within 0.1 s")
    report = Report("Words invented, and those of a sentence", columns)
    hidden = sentences(options.folder, options.half)
    for (name, background), (sentence, said) in zip(
        backgrounds(60 * options.minutes, options.half), hidden, strict=False
    ):
        first, alone = len(background) // 2, transcribed(local, sentence, folder, vad=False)
        span = first / SAMPLE_RATE, (first + len(sentence)) / SAMPLE_RATE
        mixed = background.astype(np.int32)
        mixed[first : first + len(sentence)] += sentence
        clipped = np.clip(mixed, -32768, 32767).astype(np.int16)
        for vad in (False, True):
            found = transcribed(local, clipped, folder, vad=vad)
            report.add(name, "--vad" if vad else "default", *compare(said, alone, found, span))
            print(*report.rows[-1], sep="; ", flush=True)
    return [report]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
