"""Audio without speech, of which a speech model should make no words: chords, a hum, noise, and applause.

Equal seeds give equal samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synthetic.phrases import SAMPLE_RATE

Sound = NDArray[np.int16]
"""Mono samples, (N,), at SAMPLE_RATE."""

LEVEL_DB = -20.0
"""RMS level of a whole sound, in dB of full scale."""

_SEMITONES = (0, 3, 4, 5, 7, 9, 10, 12)


def chords(seconds: float, seed: int = 0) -> Sound:
    """Return chords of three tones with overtones, as of a piano, one after the other."""
    rng, count = np.random.default_rng(seed), round(seconds * SAMPLE_RATE)
    pieces: list[NDArray[np.float64]] = []
    while sum(map(len, pieces)) < count:
        time = np.arange(round(rng.uniform(0.3, 1.5) * SAMPLE_RATE)) / SAMPLE_RATE
        root = 110 * 2 ** (rng.integers(25) / 12)
        tones = [root * 2 ** (step / 12) for step in rng.permutation(_SEMITONES)[:3]]
        waves = [
            np.sin(2 * np.pi * tone * overtone * time + rng.uniform(0, 2 * np.pi)) / overtone**1.3
            for tone in tones
            for overtone in range(1, 7)
        ]
        pieces.append(np.sum(waves, axis=0) * np.minimum(1, time / 0.01) * np.exp(-time / rng.uniform(0.3, 2)))
    return _levelled(np.concatenate(pieces)[:count])


def hum(seconds: float, seed: int = 0) -> Sound:
    """Return the hum of mains of 50 Hz, slowly swelling, with a little noise."""
    rng, time = np.random.default_rng(seed), np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    waves = [np.sin(2 * np.pi * 50 * k * time + rng.uniform(0, 2 * np.pi)) / k for k in range(1, 9)]
    swell = 1 + 0.2 * np.sin(2 * np.pi * 0.3 * time)
    return _levelled(np.sum(waves, axis=0) * swell + rng.normal(0, 0.01, len(time)))


def noise(seconds: float, seed: int = 0) -> Sound:
    """Return white noise."""
    return _levelled(np.random.default_rng(seed).normal(size=round(seconds * SAMPLE_RATE)))


def applause(seconds: float, seed: int = 0) -> Sound:
    """Return bursts of claps, from a few to 200 a second, with pauses between the bursts."""
    rng, count = np.random.default_rng(seed), round(seconds * SAMPLE_RATE)
    samples, at = np.zeros(count + SAMPLE_RATE), 0.0
    while at < seconds:
        length, claps = rng.uniform(2, 8), rng.choice([4, 15, 60, 200])
        for start in rng.uniform(at, min(seconds, at + length), round(claps * length)):
            decay = round(rng.uniform(0.004, 0.03) * SAMPLE_RATE)
            clap = rng.normal(size=4 * decay) * np.exp(-np.arange(4 * decay) / decay) * rng.uniform(0.3, 1)
            first = round(start * SAMPLE_RATE)
            samples[first : first + len(clap)] += np.convolve(clap, [1, -rng.uniform(0.2, 0.9)], "same")
        at += length + rng.uniform(0.2, 2)
    return _levelled(samples[:count])


SOUNDS = {"chords": chords, "hum": hum, "noise": noise, "applause": applause}
"""All sounds by name: functions of their length in seconds and a seed."""


def _levelled(samples: NDArray[np.float64]) -> Sound:
    scaled = samples / np.sqrt(np.square(samples).mean()) * 10 ** (LEVEL_DB / 20) * 32768
    levelled: Sound = np.clip(np.rint(scaled), -32768, 32767).astype(np.int16)
    return levelled
