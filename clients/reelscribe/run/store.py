"""What a run needs of the place for its results: the ledger itself, or a link to it from another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Source
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.records import Kind


class Store(Protocol):
    """Where the results of a run are saved. `Ledger` describes the methods.

    A call is queued at once, in the order of the calls, whether its answer is awaited or not. What it saves is on the
    disk when it is answered.
    """

    def find_digest(self, path: str, stat: str) -> Awaitable[str | None]:
        """Return the digest of a file that was read before."""

    def save_digest(self, path: str, stat: str, source: Source) -> asyncio.Future[None]:
        """Save the digest of a file."""

    def settings_id(self, settings: Mapping[str, Any]) -> asyncio.Future[int]:
        """Return the number of a model with its settings, which are added if they are new."""

    def hold(self, sha256: str) -> AbstractAsyncContextManager[None]:
        """Reserve a content, so that copies of a file are annotated once."""

    def job(self, sha256: str, settings: int) -> asyncio.Future[Job]:
        """Return the job of a content. If there is none yet, it is added."""

    def shown(self, path: str, sha256: str, kind: Kind) -> asyncio.Future[tuple[str, Job] | None]:
        """Return what the record of a source shows: the model with its settings as text, and the job."""

    def outcome(self, sha256: str, settings: int) -> asyncio.Future[tuple[Job, dict[str, int]]]:
        """Return the job of a content, and the number of its failed frames or chunks by reason."""

    def utterances(self, job: int) -> asyncio.Future[list[Utterance]]:
        """Return what is said in a content, in the order of time."""

    def save_opened(self, job: int, opened: SavedSource, total: int | None) -> asyncio.Future[None]:
        """Save what is known about a source that was opened."""

    def save_batch(self, job: int, batch: SavedBatch) -> asyncio.Future[None]:
        """Save the results of a batch."""

    def reopen(self, job: int) -> asyncio.Future[None]:
        """Delete the batches of a job that have failures, so that they are tried again."""

    def forget(self, job: int) -> asyncio.Future[None]:
        """Delete all batches of a job."""

    def save_source(self, source: Source, jobs: Mapping[Kind, Job]) -> asyncio.Future[None]:
        """Save that a source is done, and which jobs have its results from now on."""

    def save_unreadable(self, path: str, error: SourceError) -> asyncio.Future[None]:
        """Save that a source could not be read."""
