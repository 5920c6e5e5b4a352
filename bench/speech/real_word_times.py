"""When are words spoken: ours, and faster-whisper's times, against a forced alignment by PocketSphinx?

    scripts/bench real_word_times FOLDER [--seconds 1200] [--pause 1.5] [--json FILE]

FOLDER is one that scripts/real_data has prepared. The 258 sentences of LibriVox and of announcements are transcribed
one by one by openai/whisper-tiny.en, ours with both engines as in speech.yaml, faster-whisper with its defaults.
PocketSphinx, which has an acoustic model of its own, is given the words that are spoken and aligns them with the audio
in steps of 0.01 s; sentences with a word that its dictionary does not have are left out. Words that are recognised
rightly are compared.

The first table has the number of these words, and how far their starts and ends are from the alignment: the median
of the signed differences, and the 50th, 90th and 95th percentile of the absolute ones, in seconds.

The second table is of the sentences of LibriVox, again and again for --seconds, with pauses of --pause seconds, cut as
the client does. It has how far the end of the last word of each sentence is from the end of its sound, and the start of
the first word from its start, and how many words of all last longer than 1.2 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import faster_whisper
import jiwer
import numpy as np
import pocketsphinx
import transformers

from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech
from lib.real_recordings import read_samples, read_texts, spoken_sentences, words_of
from lib.recordings import Recording
from lib.report import Report, publish_measured
from reelscribe.contract.chunking import Chunker
from reelscribe.contract.speech import SampleArray, TranscriptionOptions, Word
from reelscribe.run.tracks.transcripts import SpeechOptions
from synthetic.phrases import SAMPLE_RATE
from transcripts.whisper.ctranslate2_conversion import convert

HOP = SAMPLE_RATE // 100
"""Samples of a window whose level is computed."""


class TimedWord(NamedTuple):
    """A word, and when it is spoken, in seconds."""

    word: str
    start: float
    end: float


Timed = Callable[[SampleArray], list[TimedWord]]
"""A function that returns the words of a recording."""


def ours(model: Path, **settings: Any) -> Timed:
    """The handler's model."""
    local = LocalSpeech(model, **settings)
    options = SpeechOptions(transcription=TranscriptionOptions(word_times=True))

    def transcribe(samples: SampleArray) -> list[TimedWord]:
        (transcript,) = local.transcribe_chunks([samples], options)
        return timed_words(word for segment in transcript.segments for word in segment.words or ())

    return transcribe


def peer(model: Path) -> Timed:
    """faster-whisper."""
    whisper = faster_whisper.WhisperModel(str(model), device="cpu", compute_type="float32")

    def transcribe(samples: SampleArray) -> list[TimedWord]:
        segments, _ = whisper.transcribe(samples.astype(np.float32) / 32768, language="en", word_timestamps=True)
        words = [word for segment in segments for word in segment.words or ()]
        return timed_words(Word(word.start, word.end, word.word) for word in words)

    return transcribe


def timed_words(words: Iterable[Word]) -> list[TimedWord]:
    """Return the words as `words_of` writes them; those that are two words there are left out."""
    found = ((words_of(word.text), word) for word in words)
    return [TimedWord(one[0], word.start, word.end) for one, word in found if len(one) == 1]


def aligned(decoder: pocketsphinx.Decoder, samples: SampleArray, words: Sequence[str]) -> list[TimedWord]:
    """Return when each word is spoken; no words if one of them is not in the dictionary, or they do not fit."""
    if any(decoder.lookup_word(word) is None for word in words):
        return []
    decoder.set_align_text(" ".join(words))
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), full_utt=True)
    decoder.end_utt()
    found = [segment for segment in decoder.seg() or () if segment.word[0] not in "<["]
    if len(found) != len(words):
        return []
    return [
        TimedWord(word, segment.start_frame / 100, (segment.end_frame + 1) / 100)
        for word, segment in zip(words, found, strict=True)
    ]


def differences(expected: Sequence[TimedWord], got: Sequence[TimedWord]) -> list[tuple[float, float]]:
    """Return the differences of the starts and of the ends of the words that are equal."""
    if not got:
        return []
    return [
        (got[j].start - expected[i].start, got[j].end - expected[i].end)
        for i, j in equal_words([word.word for word in expected], [word.word for word in got])
    ]


def equal_words(expected: Sequence[str], got: Sequence[str]) -> list[tuple[int, int]]:
    """Return the index of each word that is equal, in both sequences."""
    outcome = jiwer.process_words(" ".join(expected), " ".join(got))
    return [
        (part.ref_start_idx + k, part.hyp_start_idx + k)
        for part in outcome.alignments[0]
        if part.type == "equal"
        for k in range(part.ref_end_idx - part.ref_start_idx)
    ]


def joined_sentences(folder: Path, seconds: float, pause: float) -> tuple[Recording, list[TimedWord]]:
    """Return the sentences of LibriVox with pauses, and from when to when the sound of each one lasts."""
    read = [(read_samples(path), words_of(text)) for path, text in read_texts(folder / "voices").items()]
    silence = np.zeros(round(pause * SAMPLE_RATE), np.int16)
    pieces: list[SampleArray] = []
    phrases: list[tuple[float, tuple[str, ...]]] = []
    sounds: list[TimedWord] = []
    count = 0
    for samples, words in cycle(read):
        if count >= seconds * SAMPLE_RATE:
            return Recording(np.concatenate(pieces), phrases), sounds
        # Three windows together, as single ones of the room's noise are louder than quiet speech.
        powers = (samples[: len(samples) // HOP * HOP].reshape(-1, HOP) / 32768.0).var(1)
        smooth = np.convolve(powers, np.ones(3) / 3, "same")
        noise = min(powers[:10].mean(), powers[-10:].mean())
        heard = np.flatnonzero(smooth > max(smooth.max() * 10 ** (-35 / 10), noise * 10 ** (8 / 10)))
        at = count / SAMPLE_RATE
        sounds.append(TimedWord(words[-1], at + heard[0] * HOP / SAMPLE_RATE, at + (heard[-1] + 1) * HOP / SAMPLE_RATE))
        phrases.append((at, tuple(words)))
        pieces += [samples, silence]
        count += len(samples) + len(silence)
    raise AssertionError("sentences recur")


def pauses_report(options: argparse.Namespace, ways: dict[str, Timed]) -> Report:
    """Return the table of sentences with pauses."""
    recording, sounds = joined_sentences(options.folder, options.seconds, options.pause)
    chunker = Chunker(30 * SAMPLE_RATE, SAMPLE_RATE)
    chunks = [*chunker.push(recording.samples), *chunker.flush()]
    starts = np.cumsum([0, *map(len, chunks)]) / SAMPLE_RATE
    last = np.cumsum([len(words) for _, words in recording.phrases]) - 1
    first = [0, *(last[:-1] + 1)]
    columns = [f"{side} {figure}" for side in ("start", "end") for figure in ("signed", "95 %", "max")]
    title = f"Sentences of {options.seconds:g} s with pauses of {options.pause:g} s, in s"
    report = Report(title, ("way", "sentences", *columns, "words > 1.2 s", "of"))
    for name, transcribe in ways.items():
        got = [
            TimedWord(word, start + at, end + at)
            for at, chunk in zip(starts, chunks, strict=False)
            for word, start, end in transcribe(chunk)
        ]
        matches = dict(equal_words(recording.words, [word.word for word in got]))
        off = (
            [got[matches[k]].start - sound.start for k, sound in zip(first, sounds, strict=True) if k in matches],
            [got[matches[k]].end - sound.end for k, sound in zip(last, sounds, strict=True) if k in matches],
        )
        cells = [f"{value:.3f}" for side in off for value in (np.median(side), *np.percentile(np.abs(side), (95, 100)))]
        report.add(name, len(off[1]), *cells, int(sum(word.end - word.start > 1.2 for word in got)), len(got))
    return report


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Return the table."""
    transformers.logging.disable_progress_bar()
    model, converted = options.folder / "whisper-tiny.en", folder / "converted"
    convert(str(model), str(converted), "auto")
    decoder = pocketsphinx.Decoder(samprate=SAMPLE_RATE, lm=None, loglevel="FATAL")
    recorded = [(read_samples(path), words) for path, words in spoken_sentences(options.folder)]
    truth = [(samples, found) for samples, words in recorded if (found := aligned(decoder, samples, words))]
    ways = {
        "ours": ours(model),
        "ours ctranslate2": ours(model, engine="ctranslate2", converted=str(converted)),
        "faster-whisper": peer(options.folder / "whisper-tiny.en-ct2"),
    }
    columns = [f"{side} {figure}" for side in ("start", "end") for figure in ("signed", "50 %", "90 %", "95 %")]
    report = Report(f"Words of {len(truth)} sentences against a forced alignment, in s", ("way", "words", *columns))
    for name, transcribe in ways.items():
        pairs = np.array([pair for samples, words in truth for pair in differences(words, transcribe(samples))])
        cells = [
            f"{value:.3f}"
            for side in pairs.T
            for value in (np.median(side), *np.percentile(np.abs(side), (50, 90, 95)))
        ]
        report.add(name, len(pairs), *cells)
    return [report, pauses_report(options, ways)]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--pause", type=float, default=1.5)
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
