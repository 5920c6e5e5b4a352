"""The precedence of options that come from several places: command line, environment, and two files.

A value that is nearer to the user replaces one of the same option. It also replaces what contradicts it: `--every 10`
on the command line replaces `fps = 2` in a file. And the key of a server is for no other server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALTERNATIVES = (
    frozenset({"every", "fps", "frames", "keyframes", "per_shot", "all_frames"}),
    frozenset({"quiet", "json_log"}),
    frozenset({"gpus", "devices"}),
    frozenset({"clip_seconds", "clip_seconds_max"}),
    frozenset({"clip_overlap", "clip_seconds_max"}),
)
"""Names of options of which at most one can be given."""

INCOMPATIBLE_WITH_VALUE = {
    ("clips", "shots"): frozenset({"clip_seconds", "clip_overlap"}),
    ("clips", "windows"): frozenset({"clip_seconds_max"}),
}
"""Values of options, and the names of those which cannot be given with them."""

SERVER_OPTIONS = {
    "servers": frozenset({"key_files", "management"}),
    "speech_server": frozenset({"speech_key_file"}),
    "management": frozenset({"key_file"}),
}
"""Options for an address, and those which belong to the server at that address."""


SERVER_OPTIONS_IN_FILES = {**SERVER_OPTIONS, "management": frozenset({"key_files", "key_file"})}
"""The same where a file gives the address: a key in a file that is farther from the user is renewed nowhere else."""

OTHER_SERVER_OPTIONS = frozenset({"servers", "key_files", "management", "key_file"})
"""Options for servers that are not the one of the folder which `--directory` names."""


def effective_options(files: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Merge the options from several places: keep those that count.

    Args:
        files: The options that are given in each file, by name; the last one is nearest to the user.
        others: Those in other places, which are nearer than files, such as the command line.

    Returns:
        Their values by name.
    """
    result: dict[str, Any] = {}
    from_files: set[str] = set()
    for place, given in enumerate([*files, *others]):
        replaced = _contradicted(given, result)
        for address, belongings in (SERVER_OPTIONS_IN_FILES if place < len(files) else SERVER_OPTIONS).items():
            if address in given:  # a key in the environment may be meant for a server on the command line
                replaced |= belongings if address in result else belongings & from_files
        if "directory" in given:
            replaced |= OTHER_SERVER_OPTIONS
        result = {name: value for name, value in result.items() if name not in replaced} | dict(given)
        from_files = from_files | given.keys() if place < len(files) else from_files - given.keys()
    return result


def _contradicted(given: Mapping[str, Any], farther: Mapping[str, Any]) -> set[str]:
    """Return the names of options which those that are given contradict, of those that are farther from the user."""
    contradicted = set[str]()
    for names in ALTERNATIVES:
        if given.keys() & names:
            contradicted |= names
    for (option, value), names in INCOMPATIBLE_WITH_VALUE.items():
        if given.get(option) == value:
            contradicted |= names
        elif given.keys() & names and farther.get(option) == value:
            contradicted.add(option)
    return contradicted
