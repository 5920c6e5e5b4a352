"""Subtitles: when which text is shown (the cues), and the WebVTT and SubRip files of them, one for each source.

docs/exports.md gives the reasons for the rules.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from reelscribe.contract.outcomes import Segment, Utterance
from reelscribe.contract.speech import Word
from reelscribe.export.annotations_reader import AnnotatedSource, ClipText
from reelscribe.export.folder import ExportFolder, FileNames

CueSource = Literal["auto", "captions", "clips", "transcript", "both"]
"""The annotations that cues are made from. "both" means what is said and what is seen: the transcript, and the
descriptions of clips or, where there are none, the captions. "auto" means the transcript if anybody speaks, or else the
descriptions of clips, or else the captions.
"""

_LAST_MS = 100 * 3_600_000 - 1  # pysubs2 writes hours with two digits, as players of SubRip expect
# Broadcasters' rules for what viewers can read at once: two lines of 42 characters, for 7 seconds.
_MAX_SECONDS = 7.0
_MAX_CHARACTERS = 84
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
"""A code of a language, such as "en" or "pt-BR". It becomes part of a name, and a server may say anything."""
_WORD_JOINER = "\u2060"  # an invisible character
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_SRT_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_NUMBER_AND_TIMES = re.compile(r"^(\d+)\n\S+ --> \S+$", re.MULTILINE)


class Cue(NamedTuple):
    """One line of text that is shown for some time."""

    start: int
    """Time at which it appears, in milliseconds since the time at which players start the file."""
    end: int
    """Time at which it disappears, in milliseconds; at least 1 ms after `start`."""
    text: str
    beside_speech: bool = False
    """True if this is a caption or a description of a clip, of a source that has a transcript too; its text is in
    brackets.
    """
    speaker: str | None = None
    """Name of who says it; None if that is not known."""


class CueInterval(NamedTuple):
    """An interval of time in which the same cues are shown."""

    start: int
    """Start of the interval, in milliseconds like `Cue.start`."""
    end: int
    """End of the interval, in milliseconds."""
    cues: list[Cue]
    """At least one; what is seen comes before speech."""


def cues_of(source: AnnotatedSource, made_from: CueSource) -> list[Cue]:
    """Make the cues of a source.

    Args:
        source: The annotations of the source.
        made_from: The annotations that cues are made from.

    Returns:
        The cues in the order of `start`; what is seen and what is said may overlap.
    """
    said = source.transcript and source.transcript.utterances
    if made_from == "auto":
        made_from = "transcript" if said else "clips" if _has_clips(source) else "captions"
    seen = _seen(source, made_from)
    said = said if made_from in ("transcript", "both") else None
    beside_speech = seen is not None and said is not None
    cues = [_cue(segment, source.start_seconds, beside_speech) for segment in seen or ()]
    for utterance in said or ():
        spoken = (_cue(segment, source.start_seconds) for segment in _readable_segments(utterance))
        speaker = one_line(utterance.speaker or "") or None
        cues += [cue and cue._replace(speaker=speaker) for cue in spoken]
    return sorted((cue for cue in cues if cue), key=lambda cue: cue.start)


def intervals_of(cues: Sequence[Cue]) -> Iterator[CueInterval]:
    """Split time at each start and end of a cue, and yield the intervals in which at least one cue is shown.

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


def one_line(text: str) -> str:
    """Return a text on one line: white space and control characters become one space, and none is at its ends."""
    return " ".join(_CONTROL_CHARACTER.sub(" ", text).split())


def player_milliseconds(time: float, start_seconds: float) -> int:
    """Return a time as players count it, in milliseconds from 0.

    Args:
        time: Presentation time, in seconds.
        start_seconds: Presentation time at which players start the file, in seconds.
    """
    return max(0, round((time - start_seconds) * 1000))


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


def _cue(segment: Segment, start_seconds: float, beside_speech: bool = False) -> Cue | None:
    """Return the cue of a segment; None if its text is empty, or it starts later than subtitles can express."""
    start, end = (player_milliseconds(time, start_seconds) for time in (segment.start, segment.end))
    text = one_line(segment.text)
    if not text or start >= _LAST_MS:
        return None
    return Cue(start, min(max(end, start + 1), _LAST_MS), f"[{text}]" if beside_speech else text, beside_speech)


def _readable_segments(utterance: Utterance) -> Iterator[Segment]:
    """Cut an utterance before words into segments that viewers can read at once.

    A short utterance, or one whose words have no times, remains one segment.
    """
    start, end, text, words = utterance.start, utterance.end, utterance.text, utterance.words or ()
    offsets = _word_offsets(words, text)
    if not offsets or (end - start <= _MAX_SECONDS and len(text) <= _MAX_CHARACTERS):
        yield Segment(start, end, text)
        return
    first = 0
    for number, offset in enumerate(offsets[1:], 1):
        too_long = words[number].end - words[first].start > _MAX_SECONDS
        if too_long or offset + len(words[number].text) - offsets[first] > _MAX_CHARACTERS:
            yield Segment(words[first].start, words[number - 1].end, text[offsets[first] : offset])
            first = number
    yield Segment(words[first].start, words[-1].end, text[offsets[first] :])


def _word_offsets(words: Sequence[Word], text: str) -> list[int]:
    """Return the offset in `text` at which each word begins; empty if a word is not in it.

    Joining the words would not do: only the text shows whether there are spaces between them, and Chinese has none.
    """
    offsets, stop = list[int](), 0
    for word in words:
        offset = text.find(word.text, stop)
        if offset < 0:
            return []
        offsets.append(offset)
        stop = offset + len(word.text)
    return offsets


def webvtt(cues: Sequence[Cue]) -> str:
    """Return the text of a WebVTT file. What is seen beside speech is shown at the top of the picture.

    What somebody says is in a voice span with their name.

    Args:
        cues: Cues in the order of `start`.
    """
    content = _file_content("vtt", ((cue.start, cue.end, _webvtt_voice(cue)) for cue in cues))
    # pysubs2 writes no cue settings. No text can be mistaken for the times of a cue, because its ">" is escaped.
    return _NUMBER_AND_TIMES.sub(
        lambda head: f"{head[0]} line:0" if cues[int(head[1]) - 1].beside_speech else head[0], content
    )


def subrip(cues: Sequence[Cue], *, speaker_names: bool = False) -> str:
    """Return the text of a SubRip file. What is shown at the same time becomes lines of one cue, speech last.

    Args:
        cues: Cues in the order of `start`.
        speaker_names: Whether the name of who speaks is before what they say.
    """
    if speaker_names:
        cues = [cue._replace(text=f"{cue.speaker}: {cue.text}") if cue.speaker else cue for cue in cues]
    if not any(cue.beside_speech or cue.speaker for cue in cues):
        return _file_content("srt", ((cue.start, cue.end, _subrip_text(cue.text)) for cue in cues))
    merged = (
        (interval.start, interval.end, r"\N".join(_subrip_text(cue.text) for cue in interval.cues))
        for interval in intervals_of(cues)
    )
    return _file_content("srt", merged)


def subtitle_content(to_text: Callable[[Sequence[Cue]], str], source: AnnotatedSource, made_from: CueSource) -> bytes:
    """Return the content of the file of subtitles of a source; empty if it has no cue.

    Args:
        to_text: Makes the text of the file from its cues.
        source: The annotations of the source.
        made_from: The annotations that cues are made from.
    """
    cues = cues_of(source, made_from)
    return to_text(cues).encode(errors="backslashreplace") if cues else b""


def shown_language(source: AnnotatedSource, made_from: CueSource) -> str | None:
    """Return the language of what is said, as its code, if cues of a source show it.

    Args:
        source: The annotations of the source.
        made_from: The annotations that cues are made from.

    Returns:
        The language that is spoken for the longest time; None if cues show no speech, or it is not known.
    """
    seconds = defaultdict[str, float](float)
    if source.transcript and made_from not in ("captions", "clips"):
        for each in source.transcript.utterances:
            if each.language and _LANGUAGE.fullmatch(each.language):
                seconds[each.language] += each.end - each.start
    return max(seconds, key=lambda language: seconds[language], default=None)


def subtitle_writer(
    to_text: Callable[[Sequence[Cue]], str], suffix: str, folder: ExportFolder, common_folder: str, made_from: CueSource
) -> Callable[[AnnotatedSource], None]:
    """Return a function that writes the subtitles of one source, if it has a cue.

    Args:
        to_text: Makes the text of a file from its cues.
        suffix: Suffix of the files without the dot, which is also the name of their folder.
        folder: Folder of the export.
        common_folder: Deepest folder that holds all sources, from `folder.common_folder_of`.
        made_from: The annotations that cues are made from.

    Returns:
        The function. It raises UsageError if the file cannot be written.
    """
    names = FileNames(common_folder, f".{suffix}")

    def write(source: AnnotatedSource) -> None:
        if content := subtitle_content(to_text, source, made_from):
            with folder.file(f"{suffix}/{names.name_for(source.absolute_path)}.{suffix}") as partial:
                partial.write_bytes(content)

    return write


def _file_content(kind: Literal["vtt", "srt"], cues: Iterable[tuple[int, int, str]]) -> str:
    import pysubs2

    subtitles = pysubs2.SSAFile()
    subtitles.extend(pysubs2.SSAEvent(start, end, text) for start, end, text in cues)
    return subtitles.to_string(kind, keep_ssa_tags=True)


def _webvtt_text(text: str) -> str:
    # pysubs2 turns \N, \n and \h into white space, and WebVTT has no escape for a backslash.
    return html.escape(text, quote=False).replace("\\", f"\\{_WORD_JOINER}")


def _webvtt_voice(cue: Cue) -> str:
    text = _webvtt_text(cue.text)
    return f"<v {_webvtt_text(cue.speaker)}>{text}" if cue.speaker else text


def _subrip_text(text: str) -> str:
    # SubRip has no escapes, and players hide text that looks like a tag. A word joiner within it prevents that, except
    # for text in braces, which are replaced by full-width braces.
    return _SRT_MARKUP.sub(rf"\g<0>{_WORD_JOINER}", text).translate(_SRT_BRACES)
