"""Cues for subtitles: what is shown when. docs/exports.md says why they are cut and marked as they are."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from reelscribe.export.annotations import AnnotatedSource, SpokenText, TimedText

Cues = Literal["captions", "transcript", "both"]
"""What cues are made of; "both" is whatever a record has."""

_LAST_MS = 100 * 3_600_000 - 1  # pysubs2 writes hours of two digits, which is what players of SubRip expect
# What viewers can read at once, by the rules of broadcasters: two lines of 42 characters, for 7 seconds.
_LONGEST_SECONDS = 7.0
_MOST_CHARACTERS = 84
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Cue(NamedTuple):
    """One line of text, in milliseconds from where players begin to count."""

    start: int
    end: int
    text: str
    beside_speech: bool = False
    """A caption, in brackets, that may be shown while somebody speaks."""


def cues_of(record: AnnotatedSource, wanted: Cues) -> list[Cue]:
    """What is shown of a source, in order of `start`; cues of captions may overlap those of speech."""
    captions = record.captions if wanted != "transcript" else None
    transcript = record.transcript if wanted != "captions" else None
    marked = captions is not None and transcript is not None
    cues = [_cue(segment, record.start_seconds, marked) for segment in captions.segments] if captions else []
    for utterance in transcript.segments if transcript else []:
        cues += [_cue(part, record.start_seconds, marked=False) for part in _readable(utterance)]
    return sorted((cue for cue in cues if cue), key=lambda cue: cue.start)


def one_at_a_time(cues: Sequence[Cue]) -> Iterator[tuple[int, int, list[Cue]]]:
    """Start, end, and the cues that are shown from one to the other, captions first; `cues` are ordered by `start`."""
    waiting, shown = deque(cues), list[Cue]()
    for start, end in pairwise(sorted({time for cue in cues for time in (cue.start, cue.end)})):
        shown = [cue for cue in shown if cue.end > start]
        while waiting and waiting[0].start == start:
            shown.append(waiting.popleft())
        if shown:
            yield start, end, sorted(shown, key=lambda cue: not cue.beside_speech)


def _cue(timed: TimedText, start_seconds: float, marked: bool) -> Cue | None:
    start, end = (max(0, round((at - start_seconds) * 1000)) for at in (timed.start, timed.end))
    text = " ".join(_CONTROL.sub(" ", timed.text).split())
    if not text or start >= _LAST_MS:
        return None
    return Cue(start, min(max(end, start + 1), _LAST_MS), f"[{text}]" if marked else text, marked)


def _readable(utterance: SpokenText) -> Iterator[TimedText]:
    """Parts that can be read at once, cut before words; all of it where that is short, or where words have no times."""
    start, end, text, *_ = utterance
    words = utterance.words or []
    places = _places(words, text)
    if not places or (end - start <= _LONGEST_SECONDS and len(text) <= _MOST_CHARACTERS):
        yield TimedText(start, end, text)
        return
    first = 0
    for word, place in enumerate(places[1:], 1):
        too_long = words[word].end - words[first].start > _LONGEST_SECONDS
        if too_long or place + len(words[word].text) - places[first] > _MOST_CHARACTERS:
            yield TimedText(words[first].start, words[word - 1].end, text[places[first] : place])
            first = word
    yield TimedText(words[first].start, words[-1].end, text[places[first] :])


def _places(words: Sequence[TimedText], text: str) -> list[int]:
    """Where each word begins in `text`, whose spaces are kept: Chinese has none. Empty if a word is not in it."""
    places, stop = list[int](), 0
    for word in words:
        place = text.find(word.text, stop)
        if place < 0:
            return []
        places.append(place)
        stop = place + len(word.text)
    return places
