"""Sounds without any voice: chords, noise and hum, each of a level in decibels of full scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import SampleArray
from synthetic.phrases import SAMPLE_RATE

_SEMITONES = (0, 3, 4, 5, 7, 9, 10, 12)
"""Steps of the tones of chords above their root."""


def at_level(samples: NDArray[np.float64], decibels: float) -> SampleArray:
    """Return samples with this RMS level, in dB of full scale."""
    scaled = samples * 32768 * 10 ** (decibels / 20) / max(1e-9, float(np.sqrt(np.mean(samples**2))))
    return np.clip(np.rint(scaled), -32768, 32767).astype(np.int16)


def chord_tones(count: int, seed: int = 0) -> NDArray[np.float64]:
    """Return chords of three tones with overtones, as of a piano, one after the other, (N,)."""
    rng = np.random.default_rng(seed)
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
    return np.concatenate(pieces)[:count]


def chords(seconds: float, decibels: float, seed: int = 0) -> SampleArray:
    """Return chords of this level."""
    return at_level(chord_tones(round(seconds * SAMPLE_RATE), seed), decibels)


def noise(seconds: float, decibels: float, colour: float = 0.0, seed: int = 0) -> SampleArray:
    """Return noise of this level. Its power falls with the frequency to the power of `colour`: 0 is white, 1 pink."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=round(seconds * SAMPLE_RATE)))
    spectrum[1:] /= np.arange(1, len(spectrum)) ** (colour / 2)
    spectrum[0] = 0
    return at_level(np.fft.irfft(spectrum, round(seconds * SAMPLE_RATE)), decibels)


def hum(seconds: float, decibels: float, hertz: float = 50.0) -> SampleArray:
    """Return the hum of a mains frequency with overtones, of this level."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return at_level(sum(np.sin(2 * np.pi * hertz * k * time) / k**1.5 for k in range(1, 7)), decibels)
