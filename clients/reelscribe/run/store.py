"""The place for the results of a run: the ledger itself, a link to it from another machine, or memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from reelscribe.contract.outcomes import Segment, SourceError, Utterance
from reelscribe.contract.source import Section, Source, Span
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource, missing_spans
from reelscribe.results.records import Kind
from reelscribe.results.speakers import TimedVoices

T = TypeVar("T")


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

    def texts(self, kind: Kind, job: int) -> asyncio.Future[list[Segment]]:
        """Return what a job has found to be seen or said in a content, in the order of time."""

    def shots(self, job: int) -> asyncio.Future[list[Section]]:
        """Return the shots of a content, in order."""

    def voices(self, job: int) -> asyncio.Future[list[TimedVoices]]:
        """Return the voices of a content, in the order of time."""

    def save_opened(self, job: int, opened: SavedSource | None, total: int | None) -> asyncio.Future[None]:
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


class MemoryStore:
    """A store that knows nothing and keeps what one source needs until it is done; see `Store`."""

    def __init__(self, on_batch: Callable[[SavedBatch], None] = lambda batch: None) -> None:
        """Begin empty.

        Args:
            on_batch: Called with the results of each batch.
        """
        self._on_batch = on_batch
        self._job = Job(0, opened=None, total=None, done=False, error=None, missing=[Span()])
        self._failures: Counter[str] = Counter()
        self._spans: list[tuple[int, int, int | None]] = []
        self._total: int | None = None
        """Number of chosen frames or samples; None until it is known."""

    async def find_digest(self, path: str, stat: str) -> str | None:  # noqa: ARG002 - nobody needs the digest
        """Return a digest of nothing, so that no file is read for one."""
        return "0" * 64

    def save_digest(self, path: str, stat: str, source: Source) -> asyncio.Future[None]:  # noqa: ARG002 - likewise
        """Keep nothing."""
        return _known(None)

    def settings_id(self, settings: Mapping[str, Any]) -> asyncio.Future[int]:  # noqa: ARG002 - there is one model
        """Return a number."""
        return _known(0)

    def hold(self, sha256: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - there is one source
        """Reserve nothing."""
        return nullcontext()

    def job(self, sha256: str, settings: int) -> asyncio.Future[Job]:  # noqa: ARG002 - likewise
        """Return the only job."""
        missing = missing_spans(sorted(self._spans), self._total)
        return _known(replace(self._job, total=self._total, missing=missing))

    def shown(self, path: str, sha256: str, kind: Kind) -> asyncio.Future[tuple[str, Job] | None]:  # noqa: ARG002 - likewise
        """Return nothing."""
        return _known(None)

    def outcome(self, sha256: str, settings: int) -> asyncio.Future[tuple[Job, dict[str, int]]]:
        """Return the job, and the number of its failures by reason."""
        return _known((self.job(sha256, settings).result(), dict(self._failures)))

    def utterances(self, job: int) -> asyncio.Future[list[Utterance]]:  # noqa: ARG002 - no other track asks
        """Return nothing."""
        return _known([])

    def texts(self, kind: Kind, job: int) -> asyncio.Future[list[Segment]]:  # noqa: ARG002 - likewise
        """Return nothing."""
        return _known([])

    def shots(self, job: int) -> asyncio.Future[list[Section]]:  # noqa: ARG002 - likewise
        """Return nothing."""
        return _known([])

    def voices(self, job: int) -> asyncio.Future[list[TimedVoices]]:  # noqa: ARG002 - likewise
        """Return nothing."""
        return _known([])

    def save_opened(self, job: int, opened: SavedSource | None, total: int | None) -> asyncio.Future[None]:  # noqa: ARG002
        """Keep what is known about the source."""
        if total is not None or self._total is None:
            self._job, self._total = replace(self._job, opened=opened), total
        return _known(None)

    def save_batch(self, job: int, batch: SavedBatch) -> asyncio.Future[None]:  # noqa: ARG002 - there is one job
        """Pass the results of a batch on, and count its failures."""
        self._spans.append((batch.first, batch.stop, batch.anchor))
        self._failures.update(batch.failure_reasons)
        self._on_batch(batch)
        return _known(None)

    def reopen(self, job: int) -> asyncio.Future[None]:  # noqa: ARG002 - nothing was done before
        """Delete nothing."""
        return _known(None)

    def forget(self, job: int) -> asyncio.Future[None]:  # noqa: ARG002 - its error says it
        """Delete nothing."""
        return _known(None)

    def save_source(self, source: Source, jobs: Mapping[Kind, Job]) -> asyncio.Future[None]:  # noqa: ARG002
        """Keep nothing."""
        return _known(None)

    def save_unreadable(self, path: str, error: SourceError) -> asyncio.Future[None]:  # noqa: ARG002
        """Keep nothing."""
        return _known(None)


def _known(value: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
