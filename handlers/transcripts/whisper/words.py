"""Groups the tokens of Whisper into words, and gives each word the times of its tokens."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, NamedTuple

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import Word
from transcripts.chunks import LANGUAGES_WITHOUT_SPACES, round_seconds
from transcripts.whisper.engine import AlignedTokens
from transcripts.whisper.segments import TokenSegment

_OPENING = "\"'“¿([{-"
"""Punctuation that belongs to the next word, as in openai/whisper."""

_CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 - Chinese and Japanese have their own punctuation
"""Punctuation that belongs to the word before, as in openai/whisper."""

_INCOMPLETE = "\ufffd"
"""What a tokenizer makes of bytes that are not a whole character."""


class TokenWord(NamedTuple):
    """A word, or a part of one, and how many tokens it consists of."""

    text: str
    """With the spaces before the word."""
    token_count: int


def time_words(
    tokenizer: Any, segments: Sequence[TokenSegment], aligned: Sequence[AlignedTokens], language: str
) -> list[tuple[Word, ...]]:
    """Make the words of each segment, with their times.

    Args:
        tokenizer: The tokenizer of the Whisper.
        segments: The segments of a window, in order.
        aligned: The times and the probabilities of the tokens of each segment.
        language: Code of the language, which decides where words start.

    Returns:
        For each segment its words, with times in whole milliseconds.
    """
    words = []
    for segment, (times, probabilities) in zip(segments, aligned, strict=True):
        parts = split_words(tokenizer, segment.tokens, language)
        spans = list(pairwise(accumulate((part.token_count for part in parts), initial=0)))
        words.append(
            tuple(
                Word(
                    round_seconds(times[first]),
                    round_seconds(times[stop]),
                    text,
                    round_confidence(fmean(probabilities[first:stop])),
                )
                for part, (first, stop) in zip(parts, spans, strict=True)
                if (text := part.text.strip())
            )
        )
    return words


def split_words(tokenizer: Any, tokens: list[int], language: str) -> list[TokenWord]:
    """Split tokens into words, each with the punctuation around it.

    Words start with a space, except in languages that are written without spaces: there, each character is a word.

    Args:
        tokenizer: The tokenizer of the Whisper.
        tokens: IDs of text tokens.
        language: Code of the language.

    Returns:
        The words in order; their token counts add up to the number of `tokens`.
    """
    words: list[TokenWord] = []
    for part in _characters(tokenizer, tokens):
        punctuation = part.text.strip() in string.punctuation
        starts_word = part.text.startswith(" ") or punctuation or language in LANGUAGES_WITHOUT_SPACES
        if starts_word or not words:
            words.append(part)
        else:
            words[-1] = _joined(words[-1], part)
    return _with_punctuation(words)


def _characters(tokenizer: Any, tokens: list[int]) -> list[TokenWord]:
    """The text of each token; tokens that are bytes of the same character are joined."""
    parts = []
    whole = tokenizer.decode(tokens)
    first, at = 0, 0
    for stop in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[first:stop])
        # Where the whole text has a replacement character as well, no further token will complete it.
        if _INCOMPLETE not in text or whole[at : at + len(text)] == text or stop == len(tokens):
            parts.append(TokenWord(text, stop - first))
            first, at = stop, at + len(text)
    return parts


def _with_punctuation(words: list[TokenWord]) -> list[TokenWord]:
    """The words, each joined with the punctuation that belongs to it."""
    whole: list[TokenWord] = []
    opening = TokenWord("", 0)
    for word in words:
        if word.text.startswith(" ") and word.text.strip() in _OPENING:
            opening = _joined(opening, word)
        elif whole and not opening.token_count and word.text in _CLOSING:
            whole[-1] = _joined(whole[-1], word)
        else:
            whole.append(_joined(opening, word))
            opening = TokenWord("", 0)
    return [*whole, opening] if opening.token_count else whole


def _joined(first: TokenWord, second: TokenWord) -> TokenWord:
    return TokenWord(first.text + second.text, first.token_count + second.token_count)
