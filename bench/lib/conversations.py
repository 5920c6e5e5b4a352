"""Conversations of recorded voices of which it is known who speaks when.

A conversation has turns of 1 to 10 s, which are recordings of one reader after the other, with short pauses. A tenth of
the time, two speak at once, as a turn may begin before the one before it has ended. Every reader has a level of their
own, and there is noise, as in a room. Each is made with a seed, so that two programs hear the same samples.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib.real_recordings import read_samples, read_texts, words_of
from reelscribe.contract.speech import SampleArray, to_int16
from synthetic.phrases import SAMPLE_RATE

TURN_SECONDS = (1.0, 10.0)
"""Shortest and longest turn."""

_MOST_RECORDINGS = 10  # of a turn, but for its last one
_PAUSE_SECONDS = (0.05, 0.2)  # within a turn
_GAP_SECONDS = (0.2, 1.0)  # between two turns
_OVERLAP_SECONDS = (0.4, 1.6)
_OVERLAPPING = 0.7  # part of the turns that begin before the one before has ended
_LEVELS_DB = (-30.0, -20.0)
_NOISE_DB = -55.0
_AUDIBLE_DB = -35.0  # what is quieter at the ends of a recording, compared with its loudest window, is no speech
_WINDOW = SAMPLE_RATE // 100


class Reading(NamedTuple):
    """A recording of a reader."""

    samples: NDArray[np.float32]
    """(N,) values from -1 to 1 at SAMPLE_RATE, without silence at their ends."""
    words: Sequence[str] = ()
    """What is said in it, if that is English."""


Readers = Mapping[str, Sequence[Reading]]
"""The recordings of each reader."""


class SpokenWord(NamedTuple):
    """A word of a turn. Its times are as if all letters of a recording took equally long."""

    start: float
    """In seconds."""
    end: float
    """In seconds."""
    text: str


class SpokenTurn(NamedTuple):
    """A stretch in which one reader speaks."""

    start: float
    """In seconds."""
    end: float
    """In seconds."""
    reader: str
    words: Sequence[SpokenWord] = ()
    """The words that are said, if they are English; one that is cut off at the end of the turn is left out."""


@dataclass(frozen=True)
class Conversation:
    """What several readers say, and who speaks when."""

    samples: SampleArray
    """(N,) at SAMPLE_RATE."""
    turns: Sequence[SpokenTurn]
    """In the order of their starts."""

    @property
    def overlap(self) -> float:
        """The part of the time with speech (0 to 1) in which two speak."""
        marks = np.zeros(len(self.samples) // _WINDOW + 1, int)
        for turn in self.turns:
            marks[int(turn.start * 100) : int(turn.end * 100)] += 1
        return float((marks > 1).sum() / max(1, (marks > 0).sum()))


def real_readers(folder: Path, most: int = 300) -> dict[str, list[Reading]]:
    """Return the recordings of each reader in the folder that scripts/real_data prepares.

    Languages of which there are few recordings are left out.

    Args:
        folder: The folder.
        most: Largest number of recordings of a reader.
    """
    english = {name: read_texts(folder / name) for name in ("voices", "words", "announcements")}
    texts = {path: words_of(text) for each in english.values() for path, text in each.items()}
    files = {path.name: sorted(path.glob("*.ogg")) for path in (folder / "words-other-languages").iterdir()}
    files["librivox"] = sorted((folder / "voices").glob("*.wav"))
    files["en"] = sorted((folder / "words").glob("*.ogg"))
    files["allison"] = sorted((folder / "announcements").glob("*.wav"))
    chosen = {name: random.Random(name).sample(paths, min(most, len(paths))) for name, paths in sorted(files.items())}  # noqa: S311 - a seed, not secrecy
    return {
        name: [
            Reading(trimmed(read_samples(path).astype(np.float32) / np.float32(32768)), texts.get(path, ()))
            for path in paths
        ]
        for name, paths in chosen.items()
        if len(paths) > 50 or name == "librivox"
    }


def trimmed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a recording without what is not audible at its ends."""
    windows = samples[: len(samples) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    powers = np.square(windows).mean(1)
    heard = np.flatnonzero(powers > powers.max(initial=0) * 10 ** (_AUDIBLE_DB / 10))
    return samples[heard[0] * _WINDOW : (heard[-1] + 1) * _WINDOW] if len(heard) else samples


def converse(readers: Readers, seconds: float, seed: int) -> Conversation:
    """Let readers speak in turns.

    Args:
        readers: Those who take part; at least one.
        seconds: The conversation ends with the first turn that ends after this.
        seed: A conversation with the same seed and readers is the same.
    """
    rng, noise = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - a seed, not secrecy
    levels = {name: rng.uniform(*_LEVELS_DB) for name in sorted(readers)}
    mix = np.zeros(int((seconds + 30) * SAMPLE_RATE), np.float32)
    turns: list[SpokenTurn] = []
    at = rng.uniform(*_GAP_SECONDS)
    while not turns or turns[-1].end < seconds:
        others = sorted(name for name in readers if not turns or name != turns[-1].reader) or sorted(readers)
        reader = rng.choice(others)
        said, spoken = _turn(readers[reader], rng)
        if turns and rng.random() < _OVERLAPPING:  # nobody speaks when a third one would, so that at most two do
            earliest = max([turn.end for turn in turns[:-1]] + [turns[-1].start])
            at = max(turns[-1].end - rng.uniform(*_OVERLAP_SECONDS), earliest)
        elif turns:
            at = max(turn.end for turn in turns[-2:]) + rng.uniform(*_GAP_SECONDS)
        first = int(at * SAMPLE_RATE)
        loudness = 10 ** (levels[reader] / 20) / max(1e-4, float(np.sqrt(np.square(said).mean())))
        mix[first : first + len(said)] += said * loudness
        start = first / SAMPLE_RATE
        words = [SpokenWord(start + word.start, start + word.end, word.text) for word in spoken]
        turns.append(SpokenTurn(start, (first + len(said)) / SAMPLE_RATE, reader, words))
    mix = mix[: int((max(turn.end for turn in turns) + 0.5) * SAMPLE_RATE)]
    mix += noise.normal(0, 10 ** (_NOISE_DB / 20), len(mix)).astype(np.float32)
    return Conversation(to_int16(mix), turns)


def _turn(readings: Sequence[Reading], rng: random.Random) -> tuple[NDArray[np.float32], list[SpokenWord]]:
    """Return recordings of a reader one after the other, of together a length that is chosen at random, and words."""
    wanted = rng.uniform(*TURN_SECONDS) * SAMPLE_RATE
    chosen, said, words = 0, np.zeros(0, np.float32), list[SpokenWord]()
    while not chosen or (len(said) < wanted and chosen <= _MOST_RECORDINGS):
        if chosen:
            said = np.concatenate([said, np.zeros(int(rng.uniform(*_PAUSE_SECONDS) * SAMPLE_RATE), np.float32)])
        reading = rng.choice(readings)
        words += _words(reading, len(said) / SAMPLE_RATE)
        said = np.concatenate([said, reading.samples])
        chosen += 1
    heard = said[: int(TURN_SECONDS[1] * SAMPLE_RATE)]
    return heard, [word for word in words if word.end <= len(heard) / SAMPLE_RATE]


def _words(reading: Reading, start: float) -> list[SpokenWord]:
    """Return the words of a recording that begins at `start`, in seconds."""
    edges = np.cumsum([0, *map(len, reading.words)])
    times = (start + edges * (len(reading.samples) / SAMPLE_RATE / max(1, edges[-1]))).tolist()
    return [SpokenWord(*each) for each in zip(times, times[1:], reading.words, strict=False)]
