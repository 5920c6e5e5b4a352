"""The end of a log, as people look at it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.2


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; none if it is not there."""
    if not log.exists():
        return []
    with log.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count)]


def follow(log: Path, count: int) -> Iterator[str]:
    """The last lines of a log and then those that are written, for ever; goes over to a new log when one begins."""
    most: int | None = count
    while True:
        with suppress(FileNotFoundError), log.open("rb") as file:  # it is not there while a new one begins
            yield from _follow_one(file, log, most)
            most = None
        time.sleep(POLL_SECONDS)


def _follow_one(file: BinaryIO, log: Path, most: int | None) -> Iterator[str]:
    """The last lines, or all, of a log that is open, and what comes, until another has its place."""
    last: deque[bytes] = deque(maxlen=most)
    rest = b""  # a line that is not written to its end
    for line in file:
        if line.endswith(b"\n"):
            last.append(line[:-1])
        else:
            rest = line
    yield from (line.decode(errors="replace") for line in last)
    replaced = False
    while not replaced:
        replaced = not _is_at(log, file)  # asked first: what was written before that is still read
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
            rest = b""
        *lines, rest = (rest + file.read()).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        time.sleep(POLL_SECONDS)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether an open file is still the one of this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
