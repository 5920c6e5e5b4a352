"""WebVTT and SubRip, a file for each source."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from reelscribe.annotations import AnnotatedSource
from reelscribe.cues import Cue, Cues, cues_of, one_at_a_time
from reelscribe.subtitle_names import SubtitleNames
from reelscribe.whole_file import whole_file

SubtitleFormat = Literal["vtt", "srt"]

_WORD_JOINER = "\u2060"
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_SRT_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_NUMBER_AND_TIMES = re.compile(r"^(\d+)\n\S+ --> \S+$", re.MULTILINE)


def subtitle_files(
    kind: SubtitleFormat, folder: Path, names: SubtitleNames, wanted: Cues, written: list[Path]
) -> Callable[[AnnotatedSource], None]:
    """A function that writes the file of a source into `folder`, if there is a cue. It raises UsageError."""

    def write(record: AnnotatedSource) -> None:
        if cues := cues_of(record, wanted):
            content = _vtt(cues) if kind == "vtt" else _srt(cues)
            with whole_file(folder / names.of(record.path), written) as partial:
                partial.write_text(content, encoding="utf-8", errors="backslashreplace")

    return write


def _vtt(cues: Sequence[Cue]) -> str:
    content = _written("vtt", ((cue.start, cue.end, _vtt_text(cue.text)) for cue in cues))
    # pysubs2 writes no settings of cues. No text can look like a cue's times: its ">" is escaped.
    return _NUMBER_AND_TIMES.sub(
        lambda head: f"{head[0]} line:0" if cues[int(head[1]) - 1].beside_speech else head[0], content
    )


def _srt(cues: Sequence[Cue]) -> str:
    if not any(cue.beside_speech for cue in cues):
        return _written("srt", ((cue.start, cue.end, _srt_text(cue.text)) for cue in cues))
    merged = (
        (start, end, r"\N".join(_srt_text(cue.text) for cue in shown)) for start, end, shown in one_at_a_time(cues)
    )
    return _written("srt", merged)


def _written(kind: SubtitleFormat, events: Iterable[tuple[int, int, str]]) -> str:
    import pysubs2

    subtitles = pysubs2.SSAFile()
    subtitles.extend(pysubs2.SSAEvent(start, end, text) for start, end, text in events)
    return subtitles.to_string(kind, keep_ssa_tags=True)


def _vtt_text(text: str) -> str:
    # pysubs2 takes a backslash with N, n or h for white space, and WebVTT has no other way to write one.
    return html.escape(text, quote=False).replace("\\", f"\\{_WORD_JOINER}")


def _srt_text(text: str) -> str:
    # SubRip cannot escape anything, and players hide what looks like a tag. A word joiner, which is not seen, makes it
    # look otherwise to them; between braces they would hide even that.
    return _SRT_MARKUP.sub(rf"\g<0>{_WORD_JOINER}", text).translate(_SRT_BRACES)
