"""Recordings of random phrases, by voices that training never used, with the words and times of their phrases."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av

from reelscribe.contract.speech import SampleArray
from synthetic.phrases import SAMPLE_RATE, random_utterance, recording


@dataclass(frozen=True)
class Recording:
    """Audio, and the phrases that are spoken in it."""

    samples: SampleArray
    """(N,) int16 at SAMPLE_RATE."""
    phrases: list[tuple[float, tuple[str, ...]]]
    """The start of each phrase, in seconds, and its words."""
    word_spans: list[tuple[float, float]] = field(default_factory=list)
    """When each word of long recordings begins to be audible and ends, in seconds."""

    @property
    def words(self) -> list[str]:
        """The words of all phrases."""
        return [word for _, words in self.phrases for word in words]

    @property
    def seconds(self) -> float:
        """Duration of the recording."""
        return len(self.samples) / SAMPLE_RATE

    def write(self, path: Path, codec: str = "flac", rate: int = SAMPLE_RATE) -> Path:
        """Write it to a file of that codec and sample rate, and return the path."""
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=rate, layout="mono")
            assert isinstance(stream, av.AudioStream)
            for at in range(0, len(self.samples), SAMPLE_RATE):
                second = self.samples[None, at : at + SAMPLE_RATE]
                frame = av.AudioFrame.from_ndarray(second, format="s16", layout="mono")
                frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, at, Fraction(1, SAMPLE_RATE)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path


def short_recordings(seed: int, count: int, *, held_out: bool = True) -> list[Recording]:
    """Recordings of one phrase each, in voices that training never used, or else in those that it used."""
    rng = random.Random(seed)  # noqa: S311 - a seed is needed, not secrecy
    utterances = [random_utterance(rng, held_out) for _ in range(count)]
    return [Recording(utterance.samples, [(0.0, utterance.words)]) for utterance in utterances]


def long_recordings(seed: int, lengths: Iterable[float]) -> list[Recording]:
    """One recording of about each of `lengths`, in seconds: phrases with pauses of 0.2 to 1 s between them."""
    rng = random.Random(seed)  # noqa: S311 - likewise
    recordings = [recording(rng, seconds, held_out=True) for seconds in lengths]
    return [
        Recording(
            r.samples,
            [(first / SAMPLE_RATE, words) for first, _, words in r.phrases],
            [(first / SAMPLE_RATE, stop / SAMPLE_RATE) for first, stop in r.word_spans],
        )
        for r in recordings
    ]
