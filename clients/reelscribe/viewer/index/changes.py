"""Finds what has changed since it was indexed: annotations.jsonl, its lines, and records of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reelscribe._files import regular_file
from reelscribe.contract.outcomes import SourceError
from reelscribe.results.escaping import escape_surrogates
from reelscribe.results.records import FinishedSource, Kind
from reelscribe.viewer.index.building import iter_lines
from reelscribe.viewer.index.source_row import digest_of, fingerprint


@dataclass
class ComparedLines:
    """A file of records compared with the index."""

    kept: dict[int, int] = field(default_factory=dict)
    """The positions of the lines of known sources, by the numbers of the sources."""
    new: list[int] = field(default_factory=list)
    """The positions of all other lines."""


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return what differs after a file was written or replaced: its inode, size and time; empty for no file.

    Args:
        path: Path of a file, which may be missing.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def compare_lines(
    annotations: Path, stamp: tuple[int, ...], known: Mapping[bytes, int], most: int, check: Callable[[], None]
) -> ComparedLines | None:
    """Compare annotations.jsonl with the index; None if so much is new that a new index is made sooner.

    Args:
        annotations: Path of the file.
        stamp: Its stamp; empty for no file.
        known: The numbers of the sources in the index, by the digests of their lines.
        most: Largest number of lines that are taken one by one.
        check: Called before each line; an exception of it ends the comparison.
    """
    lines = ComparedLines()
    if not stamp:
        return lines
    with open(annotations, "rb", buffering=2**20, opener=regular_file) as file:
        for line in iter_lines(file, 0, stamp[1]):
            check()
            doc = known.get(digest_of(line.content)) if line.content else None
            if doc is None:
                lines.new.append(line.start)
            else:
                lines.kept[doc] = line.start
            if len(lines.new) > most:
                return None
    return lines


def fingerprint_of(source: FinishedSource) -> bytes:
    """Return the fingerprint that the record of a source of the ledger has if nothing has changed.

    Args:
        source: What the ledger knows of a source without its results.
    """
    error = source.error and SourceError(*map(escape_surrogates, source.error))
    kinds: tuple[Kind, ...] = ("captions", "clips", "shots", "transcript", "speakers", "summary")
    settings = [source.settings.get(kind) for kind in kinds]
    facts = escape_surrogates(source.name), source.bytes, source.sha256 or None, source.missing
    return fingerprint(*facts, *(error or (None, None)), *settings)
