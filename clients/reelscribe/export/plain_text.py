"""Transcripts as plain text, to read, search and quote: one file for each source in which somebody speaks.

A segment has a line of its own. An empty line, which begins a paragraph, is where nobody speaks for PAUSE_SECONDS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from reelscribe.contract.outcomes import Utterance
from reelscribe.export.annotations_reader import AnnotatedSource
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.cues import one_line
from reelscribe.export.folder import ExportFolder, FileNames

PAUSE_SECONDS = 2.0
"""Shortest pause that begins a paragraph, in seconds; between sentences, people rarely pause for longer than one."""

_FOLDER = "txt"


def plain_text(utterances: Sequence[Utterance], *, speaker_names: bool = False) -> str:
    """Return a transcript as plain text: a line for each segment, and an empty line for each longer pause.

    Args:
        utterances: The segments, in the order of time.
        speaker_names: Whether the name of who speaks is before what they say.

    Returns:
        The text; empty if no segment has any.
    """
    lines: list[str] = []
    end = 0.0
    for utterance in utterances:
        if text := one_line(utterance.text):
            if lines and utterance.start - end >= PAUSE_SECONDS:
                lines.append("")
            lines.append(one_line(replace(utterance, text=text).line) if speaker_names else text)
            end = max(end, utterance.end)
    return "".join(f"{line}\n" for line in lines)


def text_writer(folder: ExportFolder, common_folder: str, rules: CueRules) -> Callable[[AnnotatedSource], None]:
    """Return a function that writes the transcript of one source, if anybody speaks in it.

    Args:
        folder: Folder of the export.
        common_folder: Deepest folder that holds all sources, from `folder.common_folder_of`.
        rules: Whether the name of who speaks is before what they say.

    Returns:
        The function. It raises UsageError if the file cannot be written.
    """
    names = FileNames(common_folder, f".{_FOLDER}")

    def write(source: AnnotatedSource) -> None:
        if source.transcript and (text := plain_text(source.transcript.utterances, speaker_names=rules.speaker_names)):
            with folder.file(f"{_FOLDER}/{names.name_for(source.absolute_path)}.{_FOLDER}") as partial:
                partial.write_text(text, encoding="utf-8", errors="backslashreplace")

    return write
