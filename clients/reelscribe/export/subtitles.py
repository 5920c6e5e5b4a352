"""Subtitles: the text of WebVTT and SubRip files, and the names of the files."""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from typing import Literal

from reelscribe.export.cues import Cue, CueSource, cues_of, intervals_of
from reelscribe.export.folder import ExportFolder
from reelscribe.export.reader import AnnotatedSource

_WORD_JOINER = "\u2060"  # an invisible character
_SRT_MARKUP = re.compile(r"[<\\]|&(?=#?\w+;)|--(?=>)")
_SRT_BRACES = str.maketrans("{}", "\uff5b\uff5d")
_NUMBER_AND_TIMES = re.compile(r"^(\d+)\n\S+ --> \S+$", re.MULTILINE)

_MAX_PART_BYTES = 255  # limit of most file systems for a name without its folders
_MAX_NAME_BYTES = 1000  # for a name with its folders; a whole path has at most 4096, and the export folder may be deep
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # not \udc80-\udcff: os.fsdecode makes them from bytes


def webvtt(cues: Sequence[Cue]) -> str:
    """Return the text of a WebVTT file. Captions beside speech are shown at the top of the picture.

    Args:
        cues: Cues in the order of `start`.
    """
    content = _file_content("vtt", ((cue.start, cue.end, _webvtt_text(cue.text)) for cue in cues))
    # pysubs2 writes no cue settings. No text can be mistaken for the times of a cue, because its ">" is escaped.
    return _NUMBER_AND_TIMES.sub(
        lambda head: f"{head[0]} line:0" if cues[int(head[1]) - 1].beside_speech else head[0], content
    )


def subrip(cues: Sequence[Cue]) -> str:
    """Return the text of a SubRip file. Cues that would overlap become lines of one cue, captions first.

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
        common_folder: Deepest folder that holds all sources, from `common_folder_of`.
        made_from: The annotations that cues are made from.

    Returns:
        The function. It raises UsageError if the file cannot be written.
    """
    names = SubtitleNames(common_folder, f".{suffix}")

    def write(source: AnnotatedSource) -> None:
        if cues := cues_of(source, made_from):
            with folder.file(f"{suffix}/{names.name_for(source.absolute_path)}") as partial:
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


def common_folder_of(paths: Iterable[str]) -> str:
    """Return the absolute path of the deepest folder that holds all of `paths`; empty if there are none."""
    folder = ""
    for path in paths:
        parent = os.path.dirname(_absolute(path))
        folder = os.path.commonpath([folder, parent]) if folder else parent
    return folder


class SubtitleNames:
    """Gives each source a unique name for its file, which never leads out of the folder of subtitles."""

    def __init__(self, common_folder: str, suffix: str) -> None:
        """Name files after their sources.

        Args:
            common_folder: Absolute path of a folder that holds all sources.
            suffix: Suffix of the files, with its dot.
        """
        self._common_folder, self._suffix = common_folder, suffix
        self._taken: set[str] = set()

    def name_for(self, path: str) -> str:
        """Return a new name, with folders, for the file of the source at `path`."""
        # An absolute path has no "..", whatever the common folder is.
        parts = [part for part in _absolute(path).removeprefix(self._common_folder).split("/") if part] or ["_"]
        folders = [_shortened(self._folder_name(part), _MAX_PART_BYTES) for part in parts[:-1]]
        # Leave room for the number below, up to 9,999,999, and for the suffix of a file that is not whole.
        last = _shortened(parts[-1], _MAX_PART_BYTES - len(f"~9999999{self._suffix}.partial"))
        name = "/".join([*folders, last])
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            name = last
        candidates = chain([name], (f"{name}~{number}" for number in count(2)))
        free = next(candidate for candidate in candidates if candidate not in self._taken)
        self._taken.add(free)
        return free + self._suffix

    def _folder_name(self, part: str) -> str:
        """Return a name that no subtitle file has: beside x.mp4, with the file x.mp4.vtt, may be a folder x.mp4.vtt."""
        return f"{part}_" if part.endswith((self._suffix, ".partial")) else part


def _absolute(path: str) -> str:
    """Return the absolute path, spelled as the file system would return it, with invalid characters replaced."""
    return os.path.abspath(os.fsdecode(os.fsencode(_NOT_IN_A_NAME.sub("_", path))))


def _shortened(part: str, max_bytes: int) -> str:
    """Return a part of a path, or if it is longer than `max_bytes`, its beginning and a digest of all of it."""
    encoded = os.fsencode(part)
    if len(encoded) <= max_bytes:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    return f"{encoded[: max_bytes - 13].decode(errors='ignore')}-{digest}"
