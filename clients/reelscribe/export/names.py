"""The names of the files that an export writes for each source; docs/exports.md gives the rules."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from itertools import chain, count

_MAX_PART_BYTES = 255  # limit of most file systems for a name without its folders
_MAX_NAME_BYTES = 1000  # for a name with its folders; a whole path has at most 4096, and the export folder may be deep
_NOT_IN_A_NAME = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")  # not \udc80-\udcff: os.fsdecode makes them from bytes


def common_folder_of(paths: Iterable[str]) -> str:
    """Return the absolute path of the deepest folder that holds all of `paths`; empty if there are none."""
    folder = ""
    for path in paths:
        parent = os.path.dirname(_absolute(path))
        folder = os.path.commonpath([folder, parent]) if folder else parent
    return folder


class FileNames:
    """Gives each source a unique name for its files, which never leads out of the folder that holds them."""

    def __init__(self, common_folder: str, *suffixes: str) -> None:
        """Name files after their sources.

        Args:
            common_folder: Absolute path of a folder that holds all sources.
            *suffixes: Suffixes of the files of a source, with their dots.
        """
        self._common_folder, self._suffixes = common_folder, suffixes
        self._taken: set[str] = set()

    def name_for(self, path: str) -> str:
        """Return a new name, with folders and without a suffix, for the files of the source at `path`."""
        # An absolute path has no "..", whatever the common folder is.
        parts = [part for part in _absolute(path).removeprefix(self._common_folder).split("/") if part] or ["_"]
        folders = [_shortened(self._folder_name(part), _MAX_PART_BYTES) for part in parts[:-1]]
        # Leave room for the number below, up to 9,999,999, and for the suffix of a file that is not whole.
        longest = max(self._suffixes, key=len)
        last = _shortened(parts[-1], _MAX_PART_BYTES - len(f"~9999999{longest}.partial"))
        name = "/".join([*folders, last])
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            name = last
        candidates = chain([name], (f"{name}~{number}" for number in count(2)))
        free = next(candidate for candidate in candidates if candidate not in self._taken)
        self._taken.add(free)
        return free

    def _folder_name(self, part: str) -> str:
        """Return a name that no file has: beside x.mp4, with the file x.mp4.vtt, may be a folder x.mp4.vtt."""
        return f"{part}_" if part.endswith((*self._suffixes, ".partial")) else part


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
