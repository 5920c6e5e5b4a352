"""Real speech with its text, and how many words of it a transcript has wrong."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import jiwer
import numpy as np

SAMPLE_RATE = 16_000

MOST_WRONG = 4
"""Words that whisper-tiny.en has wrong in the 70 words of the sentences, which is what faster-whisper has wrong, too:
two as it hears "old-sposed" for "ill disposed", and two as it writes "coldhearted" in one word."""


class Sentence(NamedTuple):
    """A sentence that somebody reads."""

    text: str
    """In lower case, without punctuation."""
    samples: np.ndarray
    """(N,) float32 at SAMPLE_RATE."""


def wrong_words(texts: Iterable[str], sentences: Iterable[Sentence]) -> int:
    """How many words have to be changed, added or taken away in `texts` to get what is said in the sentences."""
    said = [sentence.text for sentence in sentences]
    output = jiwer.process_words(said, [words(text) for text in texts])
    return output.substitutions + output.deletions + output.insertions


def words(text: str) -> str:
    """The words of a transcript, as the sentences write them."""
    spelled = text.lower().replace("mr.", "mister")
    return " ".join(re.findall(r"[a-z']+", spelled))
