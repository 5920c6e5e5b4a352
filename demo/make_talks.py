"""Makes demo/talks: conversations of two and of three voices, of which it is known who says what.

    .venv/bin/python demo/make_talks.py [--out demo/talks]

The voices are some that training of the demo speech model did not use. Speakers take turns, and about every third turn
begins before the one before it has ended.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make_media import encode_recording
from synthetic.phrases import SAMPLE_RATE, Voice, random_utterance

VOICES = {
    "Alicia": Voice("gmw/en-US+Alicia", words_per_minute=150, pitch=60, word_gap=1),
    "Michael": Voice("gmw/en-US+Michael", words_per_minute=140, pitch=40, word_gap=1),
    "Robin": Voice("gmw/en-US+m6", words_per_minute=160, pitch=75, word_gap=1),
}
"""The voice of each speaker."""

TALKS = {"two.ogg": ("Alicia", "Michael"), "three.ogg": ("Alicia", "Michael", "Robin")}
"""The speakers of each file."""

TURNS = 16
"""Number of turns of a conversation, each of one or two phrases."""

PAUSE_SECONDS, OVERLAP_SECONDS, OVERLAPPING = (0.2, 0.8), (0.3, 0.8), 1 / 3


@dataclass(frozen=True)
class Talk:
    """A conversation."""

    samples: NDArray[np.int16]
    """(N,) at SAMPLE_RATE."""
    truth: list[dict[str, Any]]
    """For each turn: start and end in seconds, words, and speaker."""


def talk(speakers: tuple[str, ...]) -> Talk:
    """Return a conversation of speakers, who each have a voice in VOICES."""
    rng = random.Random(", ".join(speakers))
    mix = np.zeros(10 * TURNS * SAMPLE_RATE, np.int32)
    truth: list[dict[str, Any]] = []
    free, speaker = SAMPLE_RATE // 2, ""  # when everybody has ended, in samples
    for _ in range(TURNS):
        begins_early = truth and rng.random() < OVERLAPPING
        at = free + round(
            SAMPLE_RATE * (-rng.uniform(*OVERLAP_SECONDS) if begins_early else rng.uniform(*PAUSE_SECONDS))
        )
        speaker = rng.choice([name for name in speakers if name != speaker])
        phrases = [random_utterance(rng, given=VOICES[speaker]) for _ in range(rng.randint(1, 2))]
        said = np.concatenate([phrase.samples for phrase in phrases])
        mix[at : at + len(said)] += said // 2  # so that two at once are not too loud
        free = max(free, at + len(said))
        words = " ".join(word for phrase in phrases for word in phrase.words)
        times = {"start": round(at / SAMPLE_RATE, 3), "end": round((at + len(said)) / SAMPLE_RATE, 3)}
        truth.append({**times, "words": words, "speaker": speaker})
    return Talk(mix[: free + SAMPLE_RATE // 2].astype(np.int16), truth)


def truth() -> list[dict[str, Any]]:
    """Return an entry for each turn of all conversations: file, start and end in seconds, words, and speaker."""
    return [{"source": name, **turn} for name, speakers in TALKS.items() for turn in talk(speakers).truth]


def main() -> None:
    """Parse the command line, and write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "talks")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, speakers in TALKS.items():
        encode_recording(talk(speakers).samples, out / name)
        print(f"{out / name}: {(out / name).stat().st_size} bytes")
    (out / "truth.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in truth()))


if __name__ == "__main__":
    main()
