"""The windows that the demo transcriber is trained on: mixed from utterances and noises, with their labels.

Mixing is done on log mel spectrograms, before Whisper's clamp, as that is a hundred times less work than on samples.
Times are in mel frames of 10 ms until the labels, which are in positions of the encoder, 20 ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from phrases import SAMPLE_RATE, random_utterance
from speech_model import MEL_BINS, MEL_RATE, WINDOW_SECONDS

Mel = NDArray[np.float16]
"""(MEL_BINS, T): log10 of the power in each mel band, NO_POWER where there is none; as it is kept."""
Power = NDArray[np.float32]
"""The same, as it is mixed."""

WINDOW_FRAMES = WINDOW_SECONDS * MEL_RATE
NO_POWER = -10.0
JOINED_FRAMES = 20
"""Utterances with a shorter pause between them are one segment: nobody could tell it from a pause within one."""
ROOM_FRAMES = 270
"""At least so long is what may hold speech."""

_HOP, _FFT = 160, 400
_AUDIBLE_RANGE = 3.5  # log10 of power: a word lasts while it is at most 35 dB below the utterance's maximum


class Word(NamedTuple):
    """A word and where it is heard, in frames."""

    text: str
    first: int
    stop: int


@dataclass(frozen=True)
class Spoken:
    """An utterance as training keeps it."""

    mel: Mel
    words: list[Word]


@dataclass(frozen=True)
class Window:
    """One input of the model, (MEL_BINS, F) float32, and the segments of words that are heard in it."""

    features: NDArray[np.float32]
    segments: list[list[Word]]


class MelSpectrogram:
    """Whisper's log mel spectrogram, as WhisperFeatureExtractor makes it, without its clamp."""

    def __init__(self) -> None:
        extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, sampling_rate=SAMPLE_RATE)
        self.filters = torch.from_numpy(extractor.mel_filters).float().T
        self.taper = torch.hann_window(_FFT)

    def __call__(self, samples: NDArray[np.int16]) -> Mel:
        """Of samples with silence around them."""
        sound = torch.from_numpy(samples.astype(np.float32) / 32768)
        padded = torch.nn.functional.pad(sound, (_FFT // 2, _FFT // 2 + _HOP))
        waves = torch.stft(padded, _FFT, _HOP, window=self.taper, return_complex=True, center=False)
        power = torch.clamp(self.filters @ waves.abs() ** 2, min=10**NO_POWER)
        return power.log10().half().numpy()


def spoken_utterances(seed: int, count: int) -> list[Spoken]:
    """Random utterances in voices that are not held out."""
    rng, spectrogram = random.Random(seed), MelSpectrogram()
    made: list[Spoken] = []
    while len(made) < count:
        utterance = random_utterance(rng)
        mel = spectrogram(utterance.samples)
        starts = [start // _HOP for start in utterance.word_starts]
        if mel.shape[1] < WINDOW_FRAMES - 40 and starts[-1] < mel.shape[1]:
            made.append(Spoken(mel, _heard_words(mel, utterance.words, starts)))
    return made


def _heard_words(mel: Mel, texts: tuple[str, ...], starts: list[int]) -> list[Word]:
    """What espeak-ng says of starts, narrowed to where something is heard."""
    loudness = mel.max(axis=0)
    audible = loudness > loudness.max() - _AUDIBLE_RANGE
    words = []
    for text, start, stop in zip(texts, starts, [*starts[1:], mel.shape[1]], strict=True):
        heard = np.flatnonzero(audible[start:stop])
        first, last = (start + int(heard[0]), start + int(heard[-1])) if len(heard) else (start, max(start, stop - 1))
        words.append(Word(text, first, last + 1))
    return words


def noises(seed: int, count: int) -> list[Mel]:
    """Sounds of a whole window in which nobody speaks: hums, steady and swelling tones, coloured noise."""
    rng, spectrogram = np.random.default_rng(seed), MelSpectrogram()
    time = np.arange(WINDOW_SECONDS * SAMPLE_RATE) / SAMPLE_RATE
    made = []
    for _ in range(count):
        sound = np.zeros(len(time))
        base = rng.choice([50.0, 60.0]) if rng.random() < 0.5 else rng.uniform(80, 2000)
        for harmonic in range(1, rng.integers(2, 8)):
            sound += rng.uniform(0.1, 1) / harmonic * np.sin(2 * np.pi * base * harmonic * time + rng.uniform(0, 6.28))
        if rng.random() < 0.5:
            sound *= 1 + rng.uniform(0, 1) * np.sin(2 * np.pi * rng.uniform(0.1, 3) * time)
        sound += rng.normal(0, rng.uniform(1e-4, 0.3), len(time))
        loudest = 32767 * 10 ** rng.uniform(-3, 0)
        made.append(spectrogram((sound / np.abs(sound).max() * loudest).astype(np.int16)))
    return made


@dataclass(frozen=True)
class Mixture:
    """What windows are like."""

    frames: int
    """At most WINDOW_FRAMES."""
    running: float = 0.0
    """Share that is cut out of running speech."""
    single: float = 0.0
    """Share of the others that hold one utterance only."""
    silent: float = 0.03
    """Share in which nobody speaks."""
    stretch: float = 0.1
    """By how much a throat is longer or shorter at most."""
    echo: float = 0.0
    """Share with an echo."""


class WindowMixer:
    """Draws windows."""

    def __init__(self, utterances: list[Spoken], sounds: list[Mel], rng: random.Random) -> None:
        self.utterances = utterances
        self.sounds = sounds
        self.rng = rng
        self.random = np.random.default_rng(rng.randrange(2**32))
        self.hiss = np.log10(self.random.exponential(size=(MEL_BINS, 30_000))).astype(np.float32)

    def draw(self, mixture: Mixture) -> Window:
        """One window of the mixture."""
        rng, frames = self.rng, mixture.frames
        if rng.random() < mixture.silent:
            return Window(_as_features(self._nobody(frames)), [])
        running = rng.random() < mixture.running
        if running:
            first = rng.randint(-300, 60)
            stop = frames if rng.random() < 0.7 else rng.randint(ROOM_FRAMES, frames)
            most = frames
        else:
            most = 1 if rng.random() < mixture.single else frames
            first = rng.randint(0, 4) if rng.random() < 0.3 else rng.randint(0, 110)
            if most == 1 and rng.random() < 0.3:
                first = rng.randint(0, frames // 2)
            stop = frames if most == 1 else rng.randint(ROOM_FRAMES, frames)
        power, segments = self._lay_out(frames, first, stop, most, running)
        if not segments:
            return self.draw(mixture)
        return Window(_as_features(self._damage(power, segments[-1][-1].stop, mixture)), segments)

    def _lay_out(self, frames: int, first: int, stop: int, most: int, running: bool) -> tuple[Power, list[list[Word]]]:
        """Utterances one after the other from `first` on; where speech runs on, what is beyond the ends is cut off."""
        rng = self.rng
        power = np.full((MEL_BINS, frames), NO_POWER, np.float32)
        segments: list[list[Word]] = []
        at, pause = first, JOINED_FRAMES
        for _ in range(most):
            candidates = (rng.choice(self.utterances) for _ in range(1 if running else 4))
            spoken = next((c for c in candidates if running or at + c.mel.shape[1] <= stop), None)
            if spoken is None or at >= stop:
                break
            left, right = max(0, -at), min(spoken.mel.shape[1], stop - at)
            if right > left:
                power[:, at + left : at + right] = spoken.mel[:, left:right] + np.float32(rng.uniform(-0.9, 0.4))
            words = [Word(text, max(0, at + a), min(stop, at + b)) for text, a, b in spoken.words]
            # Of a word that is cut through, the larger part must be there to be heard.
            kept = [w for w, (_, a, b) in zip(words, spoken.words, strict=True) if 2 * (w.stop - w.first) >= b - a]
            if kept and segments and pause < JOINED_FRAMES:
                segments[-1] += kept
            elif kept:
                segments.append(kept)
            pause = rng.randint(5, 30) if rng.random() < 0.25 else rng.randint(25, 115)
            at += spoken.mel.shape[1] + pause
        return power, segments

    def _nobody(self, frames: int) -> Power:
        kind = self.rng.random()
        power = np.full((MEL_BINS, frames), NO_POWER, np.float32)
        if kind < 0.35:
            power = _sum(power, self._sound(frames))
        if kind > 0.2:
            length = frames if self.rng.random() < 0.6 else self.rng.randint(frames // 10, frames)
            power[:, :length] = _sum(power[:, :length], self._hiss(length, self.rng.uniform(-8, -0.5)))
        return power

    def _sound(self, frames: int) -> Power:
        start = self.rng.randint(0, WINDOW_FRAMES - frames)
        return self.rng.choice(self.sounds)[:, start : start + frames].astype(np.float32)

    def _hiss(self, frames: int, level: float) -> Power:
        """Noise of a random colour about `level`, log10 of its power."""
        colour = np.linspace(0, self.rng.uniform(-1.5, 0.3), MEL_BINS) + 0.2 * self.random.standard_normal(MEL_BINS)
        start = self.rng.randrange(self.hiss.shape[1] - frames)
        return self.hiss[:, start : start + frames] + (level + colour).astype(np.float32)[:, None]

    def _damage(self, power: Power, last: int, mixture: Mixture) -> Power:
        """Other throats, rooms and microphones, and noise, which may end with the speech in frame `last` or go on."""
        rng, frames = self.rng, power.shape[1]
        if rng.random() < 0.6:
            power = _warp(power, rng.uniform(1 - mixture.stretch, 1 + mixture.stretch), rng.uniform(-1, 1))
        if rng.random() < mixture.echo:
            power = _sum(power, _later(power, rng.randint(3, 12)) - np.float32(rng.uniform(0.6, 2)))
        if rng.random() < 0.6:
            tilt = np.linspace(0, rng.uniform(-0.6, 0.6), MEL_BINS, dtype=np.float32)[:, None]
            power = np.where(power > NO_POWER + 0.1, power + tilt, power)
        loudest = float(power.max())
        if rng.random() < 0.5:
            length = frames if rng.random() < 0.4 else min(frames, last + rng.randint(0, 100))
            power[:, :length] = _sum(power[:, :length], self._hiss(length, loudest - rng.uniform(2.5, 7)))
        if rng.random() < 0.1:
            sound = self._sound(frames)
            power = _sum(power, sound + (loudest - float(sound.max()) - rng.uniform(2.5, 6)))
        return power


def _warp(power: Power, stretch: float, shift: float) -> Power:
    """The bands of a longer or shorter vocal tract."""
    at = np.clip(np.arange(MEL_BINS) * stretch + shift, 0, MEL_BINS - 1).astype(np.float32)
    below = np.minimum(at.astype(np.int64), MEL_BINS - 2)
    share = (at - below).astype(np.float32)[:, None]
    warped: Power = power[below] * (1 - share) + power[below + 1] * share
    return warped


def _later(power: Power, frames: int) -> Power:
    shifted = np.full_like(power, NO_POWER)
    shifted[:, frames:] = power[:, :-frames]
    return shifted


def _sum(a: Power, b: Power) -> Power:
    """Two log10 powers heard at once."""
    louder = np.maximum(a, b)
    both: Power = louder + np.log10(1 + 10 ** (np.minimum(a, b) - louder))
    return both


def _as_features(power: Power) -> Power:
    """Whisper's clamp and scale."""
    features: Power = (np.maximum(power, power.max() - 8) + 4) / 4
    return features
