"""The windows that train the demo speech model: mixed from utterances and noises, with the words that they contain.

Log mel spectrograms are mixed, before Whisper clamps them, because mixing samples would be a hundred times slower.
Times here are in mel frames of 10 ms; the labels made from them are in encoder positions of 20 ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from synthetic.phrases import SAMPLE_RATE, random_utterance
from training.speech.model import MEL_BINS, MEL_RATE, WINDOW_SECONDS

Mel = NDArray[np.float16]
"""Stored log mel spectrogram, (MEL_BINS, T): log10 of the power in each mel band, at least NO_POWER."""
Power = NDArray[np.float32]
"""Log mel spectrogram with the precision in which windows are mixed, (MEL_BINS, T)."""

WINDOW_FRAMES = WINDOW_SECONDS * MEL_RATE
NO_POWER = -10.0
JOINED_FRAMES = 20
"""Utterances with a shorter pause between them are one segment, because pauses within utterances may be as long."""
MIN_SPEECH_FRAMES = 270
"""Shortest range of a window that is to be filled with several utterances."""

_HOP, _FFT = 160, 400
_AUDIBLE_RANGE = 3.5  # log10 of power: a word is audible at most 35 dB below the maximum of its utterance


class Word(NamedTuple):
    """A word and the mel frames in which it is audible, from `first` to before `stop`."""

    text: str
    first: int
    stop: int


@dataclass(frozen=True)
class StoredUtterance:
    """An utterance as training stores it."""

    mel: Mel
    words: list[Word]


@dataclass(frozen=True)
class Window:
    """One training example."""

    features: NDArray[np.float32]
    """Input of the model, (MEL_BINS, F)."""
    segments: list[list[Word]]
    """The words of each segment; empty without speech."""


class MelSpectrogram:
    """Computes log mel spectrograms as WhisperFeatureExtractor does, but does not clamp and scale them."""

    def __init__(self) -> None:
        extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, sampling_rate=SAMPLE_RATE)
        self.filters = torch.from_numpy(extractor.mel_filters).float().T
        self.taper = torch.hann_window(_FFT)

    def __call__(self, samples: NDArray[np.int16]) -> Mel:
        """Return the log mel spectrogram of samples, (N,), which are padded with silence at both ends."""
        audio = torch.from_numpy(samples.astype(np.float32) / 32768)
        padded = torch.nn.functional.pad(audio, (_FFT // 2, _FFT // 2 + _HOP))
        waves = torch.stft(padded, _FFT, _HOP, window=self.taper, return_complex=True, center=False)
        power = torch.clamp(self.filters @ waves.abs() ** 2, min=10**NO_POWER)
        return power.log10().half().numpy()


def make_utterances(seed: int, count: int) -> list[StoredUtterance]:
    """Return `count` random utterances in voices that are not held out."""
    rng, spectrogram = random.Random(seed), MelSpectrogram()
    utterances: list[StoredUtterance] = []
    while len(utterances) < count:
        utterance = random_utterance(rng)
        mel = spectrogram(utterance.samples)
        starts = [start // _HOP for start in utterance.word_starts]
        if mel.shape[1] < WINDOW_FRAMES - 40 and starts[-1] < mel.shape[1]:
            utterances.append(StoredUtterance(mel, _audible_words(mel, utterance.words, starts)))
    return utterances


def _audible_words(mel: Mel, texts: tuple[str, ...], starts: list[int]) -> list[Word]:
    """Each word with the frames in which it is audible, at or after the start that espeak-ng reports for it."""
    loudness = mel.max(axis=0)
    audible = loudness > loudness.max() - _AUDIBLE_RANGE
    words = []
    for text, start, stop in zip(texts, starts, [*starts[1:], mel.shape[1]], strict=True):
        loud = np.flatnonzero(audible[start:stop])
        first, last = (start + int(loud[0]), start + int(loud[-1])) if len(loud) else (start, max(start, stop - 1))
        words.append(Word(text, first, last + 1))
    return words


def make_noises(seed: int, count: int) -> list[Mel]:
    """Return `count` noises without speech, each as long as a window: hums, steady and swelling tones, white noise."""
    rng, spectrogram = np.random.default_rng(seed), MelSpectrogram()
    time = np.arange(WINDOW_SECONDS * SAMPLE_RATE) / SAMPLE_RATE
    spectrograms = []
    for _ in range(count):
        samples = np.zeros(len(time))
        base = rng.choice([50.0, 60.0]) if rng.random() < 0.5 else rng.uniform(80, 2000)
        for harmonic in range(1, rng.integers(2, 8)):
            amplitude, phase = rng.uniform(0.1, 1) / harmonic, rng.uniform(0, 6.28)
            samples += amplitude * np.sin(2 * np.pi * base * harmonic * time + phase)
        if rng.random() < 0.5:
            samples *= 1 + rng.uniform(0, 1) * np.sin(2 * np.pi * rng.uniform(0.1, 3) * time)
        samples += rng.normal(0, rng.uniform(1e-4, 0.3), len(time))
        peak = 32767 * 10 ** rng.uniform(-3, 0)
        spectrograms.append(spectrogram((samples / np.abs(samples).max() * peak).astype(np.int16)))
    return spectrograms


@dataclass(frozen=True)
class Mixture:
    """Probabilities and ranges for random windows."""

    frames: int
    """Length of a window, at most WINDOW_FRAMES."""
    running: float = 0.0
    """Fraction of windows that are cut out of running speech (0 to 1)."""
    single: float = 0.0
    """Fraction of the other windows that contain only one utterance (0 to 1)."""
    silent: float = 0.03
    """Fraction of windows without speech (0 to 1)."""
    stretch: float = 0.1
    """Largest relative change of the length of the vocal tract."""
    echo: float = 0.0
    """Fraction of windows with an echo (0 to 1)."""


class WindowMixer:
    """Makes random windows from utterances and noises."""

    def __init__(self, utterances: list[StoredUtterance], noises: list[Mel], rng: random.Random) -> None:
        self.utterances = utterances
        self.noises = noises
        self.rng = rng
        self.random = np.random.default_rng(rng.randrange(2**32))
        self.hiss = np.log10(self.random.exponential(size=(MEL_BINS, 30_000))).astype(np.float32)

    def draw(self, mixture: Mixture) -> Window:
        """Return a random window."""
        rng, frames = self.rng, mixture.frames
        if rng.random() < mixture.silent:
            return Window(_as_features(self._without_speech(frames)), [])
        running = rng.random() < mixture.running
        if running:
            first = rng.randint(-300, 60)
            stop = frames if rng.random() < 0.7 else rng.randint(MIN_SPEECH_FRAMES, frames)
            max_utterances = frames
        else:
            max_utterances = 1 if rng.random() < mixture.single else frames
            first = rng.randint(0, 4) if rng.random() < 0.3 else rng.randint(0, 110)
            if max_utterances == 1 and rng.random() < 0.3:
                first = rng.randint(0, frames // 2)
            stop = frames if max_utterances == 1 else rng.randint(MIN_SPEECH_FRAMES, frames)
        power, segments = self._lay_out(frames, first, stop, max_utterances, running)
        if not segments:
            return self.draw(mixture)
        return Window(_as_features(self._degrade(power, segments[-1][-1].stop, mixture)), segments)

    def _lay_out(
        self, frames: int, first: int, stop: int, max_utterances: int, running: bool
    ) -> tuple[Power, list[list[Word]]]:
        """Put utterances one after the other from frame `first` to before frame `stop`.

        With `running`, `first` may be negative, and the utterances are cut off at both ends of the range. Otherwise
        only utterances that fit into the range are used.
        """
        rng = self.rng
        power = np.full((MEL_BINS, frames), NO_POWER, np.float32)
        segments: list[list[Word]] = []
        at, pause = first, JOINED_FRAMES
        for _ in range(max_utterances):
            candidates = (rng.choice(self.utterances) for _ in range(1 if running else 4))
            spoken = next((c for c in candidates if running or at + c.mel.shape[1] <= stop), None)
            if spoken is None or at >= stop:
                break
            left, right = max(0, -at), min(spoken.mel.shape[1], stop - at)
            if right > left:
                power[:, at + left : at + right] = spoken.mel[:, left:right] + np.float32(rng.uniform(-0.9, 0.4))
            words = [Word(text, max(0, at + a), min(stop, at + b)) for text, a, b in spoken.words]
            # A word that is cut through counts only if at least half of it is in the window.
            kept = [w for w, (_, a, b) in zip(words, spoken.words, strict=True) if 2 * (w.stop - w.first) >= b - a]
            if kept and segments and pause < JOINED_FRAMES:
                segments[-1] += kept
            elif kept:
                segments.append(kept)
            pause = rng.randint(5, 30) if rng.random() < 0.25 else rng.randint(25, 115)
            at += spoken.mel.shape[1] + pause
        return power, segments

    def _without_speech(self, frames: int) -> Power:
        kind = self.rng.random()
        power = np.full((MEL_BINS, frames), NO_POWER, np.float32)
        if kind < 0.35:
            power = _sum(power, self._noise(frames))
        if kind > 0.2:
            length = frames if self.rng.random() < 0.6 else self.rng.randint(frames // 10, frames)
            power[:, :length] = _sum(power[:, :length], self._hiss(length, self.rng.uniform(-8, -0.5)))
        return power

    def _noise(self, frames: int) -> Power:
        start = self.rng.randint(0, WINDOW_FRAMES - frames)
        return self.rng.choice(self.noises)[:, start : start + frames].astype(np.float32)

    def _hiss(self, frames: int, level: float) -> Power:
        """Return noise with a random spectrum; `level` is about the log10 of its power."""
        colour = np.linspace(0, self.rng.uniform(-1.5, 0.3), MEL_BINS) + 0.2 * self.random.standard_normal(MEL_BINS)
        start = self.rng.randrange(self.hiss.shape[1] - frames)
        return self.hiss[:, start : start + frames] + (level + colour).astype(np.float32)[:, None]

    def _degrade(self, power: Power, speech_stop: int, mixture: Mixture) -> Power:
        """Vary the vocal tract, the room and the microphone, and add noise.

        The noise lasts to the end of the window, or ends at or after `speech_stop`, the frame after the last word.
        """
        rng, frames = self.rng, power.shape[1]
        if rng.random() < 0.6:
            power = _warp(power, rng.uniform(1 - mixture.stretch, 1 + mixture.stretch), rng.uniform(-1, 1))
        if rng.random() < mixture.echo:
            power = _sum(power, _delay(power, rng.randint(3, 12)) - np.float32(rng.uniform(0.6, 2)))
        if rng.random() < 0.6:
            tilt = np.linspace(0, rng.uniform(-0.6, 0.6), MEL_BINS, dtype=np.float32)[:, None]
            power = np.where(power > NO_POWER + 0.1, power + tilt, power)
        peak = float(power.max())
        if rng.random() < 0.5:
            length = frames if rng.random() < 0.4 else min(frames, speech_stop + rng.randint(0, 100))
            power[:, :length] = _sum(power[:, :length], self._hiss(length, peak - rng.uniform(2.5, 7)))
        if rng.random() < 0.1:
            noise = self._noise(frames)
            power = _sum(power, noise + (peak - float(noise.max()) - rng.uniform(2.5, 6)))
        return power


def _warp(power: Power, stretch: float, shift: float) -> Power:
    """Stretch and shift the mel bands, as a longer or shorter vocal tract does."""
    at = np.clip(np.arange(MEL_BINS) * stretch + shift, 0, MEL_BINS - 1).astype(np.float32)
    below = np.minimum(at.astype(np.int64), MEL_BINS - 2)
    weight = (at - below).astype(np.float32)[:, None]
    warped: Power = power[below] * (1 - weight) + power[below + 1] * weight
    return warped


def _delay(power: Power, frames: int) -> Power:
    delayed = np.full_like(power, NO_POWER)
    delayed[:, frames:] = power[:, :-frames]
    return delayed


def _sum(a: Power, b: Power) -> Power:
    """Return the log10 of the sum of two powers given as log10."""
    louder = np.maximum(a, b)
    total: Power = louder + np.log10(1 + 10 ** (np.minimum(a, b) - louder))
    return total


def _as_features(power: Power) -> Power:
    """Clamp and scale a log mel spectrogram as WhisperFeatureExtractor does."""
    features: Power = (np.maximum(power, power.max() - 8) + 4) / 4
    return features
