"""Tokens that a Whisper writes -> words, with the times of their tokens."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from reelscribe.speech import Word
from transcripts.chunks import WITHOUT_SPACES, seconds
from transcripts.whisper.segments import TokenSegment

_BEFORE = "\"'“¿([{-"
_AFTER = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 - Chinese and Japanese have their own
"""Punctuation that belongs to the word before or after it, as in openai/whisper."""

_INCOMPLETE = "\ufffd"
"""How a part of a character is decoded."""


class TokenWord(NamedTuple):
    """A word with the blanks before it, and of how many tokens it is."""

    text: str
    tokens: int


def time_words(
    tokenizer: Any, segments: Sequence[TokenSegment], times: Sequence[float], language: str | None
) -> list[tuple[Word, ...]]:
    """The words of each segment; `times` are when each token of all segments begins, and when the last one ends."""
    words, first = [], 0
    for segment in segments:
        parts = split_words(tokenizer, segment.tokens, language)
        ends = [first + count for count in accumulate(part.tokens for part in parts)]
        bounds = [times[at] for at in (first, *ends)]
        # What is silent before and after belongs to no word, though the path through it must.
        bounds[0] = min(max(bounds[0], segment.start), bounds[1])
        bounds[-1] = max(min(bounds[-1], segment.end), bounds[-2])
        spelled = [(part.text.strip(), span) for part, span in zip(parts, pairwise(bounds), strict=True)]
        words.append(tuple(Word(seconds(start), seconds(end), text) for text, (start, end) in spelled if text))
        first = ends[-1]
    return words


def split_words(tokenizer: Any, tokens: list[int], language: str | None) -> list[TokenWord]:
    """The words that tokens spell, each with the punctuation around it."""
    words: list[TokenWord] = []
    for part in _characters(tokenizer, tokens):
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation or language in WITHOUT_SPACES
        if begins or not words:
            words.append(part)
        else:
            words[-1] = TokenWord(words[-1].text + part.text, words[-1].tokens + part.tokens)
    return _with_punctuation(words)


def _characters(tokenizer: Any, tokens: list[int]) -> list[TokenWord]:
    """Tokens, joined where it takes several for one character."""
    parts = []
    whole = tokenizer.decode(tokens)
    first, at = 0, 0
    for stop in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[first:stop])
        # A character that is decoded so in the whole text too will not be completed.
        if _INCOMPLETE not in text or whole[at : at + len(text)] == text or stop == len(tokens):
            parts.append(TokenWord(text, stop - first))
            first, at = stop, at + len(text)
    return parts


def _with_punctuation(words: list[TokenWord]) -> list[TokenWord]:
    whole: list[TokenWord] = []
    opening = TokenWord("", 0)
    for word in words:
        if word.text.startswith(" ") and word.text.strip() in _BEFORE:
            opening = TokenWord(opening.text + word.text, opening.tokens + word.tokens)
        elif whole and not opening.tokens and word.text in _AFTER:
            whole[-1] = TokenWord(whole[-1].text + word.text, whole[-1].tokens + word.tokens)
        else:
            whole.append(TokenWord(opening.text + word.text, opening.tokens + word.tokens))
            opening = TokenWord("", 0)
    return [*whole, opening] if opening.tokens else whole
