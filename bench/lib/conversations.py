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

from lib.real_recordings import read_samples
from reelscribe.contract.speech import SampleArray, to_int16
from synthetic.phrases import SAMPLE_RATE

TURN_SECONDS = (1.0, 10.0)
"""Shortest and longest turn."""

_PAUSE_SECONDS = (0.05, 0.2)  # within a turn
_GAP_SECONDS = (0.2, 1.0)  # between two turns
_OVERLAP_SECONDS = (0.4, 1.6)
_OVERLAPPING = 0.7  # part of the turns that begin before the one before has ended
_LEVELS_DB = (-30.0, -20.0)
_NOISE_DB = -55.0
_AUDIBLE_DB = -35.0  # what is quieter at the ends of a recording, compared with its loudest window, is no speech
_WINDOW = SAMPLE_RATE // 100

Readers = Mapping[str, Sequence[NDArray[np.float32]]]
"""The recordings of each reader, (N,) values from -1 to 1 at SAMPLE_RATE, without silence at their ends."""


class SpokenTurn(NamedTuple):
    """A stretch in which one reader speaks."""

    start: float
    """In seconds."""
    end: float
    """In seconds."""
    reader: str


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


def real_readers(folder: Path, most: int = 300) -> dict[str, list[NDArray[np.float32]]]:
    """Return the recordings of each reader in the folder that scripts/real_data prepares.

    Languages of which there are few recordings are left out.

    Args:
        folder: The folder.
        most: Largest number of recordings of a reader.
    """
    files = {path.name: sorted(path.glob("*.ogg")) for path in (folder / "words-other-languages").iterdir()}
    files["librivox"] = sorted((folder / "voices").glob("*.wav"))
    files["en"] = sorted((folder / "words").glob("*.ogg"))
    files["allison"] = sorted((folder / "announcements").glob("*.wav"))
    chosen = {name: random.Random(name).sample(paths, min(most, len(paths))) for name, paths in sorted(files.items())}  # noqa: S311 - a seed, not secrecy
    return {
        name: [trimmed(read_samples(path).astype(np.float32) / np.float32(32768)) for path in paths]
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
        said = _turn(readers[reader], rng)
        if turns and rng.random() < _OVERLAPPING:  # nobody speaks when a third one would, so that at most two do
            earliest = max([turn.end for turn in turns[:-1]] + [turns[-1].start])
            at = max(turns[-1].end - rng.uniform(*_OVERLAP_SECONDS), earliest)
        elif turns:
            at = max(turn.end for turn in turns[-2:]) + rng.uniform(*_GAP_SECONDS)
        first = int(at * SAMPLE_RATE)
        loudness = 10 ** (levels[reader] / 20) / max(1e-4, float(np.sqrt(np.square(said).mean())))
        mix[first : first + len(said)] += said * loudness
        turns.append(SpokenTurn(first / SAMPLE_RATE, (first + len(said)) / SAMPLE_RATE, reader))
    mix = mix[: int((max(turn.end for turn in turns) + 0.5) * SAMPLE_RATE)]
    mix += noise.normal(0, 10 ** (_NOISE_DB / 20), len(mix)).astype(np.float32)
    return Conversation(to_int16(mix), turns)


def _turn(recordings: Sequence[NDArray[np.float32]], rng: random.Random) -> NDArray[np.float32]:
    """Return recordings of a reader one after the other, of together a length that is chosen at random."""
    wanted = rng.uniform(*TURN_SECONDS) * SAMPLE_RATE
    said = [rng.choice(recordings)]
    while sum(map(len, said)) < wanted and len(said) < 20:
        said += [np.zeros(int(rng.uniform(*_PAUSE_SECONDS) * SAMPLE_RATE), np.float32), rng.choice(recordings)]
    return np.concatenate(said)[: int(TURN_SECONDS[1] * SAMPLE_RATE)]
