"""A node's link to the ledger, which the driver alone writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from reelscribe._tasks import resolve
from reelscribe.cluster.mail import Call, Failed
from reelscribe.contract.outcomes import Segment, SourceError, Utterance
from reelscribe.contract.source import Section, Source
from reelscribe.results.batches import SavedBatch
from reelscribe.results.jobs import Job, SavedSource
from reelscribe.results.records import Kind
from reelscribe.results.speakers import TimedVoices
from reelscribe.run.messages import Lease


class StoreLink:
    """The ledger as a node sees it; see `run.store.Store`.

    The digest of a leased source has come with the lease. All other calls go to the driver, which makes them in this
    order.
    """

    def __init__(self, call: Callable[[Call], None], before_release: Callable[[str], None]) -> None:
        """Begin without leases.

        Args:
            call: Tells the driver a call. `answered` is called with its answer.
            before_release: Called with the digest of a content when the node has ended its work on it, done or not.
        """
        self._call, self._before_release = call, before_release
        self._numbers = count()
        self._open: dict[int, asyncio.Future[Any]] = {}
        """The calls that are not answered yet, by their numbers."""
        self._digests: dict[str, tuple[str, str | None]] = {}
        """The `file_stat` and the digest of each leased source, by its path."""

    def learn(self, lease: Lease) -> None:
        """Take note of what came with a lease, until `forget_lease`."""
        self._digests[lease.path] = lease.stat, lease.sha256

    def forget_lease(self, path: str) -> None:
        """Forget what came with a lease that has ended."""
        self._digests.pop(path, None)

    def answered(self, answers: Sequence[tuple[int, Any]]) -> None:
        """Pass on answers to those who wait for them; `Failed` for what nobody expected to fail."""
        for number, value in answers:
            if future := self._open.pop(number, None):
                resolve(future, RuntimeError(value.message) if isinstance(value, Failed) else value)

    async def find_digest(self, path: str, stat: str) -> str | None:
        """Return the digest that came with the lease of a file, if the file has not changed since."""
        known_stat, sha256 = self._digests[path]
        return sha256 if known_stat == stat else None

    def save_digest(self, path: str, stat: str, source: Source) -> asyncio.Future[None]:
        """See `Ledger.save_digest`."""
        return self._ask("save_digest", path, stat, source)

    def settings_id(self, settings: Mapping[str, Any]) -> asyncio.Future[int]:
        """See `Ledger.settings_id`."""
        return self._ask("settings_id", settings)

    @asynccontextmanager
    async def hold(self, sha256: str) -> AsyncGenerator[None, None]:
        """Reserve a content on all nodes; see `Ledger.hold`."""
        number, held = self._call_now("hold", sha256)
        try:
            await held
            try:
                yield
            finally:
                self._before_release(sha256)
        finally:
            self._open.pop(number, None)  # if it was cancelled before it was answered
            self._call(Call(next(self._numbers), "release", (number,)))  # it has no answer

    def job(self, sha256: str, settings: int) -> asyncio.Future[Job]:
        """See `Ledger.job`."""
        return self._ask("job", sha256, settings)

    def shown(self, path: str, sha256: str, kind: Kind) -> asyncio.Future[tuple[str, Job] | None]:
        """See `Ledger.shown`."""
        return self._ask("shown", path, sha256, kind)

    def outcome(self, sha256: str, settings: int) -> asyncio.Future[tuple[Job, dict[str, int]]]:
        """See `Ledger.outcome`."""
        return self._ask("outcome", sha256, settings)

    def utterances(self, job: int) -> asyncio.Future[list[Utterance]]:
        """See `Ledger.utterances`."""
        return self._ask("utterances", job)

    def texts(self, kind: Kind, job: int) -> asyncio.Future[list[Segment]]:
        """See `Ledger.texts`."""
        return self._ask("texts", kind, job)

    def shots(self, job: int) -> asyncio.Future[list[Section]]:
        """See `Ledger.shots`."""
        return self._ask("shots", job)

    def voices(self, job: int) -> asyncio.Future[list[TimedVoices]]:
        """See `Ledger.voices`."""
        return self._ask("voices", job)

    def save_opened(self, job: int, opened: SavedSource | None, total: int | None) -> asyncio.Future[None]:
        """See `Ledger.save_opened`."""
        return self._ask("save_opened", job, opened, total)

    def save_batch(self, job: int, batch: SavedBatch) -> asyncio.Future[None]:
        """See `Ledger.save_batch`."""
        return self._ask("save_batch", job, batch)

    def reopen(self, job: int) -> asyncio.Future[None]:
        """See `Ledger.reopen`."""
        return self._ask("reopen", job)

    def forget(self, job: int) -> asyncio.Future[None]:
        """See `Ledger.forget`."""
        return self._ask("forget", job)

    def save_source(self, source: Source, jobs: Mapping[Kind, Job]) -> asyncio.Future[None]:
        """See `Ledger.save_source`."""
        return self._ask("save_source", source, jobs)

    def save_unreadable(self, path: str, error: SourceError) -> asyncio.Future[None]:
        """See `Ledger.save_unreadable`."""
        return self._ask("save_unreadable", path, error)

    def _ask(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        return self._call_now(method, *arguments)[1]

    def _call_now(self, method: str, *arguments: Any) -> tuple[int, asyncio.Future[Any]]:
        """Call a method. Returns the number of the call, and the future of its answer."""
        number = next(self._numbers)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self._call(Call(number, method, arguments))
        return number, future
