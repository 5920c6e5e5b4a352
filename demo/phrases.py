"""Random phrases of 34 words in many voices, alone and as long recordings: the truth for the demo transcriber.

Six voices are held out: training never hears them, in no accent. Equal seeds give equal samples, whatever a process has
said before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speech_synthesis import speak_afresh

SAMPLE_RATE = 16_000

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COMMANDS = ("stop", "go", "left", "right", "up", "down", "start", "open", "close", "yes", "no")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "cross")
WORDS = DIGITS + COMMANDS + COLOURS + SHAPES

_ACCENTS = "en-US en en-GB-scotland en-GB-x-rp en-GB-x-gbclan en-029 en-GB-x-gbcwmd"
ACCENTS = tuple(f"gmw/{name}" for name in _ACCENTS.split())
_SEEN_VARIANTS = """
    m1 m2 m3 m4 m5 m7 m8 f1 f2 f3 f5 Andy Annie Alex Mike Denis linda edward adam steph belinda max michel antonio
    Andrea aunty benjamin boris caleb david Diogo ed edward2 Gene Gene2 gustave Henrique Hugo iven iven2 iven3 Jacky
    john kaukovalta Lee marcelo Marco Mario miguel Nguyen pablo pedro quincy rob robert steph2 steph3 travis victor
    sandro shelby norbert grandma grandpa zac
"""
SEEN_VARIANTS = ("", *_SEEN_VARIANTS.split())
"""No variant at all is a voice too."""
HELD_OUT_VARIANTS = ("m6", "f4", "Michael", "Alicia", "paul", "anika")

MAX_WORDS = 8
"""In one utterance."""

_AUDIBLE = 33  # of 32768: about -60 dB


@dataclass(frozen=True)
class Voice:
    """A voice of espeak-ng and how it speaks."""

    name: str
    words_per_minute: int
    pitch: int
    word_gap: int


@dataclass(frozen=True)
class Utterance:
    """Some words in one voice; silence at both ends is cut off."""

    words: tuple[str, ...]
    voice: Voice
    samples: NDArray[np.int16]
    """(N,), mono, 16 kHz."""
    word_starts: tuple[int, ...]
    """The sample at which each word begins."""


@dataclass(frozen=True)
class Recording:
    """Utterances in changing voices with pauses between them."""

    samples: NDArray[np.int16]
    """(N,), mono, 16 kHz."""
    phrases: list[tuple[int, int, tuple[str, ...]]]
    """First sample, the one after the last, and the words."""


def random_utterance(rng: random.Random, held_out: bool = False) -> Utterance:
    """One to eight words in a random voice; in one of the held-out voices, or in none of them."""
    while True:
        vocabulary = DIGITS if rng.random() < 0.3 else WORDS
        words = tuple(rng.choice(vocabulary) for _ in range(rng.randint(1, MAX_WORDS)))
        voice = _random_voice(rng, held_out)
        between = rng.choice((" ", " ", " ", ", "))
        utterance = _say(words, voice, between, rng.randrange(2**31))
        # Now and then espeak-ng tells of no start for a word, and then nobody knows where it is.
        if len(utterance.word_starts) == len(words) and len(utterance.samples) > SAMPLE_RATE // 10:
            return utterance


def _random_voice(rng: random.Random, held_out: bool) -> Voice:
    variant = rng.choice(HELD_OUT_VARIANTS if held_out else SEEN_VARIANTS)
    return Voice(
        name=rng.choice(ACCENTS) + ("+" + variant if variant else ""),
        words_per_minute=rng.randint(115, 215),
        pitch=rng.randint(20, 80),
        word_gap=rng.choice((0, 0, 1, 2, 4, 8)),
    )


def _say(words: tuple[str, ...], voice: Voice, between: str, seed: int) -> Utterance:
    spoken, rate, starts = speak_afresh(
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
    """At 16 kHz: what lies below 8 kHz of the spectrum is kept, the rest is cut off."""
    seconds = -(-len(samples) // rate) + 1  # whole, so that both lengths are; one more for silence between the ends
    spectrum = np.fft.rfft(samples, seconds * rate)[: seconds * SAMPLE_RATE // 2 + 1]
    resampled = np.fft.irfft(spectrum, seconds * SAMPLE_RATE) * (SAMPLE_RATE / rate)
    return np.clip(np.rint(resampled), -32768, 32767).astype(np.int16)[: len(samples) * SAMPLE_RATE // rate]


def recording(
    rng: random.Random, seconds: float, held_out: bool = False, pauses: tuple[float, float] = (0.2, 1.0)
) -> Recording:
    """A recording that is longer than `seconds` by less than a phrase and its pause; `pauses` are the shortest and the
    longest pause, in seconds, also before the first phrase.
    """

    def pause() -> NDArray[np.int16]:
        return np.zeros(round(rng.uniform(*pauses) * SAMPLE_RATE), np.int16)

    parts = [pause()]
    at = len(parts[0])
    phrases = []
    while at < seconds * SAMPLE_RATE:
        utterance = random_utterance(rng, held_out)
        phrases.append((at, at + len(utterance.samples), utterance.words))
        parts += [utterance.samples, pause()]
        at += len(parts[-2]) + len(parts[-1])
    return Recording(np.concatenate(parts), phrases)
