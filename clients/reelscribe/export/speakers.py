"""Who speaks: the names that exports and pages show, and RTTM (Rich Transcription Time Marked).

The user gives names in `speakers.toml` in an output folder. For example, for all sources, and then for one of them::

    [speakers]
    "channel 1" = "Agent"

    [sources."/calls/17.wav"]
    "channel 1" = "Ms Okafor"

Records keep the speakers as they were found, so names can be changed at any time, also by pages. These change single
names in the file, and leave everything else in it as it is.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from reelscribe._files import atomic_file, locked_file, read_small, read_small_file
from reelscribe.errors import UsageError, brief
from reelscribe.export.annotations_reader import AnnotatedSource, FlaggedUtterance
from reelscribe.export.cues import one_line, player_milliseconds
from reelscribe.results.escaping import escape_surrogates

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
        self.everywhere = everywhere
        """The name to show for each speaker, where the source has none of its own."""
        self._of_sources, self._file = of_sources, file
        self._found: set[str] = set()
        self._found_in = defaultdict[str, set[str]](set)

    @property
    def any_found(self) -> bool:
        """True if a source that was named had a speaker."""
        return bool(self._found)

    def of_source(self, paths: Sequence[str]) -> _Names:
        """Return the names that are of one source alone.

        Args:
            paths: The paths by which it may be named; the names of the last one count most.
        """
        return {speaker: name for path in paths for speaker, name in self._of_sources.get(path, {}).items()}

    def of(self, paths: Sequence[str], speakers: Iterable[str | None]) -> dict[str, str]:
        """Return the name to show for each speaker of a source.

        Args:
            paths: The paths by which the source may be named: as it was given, and its absolute path.
            speakers: The speakers that its record has; None where nobody knows who speaks.
        """
        found = {speaker for speaker in speakers if speaker is not None}
        self._found |= found
        for path in set(paths) & self._of_sources.keys():
            self._found_in[path] |= found
        names = {**self.everywhere, **self.of_source(paths)}
        return {speaker: names.get(speaker, speaker) for speaker in found}

    def applied(self, source: AnnotatedSource) -> AnnotatedSource:
        """Return a source with the names of its speakers in their places."""
        transcript, voices = source.transcript, source.speakers
        said = [*transcript.utterances, *(transcript.translations or ())] if transcript else []
        speakers = [each.speaker for each in (*said, *(voices.turns if voices else ()))]
        paths = [escape_surrogates(path) for path in (source.path, source.absolute_path)]  # as the record has them
        names = self.of(paths, speakers) if transcript or voices else {}
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
        return lines + self._unknown(self.everywhere, self._found, "")

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
        return _parsed(path, read_small_file(path))
    except (FileNotFoundError, NotADirectoryError):  # whoever needs the folder says that it is a file
        return SpeakerNames({}, {})
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from None


@dataclass(frozen=True)
class NameChange:
    """Another name for a speaker, as somebody wants it who saw the name that was there."""

    speaker: str
    """The speaker, as records have it."""
    everywhere: bool
    """Whether the name is for all sources; otherwise it is for one."""
    before: str
    """The name that was seen; empty for none."""
    name: str
    """The name to write; empty to take it away."""


def change_speaker_names(folder: Path, paths: Sequence[str], changes: Sequence[NameChange]) -> None:
    """Change names in the `speakers.toml` of an output folder, which is made if there is none; all of them, or none.

    Comments, and all other names, stay as they are. A name that is no longer the one that was seen is not replaced.

    Args:
        folder: The output folder.
        paths: The paths by which the source may be named: as it was given, and its absolute path.
        changes: The changes.

    Raises:
        UsageError: One cannot be made, or the file cannot be read, written to, or be changed without loss.
    """
    path = folder / NAME
    if not changes:
        return
    for each in changes:
        if each.name and not _is_name(each.name):
            rule = "expected a name of one line of characters that are visible"
            raise UsageError(f"{each.speaker!r}: {rule}, got {brief(each.name)}; correct it, and save again")
    try:
        with locked_file(path) as file:
            changed = _changed(path, read_small(file), paths, changes)
            with atomic_file(path, durable=True) as new:
                new.write(changed.encode())
                os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    except OSError as error:
        reason = "a symbolic link" if path.is_symlink() else error.strerror or error
        expected = "expected a file and a folder that can be written to"
        raise UsageError(f"{path}: {expected}, got: {reason}; nothing was saved; correct it, and save again") from None


def _changed(path: Path, content: bytes, paths: Sequence[str], changes: Sequence[NameChange]) -> str:
    """Return the text of the file with changes. Raises UsageError as `change_speaker_names` does."""
    names = _parsed(path, content)
    own = names.of_source(paths)
    for each in changes:
        now = (names.everywhere if each.everywhere else own).get(each.speaker, "")
        if now not in (each.before, each.name):
            expected = f"expected {each.speaker!r} to have the name {brief(each.before)}, as the page showed"
            raise UsageError(f"{path}: {expected}, got {brief(now)}; look who wrote it, or save again to replace it")
    text = content.decode("utf-8-sig")
    wanted = tomllib.loads(text)
    try:
        document = tomlkit.parse(text)
        for each in changes:
            _change(wanted, paths, each)
            _change(document, paths, each)
        changed = tomlkit.dumps(document)
        if tomllib.loads(changed) == wanted:
            return changed
    except (TOMLKitError, ValueError):
        pass  # as below
    expected = "expected the tables [speakers] and [sources.PATH] with a line for each name"
    raise UsageError(f"{path}: {expected}, got what cannot be changed without loss; write the names there by hand")


def _change(content: MutableMapping[str, Any], paths: Sequence[str], change: NameChange) -> None:
    """Change a name in the content of the file."""
    tables, keys = (content, ["speakers"]) if change.everywhere else (content.setdefault("sources", {}), paths)
    having = [tables[key] for key in dict.fromkeys(keys) if change.speaker in tables.get(key, ())]
    for names in having:
        if change.name:
            names[change.speaker] = change.name
        else:
            del names[change.speaker]
    if change.name and not having:
        key = next((key for key in keys if key in tables), keys[-1])
        if key in tables:
            _append(tables[key], change.speaker, change.name)
        else:
            tables[key] = {change.speaker: change.name}


def _append(names: MutableMapping[str, Any], speaker: str, name: str) -> None:
    """Add a name after the others of a table, before comments that may be about what follows it."""
    body = names.value.body if isinstance(names, Table) else []
    end = max((k + 1 for k, (key, _) in enumerate(body) if key is not None), default=0)
    rest = body[end:]
    del body[end:]
    names[speaker] = name
    body.extend(rest)


def _parsed(path: Path, content: bytes) -> SpeakerNames:
    """Return the names in the content of the file. Raises UsageError if it is not as described above."""
    try:
        value = tomllib.loads(content.decode("utf-8-sig"))  # editors of Windows write a mark first
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from None
    if unknown := sorted(value.keys() - {"speakers", "sources"}):
        raise UsageError(f"{path}: expected the tables [speakers] and [sources.PATH], got {unknown[0]!r}")
    sources = _table(path, value.get("sources", {}))
    of_sources = {source: _names(path, names) for source, names in sources.items()}
    return SpeakerNames(_names(path, value.get("speakers", {})), of_sources, str(path))


def _unreadable(path: Path, reason: object) -> UsageError:
    return UsageError(f"{path}: cannot be read: {reason}; correct it, or remove it")


def _table(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a table of names by speakers, got {brief(value)}")
    return value


def _names(path: Path, value: Any) -> _Names:
    for speaker, name in _table(path, value).items():
        if not isinstance(name, str) or not _is_name(name):
            raise UsageError(f"{path}: {speaker!r}: expected a name of one line in quotes, got {brief(name)}")
    return dict(value)


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable()


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
