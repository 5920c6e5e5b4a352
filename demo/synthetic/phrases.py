"""Synthetic speech with known words for the demo speech model: random phrases of 34 words in many voices.

A phrase is alone in an utterance, or one of many in a recording. Six voices are held out, in all accents: training does
not use them. Equal seeds give equal samples, whatever the process has synthesised before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synthetic.espeak import speak_reproducibly

SAMPLE_RATE = 16_000

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COMMANDS = ("stop", "go", "left", "right", "up", "down", "start", "open", "close", "yes", "no")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "cross")
WORDS = DIGITS + COMMANDS + COLOURS + SHAPES

_ACCENTS = "en-US en en-GB-scotland en-GB-x-rp en-GB-x-gbclan en-029 en-GB-x-gbcwmd"
ACCENTS = tuple(f"gmw/{name}" for name in _ACCENTS.split())
_TRAINED_VARIANTS = """
    m1 m2 m3 m4 m5 m7 m8 f1 f2 f3 f5 Andy Annie Alex Mike Denis linda edward adam steph belinda max michel antonio
    Andrea aunty benjamin boris caleb david Diogo ed edward2 Gene Gene2 gustave Henrique Hugo iven iven2 iven3 Jacky
    john kaukovalta Lee marcelo Marco Mario miguel Nguyen pablo pedro quincy rob robert steph2 steph3 travis victor
    sandro shelby norbert grandma grandpa zac
"""
TRAINED_VARIANTS = ("", *_TRAINED_VARIANTS.split())
"""Voice variants that training uses; the first one is the voice of the accent without a variant."""
HELD_OUT_VARIANTS = ("m6", "f4", "Michael", "Alicia", "paul", "anika")
"""Voice variants that training does not use."""

MAX_WORDS = 8
"""Largest number of words in an utterance."""

_AUDIBLE = 33  # of 32768, about -60 dB: quieter samples at the ends are cut off

_HOP = SAMPLE_RATE // 100
"""Samples of the windows in which words are audible or not."""

_AUDIBLE_DB = 35
"""A word is audible at most this much below the loudest window of its utterance, as in the labels of the training."""


@dataclass(frozen=True)
class Voice:
    """A voice of espeak-ng and the parameters of its speech."""

    name: str
    """Accent, and variant after a `+`, such as `gmw/en-US+f4`."""
    words_per_minute: int
    pitch: int
    """From 0 to 100."""
    word_gap: int
    """Pause after each word, in units of 10 ms."""


@dataclass(frozen=True)
class Utterance:
    """Some words in one voice, without silence at both ends."""

    words: tuple[str, ...]
    voice: Voice
    samples: NDArray[np.int16]
    """Mono samples, (N,), at SAMPLE_RATE."""
    word_starts: tuple[int, ...]
    """Index of the sample at which each word begins."""

    def audible_words(self) -> list[tuple[int, int]]:
        """For each word, the index of the first sample at which it is audible, and the index after the last one."""
        hops = len(self.samples) // _HOP
        levels = np.square(self.samples[: hops * _HOP].astype(np.float64)).reshape(hops, _HOP).mean(1)
        audible = levels > levels.max() * 10 ** (-_AUDIBLE_DB / 10)
        starts = [start // _HOP for start in self.word_starts]
        spans = []
        for start, stop in zip(starts, [*starts[1:], hops], strict=True):
            loud = np.flatnonzero(audible[start:stop])
            first, last = (start + int(loud[0]), start + int(loud[-1])) if len(loud) else (start, max(start, stop - 1))
            spans.append((first * _HOP, (last + 1) * _HOP))
        return spans


@dataclass(frozen=True)
class Recording:
    """Utterances in random voices with pauses between them."""

    samples: NDArray[np.int16]
    """Mono samples, (N,), at SAMPLE_RATE."""
    phrases: list[tuple[int, int, tuple[str, ...]]]
    """For each utterance: index of its first sample, index after its last sample, and its words."""
    word_spans: list[tuple[int, int]]
    """For each word of all utterances: index of its first audible sample, and index after the last one."""


def random_utterance(rng: random.Random, held_out: bool = False, given: Voice | None = None) -> Utterance:
    """Return one to MAX_WORDS random words in a voice.

    Args:
        rng: Source of all randomness.
        held_out: True for one of the held-out voices, False for one of the others.
        given: The voice; by default a random one.
    """
    while True:
        vocabulary = DIGITS if rng.random() < 0.3 else WORDS
        words = tuple(rng.choice(vocabulary) for _ in range(rng.randint(1, MAX_WORDS)))
        voice = given or _random_voice(rng, held_out)
        between = rng.choice((" ", " ", " ", ", "))
        utterance = _synthesise(words, voice, between, rng.randrange(2**31))
        # Sometimes espeak-ng does not report the start of a word. Such utterances are discarded.
        if len(utterance.word_starts) == len(words) and len(utterance.samples) > SAMPLE_RATE // 10:
            return utterance


def _random_voice(rng: random.Random, held_out: bool) -> Voice:
    variant = rng.choice(HELD_OUT_VARIANTS if held_out else TRAINED_VARIANTS)
    return Voice(
        name=rng.choice(ACCENTS) + ("+" + variant if variant else ""),
        words_per_minute=rng.randint(115, 215),
        pitch=rng.randint(20, 80),
        word_gap=rng.choice((0, 0, 1, 2, 4, 8)),
    )


def _synthesise(words: tuple[str, ...], voice: Voice, between: str, seed: int) -> Utterance:
    spoken, rate, starts = speak_reproducibly(
        between.join(words),
        voice=voice.name,
        words_per_minute=voice.words_per_minute,
        pitch=voice.pitch,
        word_gap=voice.word_gap,
        seed=seed,
    )
    samples = _resample(spoken, rate)
    audible = np.flatnonzero(np.abs(samples.astype(np.int32)) > _AUDIBLE)
    if not len(audible):
        return Utterance(words, voice, samples[:0], ())
    first = max(0, int(audible[0]) - SAMPLE_RATE // 100)
    stop = int(audible[-1]) + SAMPLE_RATE // 50
    word_starts = tuple(max(0, round(start * SAMPLE_RATE) - first) for start in starts)
    return Utterance(words, voice, samples[first:stop], word_starts)


def _resample(samples: NDArray[np.int16], rate: int) -> NDArray[np.int16]:
    """Resample to SAMPLE_RATE; frequencies from 8 kHz on are removed."""
    # A whole number of seconds makes both lengths whole. The additional second keeps the two ends apart, which are
    # neighbours in a Fourier transform.
    seconds = -(-len(samples) // rate) + 1
    spectrum = np.fft.rfft(samples, seconds * rate)[: seconds * SAMPLE_RATE // 2 + 1]
    resampled = np.fft.irfft(spectrum, seconds * SAMPLE_RATE) * (SAMPLE_RATE / rate)
    return np.clip(np.rint(resampled), -32768, 32767).astype(np.int16)[: len(samples) * SAMPLE_RATE // rate]


def recording(
    rng: random.Random, seconds: float, held_out: bool = False, pauses: tuple[float, float] = (0.2, 1.0)
) -> Recording:
    """Return a recording of random utterances.

    Args:
        rng: Source of all randomness.
        seconds: Minimum length; the recording is longer by less than an utterance and its pause.
        held_out: As in `random_utterance`.
        pauses: Shortest and longest pause before the first and after each utterance, in seconds.
    """

    def pause() -> NDArray[np.int16]:
        return np.zeros(round(rng.uniform(*pauses) * SAMPLE_RATE), np.int16)

    pieces = [pause()]
    at = len(pieces[0])
    phrases, word_spans = [], []
    while at < seconds * SAMPLE_RATE:
        utterance = random_utterance(rng, held_out)
        phrases.append((at, at + len(utterance.samples), utterance.words))
        word_spans += [(at + first, at + stop) for first, stop in utterance.audible_words()]
        pieces += [utterance.samples, pause()]
        at += len(pieces[-2]) + len(pieces[-1])
    return Recording(np.concatenate(pieces), phrases, word_spans)
