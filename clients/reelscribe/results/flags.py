"""Flags: why a text deserves a second look. Models sometimes repeat themselves, say the same of everything, or invent.

They are derived from texts and confidences that the ledger keeps, whenever records are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from rapidfuzz import fuzz

from reelscribe.contract.outcomes import Caption, DescribedClip, Translation, Utterance

Flag = Literal["repetition", "near-duplicate", "no-speech", "low-probability"]
"""A reason for a second look; docs/records.md explains each."""

REPEATED_SHARE = 0.3
"""Largest share of the groups of GROUP_WORDS words of a text that may have occurred in it before (0 to 1). Of sentences
that people write, it is nearly always below 0.1."""

GROUP_WORDS = 3
"""Words of such a group; letters in texts without spaces."""

SIMILARITY = 90.0
"""Similarity of two texts (0 to 100, the ratio of rapidfuzz: the share of letters that need no edit) from which on they
count as nearly equal."""

MOST_LETTERS = 10_000
"""The most letters of a text that are looked at, from its beginning: many more than models are let to write. A server
may send millions, and comparing two texts takes time by the product of their lengths."""

MOST_COMPRESSION = 2.4
"""Compression ratio above which a transcript repeats itself, as in openai-whisper. Of speech, it is at most 1.8."""

MOST_NO_SPEECH = 0.5
"""Probability of no speech above which speech gets a flag. Of 32 short announcements and words, it is at most 0.44."""

LEAST_LOGPROB = -1.15
"""Average log-probability below which speech gets a flag. Of the same, it is at least -1.12; `scripts/bench
doubtful_speech` measures both."""

Described = TypeVar("Described", Caption, DescribedClip)


def chosen_to_differ(settings: Mapping[str, Any]) -> bool:
    """Return whether neighbours show different shots, so that equal texts of them are odd.

    Args:
        settings: What decides the results except the model: of captions with `sampling`, of descriptions with `clips`.
    """
    sampling, clips = settings.get("sampling", {}), settings.get("clips", {})
    return bool(sampling.get("per_shot") == 1 or clips.get("cut") == "shots")


def with_flags(results: Iterable[Described], *, differ: bool) -> Iterator[tuple[Described, list[Flag]]]:
    """Yield each result with its flags.

    Args:
        results: Captions or descriptions, in the order of time.
        differ: Whether neighbours were chosen to differ. Only then is one that is nearly equal to a neighbour a
            "near-duplicate": of frames or windows that follow each other closely, most are.
    """
    before: Described | None = None
    near_before = False
    for result in results:
        if before is not None:
            near = differ and _nearly_equal(before.text, result.text)
            yield before, _flags(before.text, near=near or near_before)
            near_before = near
        before = result
    if before is not None:
        yield before, _flags(before.text, near=near_before)


def _flags(text: str, *, near: bool) -> list[Flag]:
    flags: list[Flag] = ["repetition"] if repeats_itself(text) else []
    return [*flags, "near-duplicate"] if near else flags


def repeats_itself(text: str) -> bool:
    """Return whether a text says the same thing again and again."""
    text = text[:MOST_LETTERS].casefold()
    words = text.split()
    if len(words) < 2 * GROUP_WORDS:
        words = list(text) if len(words) == 1 else words
    groups = list(zip(*(words[k:] for k in range(GROUP_WORDS)), strict=False))
    return len(groups) > GROUP_WORDS and 1 - len(set(groups)) / len(groups) > REPEATED_SHARE


def _nearly_equal(one: str, other: str) -> bool:
    one, other = one[:MOST_LETTERS], other[:MOST_LETTERS]
    return bool(one) and fuzz.ratio(one, other, score_cutoff=SIMILARITY) >= SIMILARITY


def speech_flags(utterance: Utterance | Translation) -> list[Flag]:
    """Return the flags of a segment of speech, from its text and from what the model computed of its chunk."""
    flags: dict[Flag, bool] = {
        "repetition": repeats_itself(utterance.text) or (utterance.compression_ratio or 0.0) > MOST_COMPRESSION,
        "no-speech": (utterance.no_speech_prob or 0.0) > MOST_NO_SPEECH,
        "low-probability": (utterance.avg_logprob or 0.0) < LEAST_LOGPROB,
    }
    return [flag for flag, is_set in flags.items() if is_set]
