"""Forgets sources: deletes what the ledger of a folder knows about them, with their records and thumbnails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from reelscribe._files import FolderLock
from reelscribe.contract.source import content_name
from reelscribe.errors import OutputError, UsageError
from reelscribe.results.annotations import write_results
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import KnownSource
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.results.schema import path_key, row_errors
from reelscribe.storage.address import absolute_name
from reelscribe.thumbnails.store import ThumbnailStore


async def forget(out: Path, names: Sequence[str], *, missing: bool = False, dry_run: bool = False) -> list[KnownSource]:
    """Delete everything that the ledger of a folder knows about sources, and write the files of results anew.

    Args:
        out: The folder of a run.
        names: Files, folders and globs; those need not be on the disk any more.
        missing: Whether to forget all sources, too, that were gone from the disk when the last run ended and still
            are.
        dry_run: Whether to find the sources without deleting anything.

    Returns:
        The forgotten sources, in the order of their paths.

    Raises:
        UsageError: A name matches no source that the ledger knows.
        OutputError: There is no ledger, a run is writing to the folder, or the disk refuses.
    """
    if not (out / LEDGER).exists():
        raise OutputError(f"{out / LEDGER}: no such file; expected the folder of a run")
    with FolderLock(out, "forget"):
        async with Ledger(out) as ledger:
            with LedgerReader(out) as reader:
                known = reader.sources()
                chosen = {source.path for name in names for source in _matches(name, known)}
                chosen |= _gone(known) if missing else set()
                forgotten = [source for source in known if source.path in chosen]
                if not dry_run:
                    await ledger.forget_sources(forgotten)
                    records, failed = write_results(out, reader.records())
                    left = reader.sources()
                    if state := reader.run_state():
                        with row_errors(out / LEDGER):
                            await ledger.save_run_state(_without(state, forgotten, left, records, failed))
                    _forget_thumbnails(out, forgotten, left)
    return forgotten


def _without(
    state: dict[str, Any], forgotten: Iterable[KnownSource], left: Sequence[KnownSource], records: int, failed: int
) -> dict[str, Any]:
    """Return the state of the latest run, as `reelscribe status` tells it, after sources were forgotten.

    Nobody knows which of them that run has named, so those that it has not are taken to be forgotten first.

    Args:
        state: The state.
        forgotten: The sources.
        left: The sources that are left.
        records: Number of records that are left.
        failed: Number of these with an error.
    """
    keys = {source.path for source in forgotten}
    contents = [source.sha256 for source in left if source.sha256]
    done = min(state["sources_done"], records)
    failed_here = max(min(state["sources_failed"], failed), failed - (records - done))
    return {
        **state,
        "sources": state["sources"] - state["sources_done"] + done,
        "sources_done": done,
        "sources_failed": failed_here,
        "sources_before": min(state.get("sources_before", 0), done),
        "sources_copies": min(state.get("sources_copies", 0), len(contents) - len(set(contents))),
        "sources_gone": sum(source.missing for source in left),
        "others": records - done,
        "others_failed": failed - failed_here,
        "tracks": [{**track, "done_before": None} for track in state["tracks"]],
        "failures": [failure for failure in state.get("failures", ()) if path_key(failure[0]) not in keys],
    }


def _forget_thumbnails(out: Path, forgotten: Iterable[KnownSource], left: Iterable[KnownSource]) -> None:
    """Delete the thumbnails of forgotten sources, unless a copy of one is left."""
    store, kept = ThumbnailStore(out), {source.sha256 for source in left}
    for key in {source.sha256 for source in forgotten if source.sha256} - kept:
        with suppress(UsageError):  # a ledger that somebody has edited may have something else than a digest
            store.forget(content_name(key))


def _gone(known: Iterable[KnownSource]) -> set[bytes]:
    """Return the paths of sources that are still gone; the disk of one that was marked may be back since."""
    return {source.path for source in known if source.missing and not os.path.lexists(source.path)}


def _matches(name: str, known: Sequence[KnownSource]) -> list[KnownSource]:
    """Return the known sources that a name stands for: a file or a folder, else a glob. Raises UsageError if none is.

    Brackets mean themselves first.
    """
    key, pattern = path_key(name), absolute_name(name)
    below = key.rstrip(b"/") + b"/"
    found = [source for source in known if source.path == key or source.path.startswith(below)]
    for reading in (pattern.replace("[", "[[]"), pattern):
        found = found or [source for source in known if fnmatchcase(os.fsdecode(source.path), reading)]
    if not found:
        raise UsageError(f"{name!r}: expected a file, folder or glob that matches a known source, but none matches")
    return found
