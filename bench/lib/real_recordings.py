"""Recorded speech of which the words are known: sentences with pauses, and what happens to recordings in the world.

The sentences, announcements, words and sounds are those that scripts/real_data prepares. Every set is made with a seed,
so that two programs transcribe the same samples.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import jiwer
import numpy as np
import soxr
from numpy.typing import NDArray

from lib.recordings import Recording
from lib.sounds import chord_tones
from reelscribe.contract.speech import SampleArray
from synthetic.phrases import SAMPLE_RATE

PAUSE_SECONDS = (0.2, 1.2)
"""Shortest and longest pause between two sentences."""

SENTENCE_WORDS = 4
"""Announcements of at least so many words are sentences."""

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NUMBERS = {str(k): word for k, word in enumerate(_DIGITS)}
"""Numbers that are written in both ways."""

_OTHER = re.compile(r"[^a-z0-9' ]+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, written in one way: lower case, no punctuation, titles and numbers in full."""
    words = _OTHER.sub(" ", text.lower().replace("mr.", "mister").replace("-", " ")).split()
    return [_NUMBERS.get(word, word) for word in words]


def wrong_words(expected: list[str], got: list[str]) -> int:
    """Return how many words are substituted, left out or invented."""
    if not got:
        return len(expected)
    outcome = jiwer.process_words(" ".join(expected), " ".join(got))
    return outcome.substitutions + outcome.deletions + outcome.insertions


def read_samples(path: Path) -> SampleArray:
    """Return the audio of a file, (N,) int16 at SAMPLE_RATE."""
    resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE)
    with av.open(str(path)) as file:
        frames = [converted for frame in file.decode(audio=0) for converted in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in (*frames, *resampler.resample(None))])


def read_texts(folder: Path) -> dict[Path, str]:
    """Return the text of each recording of a folder."""
    return {folder / name: text for name, text in json.loads((folder / "texts.json").read_text()).items()}


def announcements(folder: Path, *, short: bool) -> dict[Path, list[str]]:
    """Return the words of the short announcements, or of those that are sentences."""
    words = {path: words_of(text) for path, text in read_texts(folder / "announcements").items()}
    return {path: each for path, each in words.items() if (len(each) < SENTENCE_WORDS) is short}


def spoken_sentences(folder: Path) -> list[tuple[Path, list[str]]]:
    """Return the recordings of sentences, of LibriVox and of announcements, with their words."""
    read = {path: words_of(text) for path, text in read_texts(folder / "voices").items()}
    return [*(read | announcements(folder, short=False)).items()]


def sentences(folder: Path, seconds: float, seed: int) -> Recording:
    """Return sentences in random order, with pauses, of about so many seconds; none recurs before all have come."""
    rng = random.Random(seed)  # noqa: S311 - a seed is needed, not secrecy
    spoken = spoken_sentences(folder)
    order: list[int] = []
    pieces: list[SampleArray] = []
    phrases: list[tuple[float, tuple[str, ...]]] = []
    count = 0
    while count < seconds * SAMPLE_RATE:
        order = order or rng.sample(range(len(spoken)), len(spoken))
        path, words = spoken[order.pop()]
        samples = read_samples(path)
        phrases.append((count / SAMPLE_RATE, tuple(words)))
        pieces += [samples, np.zeros(round(rng.uniform(*PAUSE_SECONDS) * SAMPLE_RATE), np.int16)]
        count += len(samples) + len(pieces[-1])
    return Recording(np.concatenate(pieces), phrases)


def _noisy(decibels: float) -> Callable[[SampleArray], SampleArray]:
    """Return a function that adds white noise, so many dB below the speech."""

    def add(samples: SampleArray) -> SampleArray:
        level = np.sqrt(np.mean(samples[samples != 0].astype(np.float64) ** 2)) * 10 ** (-decibels / 20)
        return _clipped(samples + np.random.default_rng(0).normal(0, level, len(samples)))

    return add


def _with_music(samples: SampleArray) -> SampleArray:
    """Return speech over music that is 15 dB quieter."""
    music = chord_tones(len(samples))
    speech = np.sqrt(np.mean(samples[samples != 0].astype(np.float64) ** 2))
    return _clipped(samples + music * speech / np.sqrt(np.mean(music**2)) * 10 ** (-15 / 20))


def _telephone(samples: SampleArray) -> SampleArray:
    """Return what is left at 8 kHz and 8 bits of mu-law."""
    narrow = soxr.resample(samples.astype(np.float32) / 32768, SAMPLE_RATE, 8000)
    coded = np.round(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
    decoded = np.sign(coded) * (256 ** np.abs(coded) - 1) / 255
    return _clipped(soxr.resample(decoded.astype(np.float32), 8000, SAMPLE_RATE)[: len(samples)] * 32768.0)


def _at_tempo(tempo: float) -> Callable[[SampleArray], SampleArray]:
    """Return a function that makes speech so many times as fast at the same pitch."""

    def change(samples: SampleArray) -> SampleArray:
        graph = av.filter.Graph()
        source = graph.add_abuffer(
            sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=Fraction(1, SAMPLE_RATE)
        )
        graph.link_nodes(source, graph.add("atempo", str(tempo)), graph.add("abuffersink")).configure()
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
        graph.push(frame)
        graph.push(None)
        pieces = []
        while True:
            try:
                pieces.append(graph.pull().to_ndarray()[0])
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(pieces)

    return change


def _clipped(samples: NDArray[np.floating]) -> SampleArray:
    return np.clip(np.round(samples), -32768, 32767).astype(np.int16)


KINDS: dict[str, Callable[[SampleArray], SampleArray]] = {
    "clean": lambda samples: samples,
    "noise, 20 dB": _noisy(20),
    "noise, 10 dB": _noisy(10),
    "music, 15 dB": _with_music,
    "tempo 0.9": _at_tempo(0.9),
    "tempo 1.1": _at_tempo(1.1),
    "20 dB quieter": lambda samples: _clipped(samples / 10.0),
    "telephone": _telephone,
}
"""Changes the samples of each kind of recording. The words stay the same, and with all but the tempo their times."""


def recording(folder: Path, kind: str, seconds: float, seed: int) -> Recording:
    """Return a recording of a kind, of about so many seconds before its tempo is changed."""
    plain = sentences(folder, seconds, seed)
    return Recording(KINDS[kind](plain.samples), plain.phrases)
