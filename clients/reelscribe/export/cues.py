"""Cues: when which text is shown, and in which lines.

A caption or a description of a clip is one cue; the cue of a clip ends when the next clip starts, as two descriptions
at once would be hard to read. Beside speech, both are in brackets, as subtitles for the deaf write what nobody says:
text is the only thing that every player shows. Speech whose words have times is cut into cues. Without them an
utterance remains whole, because guessing when a word is spoken would show text too early or too late.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from typing import NamedTuple

from reelscribe.contract.outcomes import Segment, Utterance
from reelscribe.contract.speech import ENGLISH
from reelscribe.export.annotations_reader import AnnotatedSource, ClipText
from reelscribe.export.cue_rules import CueRules, CueSource
from reelscribe.export.line_breaks import Phrase, Piece, cut_phrases, line_text, lines_of, pieces_of, width

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# They order anew what stands around them, also the times and texts of others. Languages that are written from right to
# left need none of them within a line; the marks U+061C, U+200E and U+200F, which some texts need, stay.
_EMBEDDING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
"""A code of a language, such as "en" or "pt-BR". It becomes part of a name, and a server may say anything."""
_RENAMED = {"jw": "jv", "iw": "he", "in": "id", "ji": "yi", "mo": "ro"}
"""Codes that BCP 47 has replaced, by which players know no language: Whisper says "jw" for Javanese, and no other."""


class Cue(NamedTuple):
    """Lines of text that are shown for some time."""

    start: int
    """Time at which it appears, in milliseconds since the time at which players start the file."""
    end: int
    """Time at which it disappears, in milliseconds; at least 1 ms after `start`."""
    lines: Sequence[Sequence[Piece]]
    """At least one, and none is empty. Pieces that shall be marked while they are spoken have times."""
    beside_speech: bool = False
    """True if this is a caption or a description of a clip, of a source that has a transcript too; its text is in
    brackets.
    """
    speaker: str | None = None
    """Name of who says it; None if that is not known."""
    right_to_left: bool = False
    """True if its lines are read from right to left."""

    @property
    def has_times(self) -> bool:
        """Return `True` if its words shall be marked while they are spoken."""
        return any(piece.start is not None for piece in chain.from_iterable(self.lines))


def cues_of(source: AnnotatedSource, rules: CueRules) -> list[Cue]:
    """Make the cues of a source.

    Args:
        source: The annotations of the source.
        rules: What cues show, how much text at once, and for how long.

    Returns:
        The cues in the order of `start`; what is seen may overlap what is said, and so may what several people say.
    """
    said = source.transcript and source.transcript.utterances
    made_from = rules.made_from
    if made_from == "auto":
        made_from = "transcript" if said else "clips" if _has_clips(source) else "captions"
    seen = _seen(source, made_from)
    said = said if made_from in ("transcript", "both") else None
    beside_speech = seen is not None and said is not None
    cues = []
    for segment in seen or ():
        if text := one_line(segment.text):
            start, end = (player_milliseconds(time, source.start_seconds) for time in (segment.start, segment.end))
            lines = lines_of(pieces_of(f"[{text}]" if beside_speech else text), rules.max_line_chars)
            cues.append(Cue(start, max(end, start + 1), unmarked(lines), beside_speech))
    for speaker, utterances in _by_speaker(said or ()).items():
        for phrase in _spoken_phrases(utterances, source.start_seconds, rules):
            name = [Piece(f"{speaker}:", " ")] if speaker and rules.speaker_names else []
            lines = lines_of([*name, *phrase.pieces], rules.max_line_chars)
            shown = lines if rules.karaoke else unmarked(lines)
            cues.append(Cue(phrase.start, phrase.end, shown, speaker=speaker))
    return _with_directions(sorted(cues, key=lambda cue: cue.start))


def _with_directions(cues: Sequence[Cue]) -> list[Cue]:
    """Return cues that know whether they are read from right to left.

    That is so if most of their letters are, or most letters of all that is said, or of all that is seen: a Hebrew
    sentence may begin with a Latin name, or have more of them than Hebrew words.
    """
    letters = [_letters(" ".join(map(line_text, cue.lines))) for cue in cues]
    of_all = Counter[bool]()
    for cue, (right_to_left, left_to_right) in zip(cues, letters, strict=True):
        of_all[cue.beside_speech] += right_to_left - left_to_right
    return [
        cue._replace(right_to_left=right_to_left > (0 if of_all[cue.beside_speech] > 0 else left_to_right))
        for cue, (right_to_left, left_to_right) in zip(cues, letters, strict=True)
    ]


def _letters(text: str) -> tuple[int, int]:
    """Return how many letters of a text are of scripts that are written from right to left, and from left to right."""
    if text.isascii():
        return 0, sum(map(str.isalpha, text))
    found = Counter(map(unicodedata.bidirectional, text))
    return found["R"] + found["AL"], found["L"]


def one_line(text: str) -> str:
    """Return a text on one line: white space and control characters become one space, and none is at its ends.

    What would order the text around it anew is left out.
    """
    return " ".join(_EMBEDDING.sub("", _CONTROL_CHARACTER.sub(" ", text)).split())


def player_milliseconds(time: float, start_seconds: float) -> int:
    """Return a time as players count it, in milliseconds from 0.

    Args:
        time: Presentation time, in seconds.
        start_seconds: Presentation time at which players start the file, in seconds.
    """
    return max(0, round((time - start_seconds) * 1000))


def shown_language(source: AnnotatedSource, rules: CueRules) -> str | None:
    """Return the language of what is said, as its code, if cues of a source show it.

    Args:
        source: The annotations of the source.
        rules: What cues show.

    Returns:
        The language that is spoken for the longest time, or English for a translation, as BCP 47 has its code; None if
        cues show no speech, or it is not known.
    """
    seconds = defaultdict[str, float](float)
    if source.transcript and rules.show_speech:
        for each in source.transcript.utterances:
            if each.language and _LANGUAGE.fullmatch(each.language):
                code, hyphen, rest = each.language.partition("-")
                seconds[_RENAMED.get(code.lower(), code) + hyphen + rest] += each.end - each.start
    spoken = max(seconds, key=lambda language: seconds[language], default=None)
    return ENGLISH if spoken and source.transcript and source.transcript.in_english else spoken


def _by_speaker(utterances: Iterable[Utterance]) -> Mapping[str | None, Sequence[Utterance]]:
    """Return what each speaker says; what people say at the same time is shown at the same time."""
    said = defaultdict[str | None, list[Utterance]](list)
    for each in utterances:
        said[one_line(each.speaker or "") or None].append(each)
    return said


def _has_clips(source: AnnotatedSource) -> bool:
    return source.clips is not None and bool(source.clips.described)


def _seen(source: AnnotatedSource, made_from: CueSource) -> Sequence[Segment] | None:
    """Return what was seen in a source, of the annotations that cues are made from; None if there are none of them."""
    if made_from == "clips" or (made_from == "both" and _has_clips(source)):
        return _one_after_the_other(source.clips.described) if source.clips else None
    return source.captions.spans if source.captions and made_from in ("captions", "both") else None


def _one_after_the_other(clips: Iterable[ClipText]) -> list[Segment]:
    """Return the descriptions of clips, each until the next clip starts at most, because clips may overlap."""
    ordered = sorted(clips, key=lambda clip: clip.start)
    next_start = dict(pairwise(sorted({clip.start for clip in ordered})))
    return [Segment(clip.start, min(clip.end, next_start.get(clip.start, clip.end)), clip.text) for clip in ordered]


def unmarked(lines: Iterable[Sequence[Piece]]) -> list[list[Piece]]:
    """Return lines of which no word is marked while it is spoken."""
    return [[Piece(line_text(line))] for line in lines]


def _spoken_phrases(utterances: Iterable[Utterance], start_seconds: float, rules: CueRules) -> Iterator[Phrase]:
    """Yield what is said in portions that can be read at once, one after the other.

    An utterance whose words have no times remains one phrase.
    """
    rows: list[list[Phrase]] = []
    for utterance in utterances:
        if phrase := _phrase(utterance, start_seconds):
            last = rows[-1][-1] if rows else None
            if last and last.has_times and phrase.has_times and last.last_start <= phrase.start:
                rows[-1].append(phrase)
            else:
                rows.append([phrase])
    portions = [cut_phrases(row, rules) if row[0].has_times else row for row in rows]
    yield from _without_overlaps(sorted(chain.from_iterable(portions), key=lambda phrase: phrase.start), rules)


def _phrase(utterance: Utterance, start_seconds: float) -> Phrase | None:
    """Return an utterance with its times as players count them; None if it has no text."""
    text = one_line(utterance.text)
    words = [
        Piece(word_text, "", *(player_milliseconds(time, start_seconds) for time in (word.start, word.end)))
        for word in utterance.words or ()
        if (word_text := one_line(word.text))
    ]
    if not text:
        return None
    pieces = pieces_of(text, words)
    start, end = pieces[0].start, pieces[-1].end
    if start is None or end is None:
        start, end = (player_milliseconds(time, start_seconds) for time in (utterance.start, utterance.end))
    return Phrase(start, max(start, end), pieces)


def _without_overlaps(phrases: Sequence[Phrase], rules: CueRules) -> Iterator[Phrase]:
    """Yield phrases with the times at which they are shown: long enough to be read, where the next one leaves room.

    Where people speak at the same time, a phrase ends when the next one starts. But it is shown for a while before
    that, and the next one later.
    """
    least_ms, most_ms = (round(seconds * 1000) for seconds in (rules.min_cue_seconds, rules.max_cue_seconds))
    free = 0
    for phrase, after in zip_longest(phrases, phrases[1:]):
        start = max(phrase.start, free)
        least = max(1, min(phrase.end - phrase.start, least_ms))
        needed = max(width(phrase.pieces) / rules.max_chars_per_second * 1000, least_ms)
        readable = start + min(most_ms, math.ceil(needed))
        end = max(phrase.end, readable)
        free = max(start + least, min(end, after.start) if after else end)
        yield phrase._replace(start=start, end=free)
