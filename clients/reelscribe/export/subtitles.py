"""Subtitles: the text of WebVTT and SubRip files, and one file of them for each source."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from reelscribe.export.annotated import AnnotatedSource
from reelscribe.export.cues import Cue, CueSource, cues_of, intervals_of
from reelscribe.export.folder import ExportFolder
from reelscribe.export.names import FileNames

_WORD_JOINER = "\u2060"  # an invisible character
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_SRT_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_NUMBER_AND_TIMES = re.compile(r"^(\d+)\n\S+ --> \S+$", re.MULTILINE)


def webvtt(cues: Sequence[Cue]) -> str:
    """Return the text of a WebVTT file. What is seen beside speech is shown at the top of the picture.

    Args:
        cues: Cues in the order of `start`.
    """
    content = _file_content("vtt", ((cue.start, cue.end, _webvtt_text(cue.text)) for cue in cues))
    # pysubs2 writes no cue settings. No text can be mistaken for the times of a cue, because its ">" is escaped.
    return _NUMBER_AND_TIMES.sub(
        lambda head: f"{head[0]} line:0" if cues[int(head[1]) - 1].beside_speech else head[0], content
    )


def subrip(cues: Sequence[Cue]) -> str:
    """Return the text of a SubRip file. Speech and what is seen meanwhile become lines of one cue, speech last.

    Args:
        cues: Cues in the order of `start`.
    """
    if not any(cue.beside_speech for cue in cues):
        return _file_content("srt", ((cue.start, cue.end, _subrip_text(cue.text)) for cue in cues))
    merged = (
        (interval.start, interval.end, r"\N".join(_subrip_text(cue.text) for cue in interval.cues))
        for interval in intervals_of(cues)
    )
    return _file_content("srt", merged)


def subtitle_writer(
    to_text: Callable[[Sequence[Cue]], str], suffix: str, folder: ExportFolder, common_folder: str, made_from: CueSource
) -> Callable[[AnnotatedSource], None]:
    """Return a function that writes the subtitles of one source, if it has a cue.

    Args:
        to_text: Makes the text of a file from its cues.
        suffix: Suffix of the files without the dot, which is also the name of their folder.
        folder: Folder of the export.
        common_folder: Deepest folder that holds all sources, from `names.common_folder_of`.
        made_from: The annotations that cues are made from.

    Returns:
        The function. It raises UsageError if the file cannot be written.
    """
    names = FileNames(common_folder, f".{suffix}")

    def write(source: AnnotatedSource) -> None:
        if cues := cues_of(source, made_from):
            with folder.file(f"{suffix}/{names.name_for(source.absolute_path)}.{suffix}") as partial:
                partial.write_text(to_text(cues), encoding="utf-8", errors="backslashreplace")

    return write


def _file_content(kind: Literal["vtt", "srt"], cues: Iterable[tuple[int, int, str]]) -> str:
    import pysubs2

    subtitles = pysubs2.SSAFile()
    subtitles.extend(pysubs2.SSAEvent(start, end, text) for start, end, text in cues)
    return subtitles.to_string(kind, keep_ssa_tags=True)


def _webvtt_text(text: str) -> str:
    # pysubs2 turns \N, \n and \h into white space, and WebVTT has no escape for a backslash.
    return html.escape(text, quote=False).replace("\\", f"\\{_WORD_JOINER}")


def _subrip_text(text: str) -> str:
    # SubRip has no escapes, and players hide text that looks like a tag. A word joiner within it prevents that, except
    # for text in braces, which are replaced by full-width braces.
    return _SRT_MARKUP.sub(rf"\g<0>{_WORD_JOINER}", text).translate(_SRT_BRACES)
