"""Who speaks: the names that exports and pages show, and RTTM (Rich Transcription Time Marked).

The user gives names in `speakers.toml` in an output folder. For example, for all sources, and then for one of them::

    [speakers]
    "channel 1" = "Agent"

    [sources."/calls/17.wav"]
    "channel 1" = "Ms Okafor"

Records keep the speakers as they were found, so names can be changed at any time.
"""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from reelscribe.errors import UsageError, brief
from reelscribe.export.annotations_reader import AnnotatedSource, FlaggedUtterance
from reelscribe.export.cues import one_line, player_milliseconds

NAME = "speakers.toml"
"""Name of the file with the names of speakers in an output folder."""

_Names = Mapping[str, str]


class SpeakerNames:
    """The names of speakers, and which speakers were found while they were used."""

    def __init__(self, everywhere: _Names, of_sources: Mapping[str, _Names], file: str = NAME) -> None:
        """Take the names.

        Args:
            everywhere: The name to show for each speaker, as records have it.
            of_sources: The same for single sources, by their paths as they were given, or their absolute paths.
            file: Path of the file that has them, for messages.
        """
        self._everywhere, self._of_sources, self._file = everywhere, of_sources, file
        self._found: set[str] = set()
        self._found_in = defaultdict[str, set[str]](set)

    @property
    def any_found(self) -> bool:
        """True if a source that was named had a speaker."""
        return bool(self._found)

    def of(self, paths: Iterable[str], speakers: Iterable[str | None]) -> dict[str, str]:
        """Return the name to show for each speaker of a source.

        Args:
            paths: The paths by which the source may be named: as it was given, and its absolute path.
            speakers: The speakers that its record has; None where nobody knows who speaks.
        """
        found = {speaker for speaker in speakers if speaker is not None}
        self._found |= found
        names = {speaker: self._everywhere.get(speaker, speaker) for speaker in found}
        for path in set(paths) & self._of_sources.keys():
            self._found_in[path] |= found
            names |= {speaker: name for speaker, name in self._of_sources[path].items() if speaker in found}
        return names

    def applied(self, source: AnnotatedSource) -> AnnotatedSource:
        """Return a source with the names of its speakers in their places."""
        transcript, voices = source.transcript, source.speakers
        said = [*transcript.utterances, *(transcript.translations or ())] if transcript else []
        speakers = [each.speaker for each in (*said, *(voices.turns if voices else ()))]
        names = self.of((source.path, source.absolute_path), speakers) if transcript or voices else {}
        if all(speaker == name for speaker, name in names.items()):
            return source

        def named(segments: Iterable[FlaggedUtterance]) -> list[FlaggedUtterance]:
            return [replace(each, speaker=each.speaker and names[each.speaker]) for each in segments]

        if transcript:
            translations = None if transcript.translations is None else named(transcript.translations)
            transcript = replace(transcript, utterances=named(transcript.utterances), translations=translations)
        if voices:
            voices = replace(voices, turns=[replace(each, speaker=names[each.speaker]) for each in voices.turns])
        return replace(source, transcript=transcript, speakers=voices)

    def unused(self) -> list[str]:
        """Return a line for each name that is of nothing, once all sources have been named."""
        lines = []
        for path, names in self._of_sources.items():
            if path not in self._found_in:
                lines.append(f"{self._file}: no source with a transcript has the path {path!r} in its record")
            else:
                lines += self._unknown(names, self._found_in[path], f" of {path}")
        return lines + self._unknown(self._everywhere, self._found, "")

    def _unknown(self, names: _Names, found: set[str], where: str) -> list[str]:
        known = ", ".join(map(repr, sorted(found))) or "no speakers"
        return [
            f"{self._file}: no record has the speaker {name!r}{where}; they have {known}"
            for name in sorted(names.keys() - found)
        ]


def read_speaker_names(folder: Path) -> SpeakerNames:
    """Read the names of speakers in an output folder; there are none if it has no `speakers.toml`.

    Args:
        folder: The output folder.

    Raises:
        UsageError: The file cannot be read, or is not as described above.
    """
    path = folder / NAME
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows write a mark first
    except FileNotFoundError:
        return SpeakerNames({}, {})
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read: {reason}; correct it, or remove it") from None
    if unknown := sorted(value.keys() - {"speakers", "sources"}):
        raise UsageError(f"{path}: expected the tables [speakers] and [sources.PATH], got {unknown[0]!r}")
    sources = _table(path, value.get("sources", {}))
    of_sources = {source: _names(path, names) for source, names in sources.items()}
    return SpeakerNames(_names(path, value.get("speakers", {})), of_sources, str(path))


def _table(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a table of names by speakers, got {brief(value)}")
    return value


def _names(path: Path, value: Any) -> _Names:
    for speaker, name in _table(path, value).items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UsageError(f"{path}: {speaker!r}: expected a name of one line in quotes, got {brief(name)}")
    return dict(value)


def rttm(source: AnnotatedSource) -> str:
    """Return who speaks when in a source, as RTTM; empty if nobody knows.

    Programs that compare speakers, such as pyannote.metrics and dscore, read it. Its fields are separated by spaces,
    and no field may have one.

    If voices were told apart, its lines are their turns, which may overlap; otherwise they are the segments.

    Args:
        source: The annotations of the source. Times count from the time at which players start it.
    """
    file = _rttm_field(os.path.splitext(os.path.basename(source.path))[0])
    lines = []
    said = source.transcript.utterances if source.transcript else []
    for each in source.speakers.turns if source.speakers else said:
        if each.speaker is not None:
            start, end = (player_milliseconds(time, source.start_seconds) for time in (each.start, each.end))
            times = f"{start / 1000:.3f} {max(1, end - start) / 1000:.3f}"
            lines.append(f"SPEAKER {file} 1 {times} <NA> <NA> {_rttm_field(each.speaker)} <NA> <NA>\n")
    return "".join(lines)


def _rttm_field(text: str) -> str:
    return one_line(text).replace(" ", "_") or "_"
