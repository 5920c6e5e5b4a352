"""Transcripts as plain text, to read, search and quote: one file for each source in which somebody speaks.

A segment has a line of its own. An empty line, which begins a paragraph, is where nobody speaks for PAUSE_SECONDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reelscribe.contract.outcomes import Utterance
from reelscribe.export.annotations_reader import AnnotatedSource
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.cues import one_line

PAUSE_SECONDS = 2.0
"""Shortest pause that begins a paragraph, in seconds; between sentences, people rarely pause for longer than one."""


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


def transcript_texts(source: AnnotatedSource, rules: CueRules) -> list[str]:
    """Return what is said in a source as plain text, as it is and in English; each is empty if there is none.

    Args:
        source: The annotations of the source.
        rules: Whether the name of who speaks is before what they say.
    """
    said = source.transcript
    texts = (said.utterances, said.translations or ()) if said else ((), ())
    return [plain_text(text, speaker_names=rules.speaker_names) for text in texts]
