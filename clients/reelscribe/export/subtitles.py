"""Files of subtitles: WebVTT, SubRip and Advanced SubStation Alpha (ASS), one for each source.

What differs between them is how a line is written so that players show it as it is, and how a word is marked while it
is spoken. Captions beside speech are at the top of the picture in WebVTT (`line:0`, which FFmpeg's reader, and so mpv,
ignores) and in ASS. SubRip has no such thing: the tag `an8` is not part of it, and some players show it as text. Some
also show no second cue at the same time, or choose the order, so all that is shown at a time is one cue there.

Players take lines for ones from left to right unless they are told otherwise, or go by the first letter. So each line
that is read from right to left is embedded (U+202B to U+202C): its full stop is at its left end everywhere then, and
Latin names are in their places. libass also needs the style's encoding -1 where tags divide a line, as in karaoke.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from reelscribe.export.annotations_reader import AnnotatedSource
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.cues import Cue, cues_of, unmarked
from reelscribe.export.line_breaks import Piece

if TYPE_CHECKING:
    from pysubs2 import SSAFile

SubtitleFormat = Literal["vtt", "srt", "ass"]
"""The formats of subtitles, which are also the suffixes of their files."""

_LAST_MS = 100 * 3_600_000 - 1  # pysubs2 writes hours with two digits, as players of SubRip expect
_LAST_ASS_MS = 10 * 3_600_000 - 20  # one digit of hours, and hundredths of seconds
_WORD_JOINER = "\u2060"  # an invisible character
_EMBEDDED = "\u202b{}\u202c"  # from right to left, whatever is around it and begins it
_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_NUMBER_AND_TIMES = re.compile(r"^(\d+)\n\S+ --> \S+$", re.MULTILINE)
_NOT_YET_SPOKEN = "STYLE\n::cue(:future) {\n  color: #a0a0a0;\n}\n\n"


def subtitle_texts(kind: SubtitleFormat, source: AnnotatedSource, rules: CueRules) -> tuple[str, str]:
    """Return the texts of the files of subtitles of a source, as it is and in English; each is empty without cues.

    Args:
        kind: The format.
        source: The annotations of the source.
        rules: What cues show, how much text at once, and for how long.
    """
    translated = source.translated if rules.show_speech else None
    return _text(kind, source, rules), _text(kind, translated, rules) if translated else ""


def _text(kind: SubtitleFormat, source: AnnotatedSource, rules: CueRules) -> str:
    to_text, last = _FORMATS[kind]
    if kind == "vtt":  # which has a form for names that players can hide
        rules = replace(rules, speaker_names=False)
    cues = [cue._replace(end=min(cue.end, last)) for cue in cues_of(source, rules) if cue.start < last]
    return to_text(cues) if cues else ""


def _webvtt(cues: Sequence[Cue]) -> str:
    """Return the text of a WebVTT file. What is seen beside speech is shown at the top of the picture.

    What somebody says is in a voice span with their name.
    """
    content = _file((cue.start, cue.end, _webvtt_lines(cue)) for cue in cues).to_string("vtt", keep_ssa_tags=True)
    if any(cue.has_times for cue in cues):
        content = content.replace("\n\n", f"\n\n{_NOT_YET_SPOKEN}", 1)
    # pysubs2 writes no cue settings. No text can be mistaken for the times of a cue, because its ">" is escaped.
    return _NUMBER_AND_TIMES.sub(
        lambda head: f"{head[0]} line:0" if cues[int(head[1]) - 1].beside_speech else head[0], content
    )


def _webvtt_lines(cue: Cue) -> str:
    time = cue.start

    def marked(piece: Piece) -> str:
        nonlocal time
        text = _webvtt_text(piece.text)
        if piece.start is None:
            return text
        if not time < piece.start < cue.end:  # the standard asks for later times each, within the cue
            return f"<c>{text}</c>"
        time = piece.start
        return f"<{_webvtt_time(time)}><c>{text}</c>"

    voice = f"<v {_webvtt_text(cue.speaker)}>" if cue.speaker else ""
    return voice + _lines(cue, marked)


def _webvtt_time(ms: int) -> str:
    seconds, ms = divmod(ms, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"


def _webvtt_text(text: str) -> str:
    # pysubs2 turns \N, \n and \h into white space, and WebVTT has no escape for a backslash.
    return html.escape(text, quote=False).replace("\\", f"\\{_WORD_JOINER}")


def _subrip(cues: Sequence[Cue]) -> str:
    """Return the text of a SubRip file, which shows one cue at a time.

    So a new one begins whenever a cue or a word that is marked begins or ends. What is seen comes before speech. No
    word is marked that is read from right to left: libass would show the words before and after it in a wrong order.
    """
    cues = [cue._replace(lines=unmarked(cue.lines)) if cue.right_to_left else cue for cue in cues]
    if not any(cue.beside_speech or cue.speaker or cue.has_times for cue in cues):
        shown = ((cue.start, cue.end, _subrip_lines(cue, cue.start)) for cue in cues)
    else:
        shown = (
            (interval.start, interval.end, r"\N".join(_subrip_lines(cue, interval.start) for cue in interval.cues))
            for interval in _intervals_of(cues)
        )
    return _file(shown).to_string("srt", keep_ssa_tags=True)


class _Interval(NamedTuple):
    """An interval of time in which the same cues are shown, and the same words are marked."""

    start: int
    """Start of the interval, in milliseconds like `Cue.start`."""
    end: int
    """End of the interval, in milliseconds."""
    cues: list[Cue]
    """At least one; what is seen comes before speech."""


def _intervals_of(cues: Sequence[Cue]) -> Iterator[_Interval]:
    """Split time at each start and end of a cue and of its words, and yield the intervals in which a cue is shown."""
    waiting, shown = deque(cues), list[Cue]()
    for start, end in pairwise(sorted({time for cue in cues for time in _times(cue)})):
        shown = [cue for cue in shown if cue.end > start]
        while waiting and waiting[0].start == start:
            shown.append(waiting.popleft())
        if shown:
            yield _Interval(start, end, sorted(shown, key=lambda cue: not cue.beside_speech))


def _times(cue: Cue) -> Iterator[int]:
    yield from (cue.start, cue.end)
    for piece in chain.from_iterable(cue.lines):
        yield from (time for time in (piece.start, piece.end) if time is not None and cue.start < time < cue.end)


def _subrip_lines(cue: Cue, time: int) -> str:
    """Return the lines of a cue, in which the words that are spoken at a time are underlined."""

    def marked(piece: Piece) -> str:
        text = _subrip_text(piece.text)
        is_spoken = piece.start is not None and piece.end is not None and piece.start <= time < piece.end
        return f"<u>{text}</u>" if is_spoken else text

    return _lines(cue, marked)


def _subrip_text(text: str) -> str:
    # SubRip has no escapes, and players hide text that looks like a tag. A word joiner within it prevents that, except
    # for text in braces, which are replaced by full-width braces.
    return _SRT_MARKUP.sub(rf"\g<0>{_WORD_JOINER}", text).translate(_BRACES)


def _ass(cues: Sequence[Cue]) -> str:
    """Return the text of a file of Advanced SubStation Alpha. What is seen beside speech is at the top of the picture.

    Sizes are for a picture of 1920x1080, which players scale.
    """
    from pysubs2 import Color, SSAStyle

    # Times are in hundredths of seconds.
    rounded = [(round(cue.start, -1), max(round(cue.end, -1), round(cue.start, -1) + 10), cue) for cue in cues]
    file = _file((start, end, _ass_lines(cue)) for start, end, cue in rounded)
    file.info |= {"PlayResX": "1920", "PlayResY": "1080"}
    file.styles["Default"] = SSAStyle(
        fontsize=60,
        secondarycolor=Color(160, 160, 160),  # of words that have not been spoken yet
        outline=3,
        shadow=1,
        marginl=60,
        marginr=60,
        marginv=54,
        encoding=-1 if any(cue.right_to_left for cue in cues) else 1,  # for libass, -1 is to find out the direction
    )
    return file.to_string("ass")


def _ass_lines(cue: Cue) -> str:
    time = round(cue.start, -1)

    def marked(piece: Piece) -> str:
        nonlocal time
        text = _ass_text(piece.text)
        if piece.start is None or piece.end is None:
            return text
        start = max(time, round(piece.start, -1))
        wait, time, before = start - time, max(start, round(piece.end, -1)), start
        return (f"{{\\k{wait // 10}}}" if wait else "") + f"{{\\k{(time - before) // 10}}}{text}"

    lines = _lines(cue, marked)
    return f"{{\\an8}}{lines}" if cue.beside_speech else lines


def _ass_text(text: str) -> str:
    # What is between braces are tags, and \N, \n and \h are white space. Not all players have escapes for these.
    return text.translate(_BRACES).replace("\\", f"\\{_WORD_JOINER}")


def _lines(cue: Cue, marked: Callable[[Piece], str]) -> str:
    """Return the lines of a cue, as pysubs2 takes them.

    Args:
        cue: The cue.
        marked: Writes the text of a piece in the syntax of a format, with what marks it while it is spoken.
    """
    lines = ("".join(marked(piece) + piece.space for piece in line).rstrip(" ") for line in cue.lines)
    return r"\N".join(map(_EMBEDDED.format, lines) if cue.right_to_left else lines)


def _file(cues: Iterable[tuple[int, int, str]]) -> SSAFile:
    import pysubs2

    file = pysubs2.SSAFile()
    file.extend(pysubs2.SSAEvent(start, end, text) for start, end, text in cues)
    return file


_FORMATS: Mapping[SubtitleFormat, tuple[Callable[[Sequence[Cue]], str], int]] = {
    "vtt": (_webvtt, _LAST_MS),
    "srt": (_subrip, _LAST_MS),
    "ass": (_ass, _LAST_ASS_MS),
}
"""How each format is written, and the last time that it can express."""

SUBTITLE_FORMATS: tuple[SubtitleFormat, ...] = tuple(_FORMATS)
"""All formats of subtitles."""
