"""Chapters: which part of a source has which title, for FFmpeg and for video sites.

They follow the rules of video sites, which ignore a list that breaks one; a list of fewer than three chapters is
written all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from reelscribe.contract.outcomes import Segment
from reelscribe.export.annotations_reader import AnnotatedSource
from reelscribe.export.cues import one_line, player_milliseconds
from reelscribe.results.escaping import escape_surrogates

_SHORTEST_MS = 10_000  # video sites ignore lists with shorter chapters
_LONGEST_TITLE = 100
_OPENING = "Beginning"
# FFmpeg takes these as syntax, wherever they stand, unless a backslash is before them.
_FFMPEG_SYNTAX = re.compile(r"[=;#\\\n]")
_NOT_IN_A_DESCRIPTION = str.maketrans("<>", "\u2039\u203a")  # YouTube refuses a description with either


class Chapter(NamedTuple):
    """A part of a source with a title. The next chapter begins where it ends."""

    start: int
    """Time at which it begins, in milliseconds since the time at which players start the file."""
    end: int
    """Time at which it ends, in milliseconds; later than `start`."""
    title: str
    """One line of at most 100 characters, which is not empty."""


def chapters_of(source: AnnotatedSource) -> list[Chapter]:
    """Make the chapters of a source from its clips, or else from its shots, or else from its captions.

    Args:
        source: The annotations of the source.

    Returns:
        The chapters in the order of time. The first begins at 0, and each lasts 10 seconds or more, unless it is the
        only one. Empty if the source has nothing to make them from.
    """
    for segments in _possible_segments(source):
        if titled := _titled(segments, source.start_seconds):
            return _without_short_ones(_from_zero(_without_gaps(titled)))
    return []


def ffmetadata(chapters: Sequence[Chapter]) -> str:
    """Return the text of a metadata file of FFmpeg."""
    return ";FFMETADATA1\n" + "".join(
        f"[CHAPTER]\nTIMEBASE=1/1000\nSTART={chapter.start}\nEND={chapter.end}\ntitle={_ffmpeg_text(chapter.title)}\n"
        for chapter in chapters
    )


def site_lines(chapters: Sequence[Chapter]) -> str:
    """Return the lines that video sites take in the description of a video: "00:00 Title"."""
    return "".join(
        f"{_clock(chapter.start // 1000)} {chapter.title.translate(_NOT_IN_A_DESCRIPTION)}\n" for chapter in chapters
    )


def chapter_texts(source: AnnotatedSource) -> list[str]:
    """Return the chapters of a source for FFmpeg, and those for video sites; nothing if it has none.

    Args:
        source: The annotations of the source.
    """
    chapters = chapters_of(source)
    return [ffmetadata(chapters), site_lines(chapters)] if chapters else []


def _possible_segments(source: AnnotatedSource) -> Iterator[list[Segment]]:
    """Yield what chapters can be made from, the best first."""
    if source.clips:
        yield [Segment(clip.start, clip.end, clip.text) for clip in source.clips.described]
    if source.shots:
        shots = enumerate(source.shots.shots, 1)
        yield [Segment(shot.start, shot.end, f"Shot {number}") for number, shot in shots]
    if source.captions:
        yield source.captions.spans


def _titled(segments: Sequence[Segment], start_seconds: float) -> list[Chapter]:
    """Return a chapter for each segment with a text, in the order of time."""
    chapters = [
        Chapter(
            player_milliseconds(segment.start, start_seconds),
            player_milliseconds(segment.end, start_seconds),
            _title(segment.text),
        )
        for segment in segments
    ]
    return sorted((chapter for chapter in chapters if chapter.title), key=lambda chapter: chapter.start)


def _title(text: str) -> str:
    """Return a text as a title: on one line, with surrogates escaped, and cut at a word if it is too long."""
    text = one_line(escape_surrogates(text))
    if len(text) <= _LONGEST_TITLE:
        return text
    # Texts without spaces, such as Chinese ones, are cut anywhere.
    end = text.rfind(" ", _LONGEST_TITLE // 2, _LONGEST_TITLE)
    return text[: end if end > 0 else _LONGEST_TITLE - 1] + "\u2026"


def _without_gaps(chapters: Sequence[Chapter]) -> list[Chapter]:
    """Let each chapter last until the next one. Equal titles in a row become one chapter."""
    end = max(max(chapter.end for chapter in chapters), chapters[-1].start + 1)
    firsts = [next(equal) for _, equal in groupby(chapters, key=lambda chapter: chapter.title)]
    following = [chapter.start for chapter in firsts[1:]] + [end]
    return [chapter._replace(end=end) for chapter, end in zip(firsts, following, strict=True)]


def _from_zero(chapters: list[Chapter]) -> list[Chapter]:
    """Let the first chapter begin at 0; if it begins much later, a chapter of its own is before it."""
    first, *others = chapters
    if first.start >= _SHORTEST_MS:
        return [Chapter(0, first.start, _OPENING), *chapters]
    return [first._replace(start=0), *others]


def _without_short_ones(chapters: Sequence[Chapter]) -> list[Chapter]:
    """Join chapters that are too short.

    Short chapters in a row are joined to each other until they are long enough. What is still too short when a long one
    or the end comes is joined to the chapter before, or if there is none, to the one after.
    """
    joined: list[Chapter] = []
    short: Chapter | None = None
    for chapter in chapters:
        if short and _is_short(chapter):
            chapter = short._replace(end=chapter.end)
        elif short and joined:
            joined[-1] = joined[-1]._replace(end=short.end)
        elif short:
            chapter = chapter._replace(start=short.start)
        short = chapter if _is_short(chapter) else None
        if not short:
            joined.append(chapter)
    if short and joined:
        joined[-1] = joined[-1]._replace(end=short.end)
    elif short:
        joined.append(short)
    return joined


def _is_short(chapter: Chapter) -> bool:
    return chapter.end - chapter.start < _SHORTEST_MS


def _ffmpeg_text(text: str) -> str:
    # FFmpeg takes a backslash at the end of a line for an escaped line break, even if it is escaped itself.
    return _FFMPEG_SYNTAX.sub(r"\\\g<0>", text) + (" " if text.endswith("\\") else "")


def _clock(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
