"""The rules for words, which hold for the index, for queries, and for the marks in hits.

Letters, digits and the marks that belong to them make a word. Case and the accents of Latin, Greek and Cyrillic
letters do not matter. In scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), each
character is a word of its own, so that any stretch of characters is found as a phrase.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import NamedTuple

from reelscribe.errors import UsageError

MOST_TERMS = 32
"""Largest number of words and phrases in a query."""

LEAST_PREFIX = 2
"""Fewest characters before the star of a prefix."""

_WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_ASCII_WORD = re.compile(r"[0-9A-Za-z]+")
_ACCENTS = dict.fromkeys(range(0x300, 0x370))
_QUERY_PART = re.compile(r'"([^"]*)"?|([^\s"]+)')


class Span(NamedTuple):
    """A word in a text."""

    start: int
    stop: int
    word: str
    """The word as the index has it."""


@dataclass(frozen=True)
class Term:
    """A word or phrase of a query."""

    words: tuple[str, ...]
    """Its words as the index has them, at least one."""
    prefix: bool = False
    """True if the last of them is only the beginning of a word."""

    def begins(self, spans: Sequence[Span]) -> bool:
        """Return whether words of a text begin with this term.

        Args:
            spans: The words of the text, in order.
        """
        if len(spans) < len(self.words):
            return False
        *whole, last = self.words
        word = spans[len(whole)].word
        if any(span.word != wanted for span, wanted in zip(spans, whole, strict=False)):
            return False
        return word.startswith(last) if self.prefix else word == last


def folded(text: str) -> str:
    """Return a text without what does not matter: case, and the accents of Latin, Greek and Cyrillic letters.

    Args:
        text: Any text.
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold()).translate(_ACCENTS)
    return unicodedata.normalize("NFC", decomposed).lower()


def indexed_text(text: str) -> str:
    """Return a text whose words SQLite's `ascii` tokenizer finds to be those of `word_spans`.

    Args:
        text: Any text.
    """
    return text if text.isascii() else " ".join(span.word for span in word_spans(text))


def word_spans(text: str) -> Iterator[Span]:
    """Yield the words of a text, in order.

    Args:
        text: Any text.
    """
    if text.isascii():
        for match in _ASCII_WORD.finditer(text):
            yield Span(*match.span(), match[0].lower())
    else:
        for match in _any_word().finditer(text):
            if word := _folded(match[0]):
                yield Span(*match.span(), word)


def parse_query(text: str) -> list[Term]:
    """Parse what a user searches: words, "phrases", and beginnings of words, as in stop*.

    What stands together without spaces and has several words, such as "don't", is a phrase.

    Args:
        text: The query. Signs that belong to no word separate words.

    Returns:
        The terms, all of which a text must have; none if the query has no word.

    Raises:
        UsageError: A prefix is too short, or there are too many terms; the message is for the user.
    """
    terms = []
    for match in _QUERY_PART.finditer(text):
        phrase, chunk = match.groups()
        words = tuple(span.word for span in word_spans(phrase if chunk is None else chunk))
        if not words:
            continue
        prefix = chunk is not None and chunk.endswith("*") and not _is_without_spaces(words[-1])
        if prefix and len(words) == 1 and len(words[0]) < LEAST_PREFIX:
            raise UsageError(f"A beginning of a word needs at least {LEAST_PREFIX} characters before the star.")
        terms.append(Term(words, prefix))
    if len(terms) > MOST_TERMS:
        raise UsageError(f"A search can have up to {MOST_TERMS} words and phrases; this one has {len(terms)}.")
    return terms


def match_expression(terms: Sequence[Term]) -> str:
    """Return a query in the language of FTS5. Words are letters, digits and marks, so that none can be syntax.

    Args:
        terms: The terms, at least one.
    """
    return " AND ".join(f'"{" ".join(term.words)}"{" *" if term.prefix else ""}' for term in terms)


def found_spans(text: str, terms: list[Term]) -> Iterator[tuple[int, int]]:
    """Yield where in a text the terms are, as ranges of characters in order, none of which overlap.

    The text is read only as far as ranges are asked for.

    Args:
        text: The text.
        terms: The terms of a query, from `parse_query`.
    """
    prefixes = tuple(term.words[0] for term in terms if term.prefix and len(term.words) == 1)
    others: dict[str, list[Term]] = {}
    for term in terms:
        if not term.prefix or len(term.words) > 1:
            others.setdefault(term.words[0], []).append(term)
    longest = max((len(term.words) for term in terms), default=1)
    begin = end = 0  # a range that the next one may overlap
    for spans in _windows(word_spans(text), longest):
        first = spans[0]
        ends = [spans[len(term.words) - 1].stop for term in others.get(first.word, ()) if term.begins(spans)]
        if ends or first.word.startswith(prefixes):
            if first.start >= end:
                if end:
                    yield begin, end
                begin = first.start
            end = max(end, first.stop, *ends)
    if end:
        yield begin, end


def _windows(spans: Iterator[Span], size: int) -> Iterator[Sequence[Span]]:
    """Yield each word with those that follow it, `size` in all, and fewer at the end."""
    window = deque(islice(spans, size))
    while window:
        yield window
        window.popleft()
        window.extend(islice(spans, 1))


@lru_cache(maxsize=4096)
def _folded(word: str) -> str:
    text = folded(word)
    return text if text.isalnum() else "".join(c for c in text if _is_of_word(c))


def _is_of_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LNM"


def _is_without_spaces(word: str) -> bool:
    return bool(re.match(f"[{_WITHOUT_SPACES}]", word))


@lru_cache(maxsize=1)
def _any_word() -> re.Pattern[str]:
    """Compile what a word is. Python's own class of letters lacks the marks, such as the vowel signs of Devanagari."""
    numbers = (number for number in range(sys.maxunicode + 1) if unicodedata.category(chr(number))[0] == "M")
    ranges = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        ranges.append(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}")
    marks = "".join(ranges)
    alone = f"(?=[{_WITHOUT_SPACES}])(?:[^\\W_]|[{marks}])[{marks}]*"
    return re.compile(f"{alone}|(?:(?![{_WITHOUT_SPACES}])[^\\W_][{marks}]*)+")
