"""Makes the cues of subtitles: which text is shown when. docs/exports.md explains why they are cut and marked so."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from reelscribe.contract.annotations import Segment, Utterance
from reelscribe.contract.speech import Word
from reelscribe.export.annotations import AnnotatedSource

Cues = Literal["captions", "transcript", "both"]
"""The annotations that cues are made from; "both" means whatever a record has."""

_LAST_MS = 100 * 3_600_000 - 1  # pysubs2 writes hours of two digits, as players of SubRip expect
# Broadcasters' rules for what viewers can read at once: two lines of 42 characters, for 7 seconds.
_MAX_SECONDS = 7.0
_MAX_CHARACTERS = 84
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Cue(NamedTuple):
    """One line of text that is shown for some time."""

    start: int
    """Time at which it appears, in milliseconds from where players begin to count."""
    end: int
    """Time at which it disappears, in milliseconds; at least 1 ms after `start`."""
    text: str
    beside_speech: bool = False
    """Whether this is a caption of a source that has a transcript too; its text is in brackets."""


class CueInterval(NamedTuple):
    """A stretch of time in which the same cues are shown."""

    start: int
    """In milliseconds."""
    end: int
    """In milliseconds."""
    cues: list[Cue]
    """At least one; captions come before speech."""


def cues_of(source: AnnotatedSource, wanted: Cues) -> list[Cue]:
    """Make the cues of a source.

    Args:
        source: The annotations of the source.
        wanted: The annotations that cues are made from.

    Returns:
        The cues in the order of `start`; captions and speech may overlap.
    """
    captions = source.captions if wanted != "transcript" else None
    transcript = source.transcript if wanted != "captions" else None
    beside_speech = captions is not None and transcript is not None
    cues = [_cue(segment, source.start_seconds, beside_speech) for segment in captions.segments] if captions else []
    for utterance in transcript.utterances if transcript else []:
        cues += [_cue(segment, source.start_seconds) for segment in _readable_segments(utterance)]
    return sorted((cue for cue in cues if cue), key=lambda cue: cue.start)


def intervals_of(cues: Sequence[Cue]) -> Iterator[CueInterval]:
    """Yield the stretches of time between any start or end of a cue and the next, if a cue is shown in them.

    Args:
        cues: Cues in the order of `start`; they may overlap.
    """
    waiting, shown = deque(cues), list[Cue]()
    for start, end in pairwise(sorted({time for cue in cues for time in (cue.start, cue.end)})):
        shown = [cue for cue in shown if cue.end > start]
        while waiting and waiting[0].start == start:
            shown.append(waiting.popleft())
        if shown:
            yield CueInterval(start, end, sorted(shown, key=lambda cue: not cue.beside_speech))


def _cue(segment: Segment, start_seconds: float, beside_speech: bool = False) -> Cue | None:
    """The cue of a segment; None if it has nothing to show, or starts later than subtitles can say."""
    start, end = (max(0, round((time - start_seconds) * 1000)) for time in (segment.start, segment.end))
    text = " ".join(_CONTROL_CHARACTER.sub(" ", segment.text).split())
    if not text or start >= _LAST_MS:
        return None
    return Cue(start, min(max(end, start + 1), _LAST_MS), f"[{text}]" if beside_speech else text, beside_speech)


def _readable_segments(utterance: Utterance) -> Iterator[Segment]:
    """Segments that viewers can read at once, cut before words.

    An utterance that is short, or whose words have no times, is one segment.
    """
    start, end, text, words = utterance.start, utterance.end, utterance.text, utterance.words or ()
    places = _places(words, text)
    if not places or (end - start <= _MAX_SECONDS and len(text) <= _MAX_CHARACTERS):
        yield Segment(start, end, text)
        return
    first = 0
    for number, place in enumerate(places[1:], 1):
        too_long = words[number].end - words[first].start > _MAX_SECONDS
        if too_long or place + len(words[number].text) - places[first] > _MAX_CHARACTERS:
            yield Segment(words[first].start, words[number - 1].end, text[places[first] : place])
            first = number
    yield Segment(words[first].start, words[-1].end, text[places[first] :])


def _places(words: Sequence[Word], text: str) -> list[int]:
    """The index in `text` at which each word begins; empty if a word is not in it.

    The words are looked up in the text, because only the text says whether there are spaces: Chinese has none.
    """
    places, stop = list[int](), 0
    for word in words:
        place = text.find(word.text, stop)
        if place < 0:
            return []
        places.append(place)
        stop = place + len(word.text)
    return places
