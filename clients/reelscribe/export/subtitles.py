"""WebVTT and SubRip files, one for each source, and their names."""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Literal

from reelscribe._files import atomic_file
from reelscribe.export.annotations import AnnotatedSource
from reelscribe.export.cues import Cue, Cues, cues_of, one_at_a_time

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
            with atomic_file(folder / names.of(record.path), written) as partial:
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


_LONGEST_PART = 255  # bytes of a file's name, on most file systems
_LONGEST_NAME = 1000  # bytes of a name with its folders; what they go to may be deep too, and 4096 is the most
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # the surrogates between stand for bytes


def common_folder(paths: Iterable[str]) -> str:
    """The deepest folder that all sources are in, absolute; empty for none."""
    folder = ""
    for path in paths:
        parent = os.path.dirname(_absolute(path))
        folder = os.path.commonpath([folder, parent]) if folder else parent
    return folder


class SubtitleNames:
    """Names of sources' files: never alike, and never outside of the folder they go to."""

    def __init__(self, folder: str, suffix: str) -> None:
        self._folder, self._suffix = folder, suffix
        self._taken: set[str] = set()

    def of(self, path: str) -> str:
        """The name, with folders, for the source at `path`; a new one each time."""
        # Of an absolute path, so that there is no ".." whatever the folder is.
        parts = [part for part in _absolute(path).removeprefix(self._folder).split("/") if part] or ["_"]
        folders = [_shortened(self._no_file(part), _LONGEST_PART) for part in parts[:-1]]
        # Room for the number below, up to 9,999,999, and for what a file is called until it is whole.
        last = _shortened(parts[-1], _LONGEST_PART - len(f"~9999999{self._suffix}.partial"))
        name = "/".join([*folders, last])
        if len(os.fsencode(name)) > _LONGEST_NAME:
            name = last
        numbered = chain([name], (f"{name}~{number}" for number in count(2)))
        free = next(candidate for candidate in numbered if candidate not in self._taken)
        self._taken.add(free)
        return free + self._suffix

    def _no_file(self, folder: str) -> str:
        """Beside x.mp4, whose file is x.mp4.vtt, there may be a folder x.mp4.vtt."""
        return f"{folder}_" if folder.endswith((self._suffix, ".partial")) else folder


def _absolute(path: str) -> str:
    """The path as the file system would tell it: each name is spelled in one way."""
    return os.path.abspath(os.fsdecode(os.fsencode(_NOT_IN_A_NAME.sub("_", path))))


def _shortened(part: str, longest: int) -> str:
    """`part`, or its beginning and a digest of all of it where it has more bytes than `longest`."""
    encoded = os.fsencode(part)
    if len(encoded) <= longest:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    return f"{encoded[: longest - 13].decode(errors='ignore')}-{digest}"
