"""What files that stand for sources are called."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from itertools import chain, count

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
