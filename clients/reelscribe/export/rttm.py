"""Who speaks when, as RTTM (Rich Transcription Time Marked): a line for each segment whose speaker is known.

Programs that compare speakers, such as pyannote.metrics and dscore, read it. Its fields are separated by spaces, and no
field may have one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from reelscribe.export.annotations_reader import AnnotatedSource
from reelscribe.export.folder import ExportFolder, FileNames
from reelscribe.export.subtitles import one_line, player_milliseconds

_FOLDER = "rttm"


def rttm(source: AnnotatedSource) -> str:
    """Return who speaks when in a source; empty if nobody knows.

    Args:
        source: The annotations of the source. Times count from the time at which players start it.
    """
    file = _field(os.path.splitext(os.path.basename(source.path))[0])
    lines = []
    for each in source.transcript.utterances if source.transcript else ():
        if each.speaker is not None:
            start, end = (player_milliseconds(time, source.start_seconds) for time in (each.start, each.end))
            times = f"{start / 1000:.3f} {max(1, end - start) / 1000:.3f}"
            lines.append(f"SPEAKER {file} 1 {times} <NA> <NA> {_field(each.speaker)} <NA> <NA>\n")
    return "".join(lines)


def rttm_writer(folder: ExportFolder, common_folder: str) -> Callable[[AnnotatedSource], None]:
    """Return a function that writes who speaks when in one source, if anybody knows.

    Args:
        folder: Folder of the export.
        common_folder: Deepest folder that holds all sources, from `folder.common_folder_of`.

    Returns:
        The function. It raises UsageError if the file cannot be written.
    """
    names = FileNames(common_folder, f".{_FOLDER}")

    def write(source: AnnotatedSource) -> None:
        if text := rttm(source):
            with folder.file(f"{_FOLDER}/{names.name_for(source.absolute_path)}.{_FOLDER}") as partial:
                partial.write_text(text, encoding="utf-8", errors="backslashreplace")

    return write


def _field(text: str) -> str:
    return one_line(text).replace(" ", "_") or "_"
