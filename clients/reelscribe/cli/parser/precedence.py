"""Which of the options count that come from several places: command line, environment, and two files.

A value that is nearer to the user replaces one of the same option. It also replaces what contradicts it: `--every 10`
on the command line replaces `fps = 2` in a file. And the key of a server is for no other server.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

ALTERNATIVES = (
    frozenset({"every", "fps", "frames", "keyframes", "per_shot", "all_frames"}),
    frozenset({"quiet", "json_log"}),
    frozenset({"gpus", "devices"}),
)
"""Names of options of which at most one can be given."""

OF_A_SERVER = {
    "servers": frozenset({"key_files", "management"}),
    "speech_server": frozenset({"speech_key_file"}),
    "management": frozenset({"key_file"}),
}
"""Options for an address, and those which belong to the server at that address."""


OF_A_SERVER_IN_FILES = {**OF_A_SERVER, "management": frozenset({"key_files", "key_file"})}
"""The same where a file gives the address: a key in a file that is farther from the user is renewed nowhere else."""

ELSEWHERE = frozenset({"servers", "key_files", "management", "key_file"})
"""Options for servers that are not the one of the folder which `--directory` names."""


def kept(files: Sequence[Set[str]], others: Sequence[Set[str]] = ()) -> set[str]:
    """Find the options that count.

    Args:
        files: Names of the options that are given in each file; the last one is nearest to the user.
        others: Names of those in other places, which are nearer than files, such as the command line.
    """
    result: set[str] = set()
    from_files: set[str] = set()
    for place, given in enumerate([*files, *others]):
        for names in ALTERNATIVES:
            if given & names:
                result -= names
        for address, belongings in (OF_A_SERVER_IN_FILES if place < len(files) else OF_A_SERVER).items():
            if address in given:  # a key in the environment may be meant for a server on the command line
                result -= belongings if address in result else belongings & from_files
        if "directory" in given:
            result -= ELSEWHERE
        result |= given
        from_files = from_files | given if place < len(files) else from_files - given
    return result
